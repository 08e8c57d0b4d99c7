//go:build unix

package reach

import (
	"syscall"
)

// bothFamilies makes a socket for IPv6 take IPv4 connections too, which package net has it do only
// where it finds 127.0.0.1.
func bothFamilies(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}); e != nil {
		return e
	}
	return err
}
