//go:build !linux

package tcp

import (
	"net"
	"time"
)

// newDriver returns the only driver of this system.
func newDriver(bool) (driver, error) { return newNetDriver(), nil }

// tune does nothing: only Linux limits how long bytes stay unacknowledged. Keep-alive
// probes and write deadlines remain.
func tune(*net.TCPConn, time.Duration) error { return nil }

// uncongested does nothing.
func uncongested(*net.TCPConn) {}
