//go:build !unix

package boot

import (
	"errors"
	"net"
)

var errInherit = errors.New("sockets are not inherited on this system")

func checkSocket(int) error { return errInherit }

func takeSocket(int) (net.Conn, error) { return nil, errInherit }
