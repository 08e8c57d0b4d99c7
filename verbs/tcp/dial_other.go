//go:build !linux

package tcp

import "syscall"

// lendPort does nothing: only Linux has the option.
func lendPort(_, _ string, _ syscall.RawConn) error { return nil }
