//go:build !unix

package impi

import (
	"context"
	"errors"
	"net"
	"time"
)

var errNoSockets = errors.New("non-blocking sockets are not supported on this system")

func newSocket(*net.TCPConn, time.Duration) (socket, error) { return nil, errNoSockets }

// tcpSource is the event source of TCP connections.
type tcpSource struct{ carriers []*tcpCarrier }

func newTCPSource(*engine) (*tcpSource, error) { return nil, errNoSockets }

func (s *tcpSource) poll(bool) bool              { return false }
func (s *tcpSource) block(context.Context) error { return errNoSockets }
func (s *tcpSource) attention(*tcpCarrier)       {}
func (s *tcpSource) close()                      {}
