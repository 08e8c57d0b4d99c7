//go:build !linux

package main

import (
	"errors"
	"net/netip"

	"github.com/spf13/cobra"
)

func serveXDP(*cobra.Command, helperSettings, int, []netip.Addr) error {
	return errors.New("xdp-helper needs AF_XDP, which only Linux has")
}
