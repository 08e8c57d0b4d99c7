//go:build !linux

package tcp

import (
	"net"
	"time"
)

// newDriver makes the only driver that there is here.
func newDriver(bool) (driver, error) { return newNetDriver(), nil }

// tune has nothing to set: the bound on unacknowledged bytes is Linux's. The
// keep-alive probes and the deadlines of writing are there.
func tune(*net.TCPConn, time.Duration) error { return nil }

// uncongested has nothing to set either.
func uncongested(*net.TCPConn) {}
