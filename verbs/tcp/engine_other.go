//go:build !linux

package tcp

import "net"

// newDriver returns the only driver of this system.
func newDriver(bool) (driver, error) { return newNetDriver(), nil }

// uncongested does nothing.
func uncongested(*net.TCPConn) {}
