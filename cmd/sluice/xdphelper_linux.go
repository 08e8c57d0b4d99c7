package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/internal/xdp"
)

// serveXDP runs the helper until a signal ends it.
func serveXDP(cmd *cobra.Command, s helperSettings, gid int, addrs []netip.Addr) error {
	// Kernels before 5.11 count BPF maps as locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	if err := xdp.Supported(); err != nil {
		return err
	}
	for _, name := range s.interfaces {
		if _, err := net.InterfaceByName(name); err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	l, err := listenHelper(s.socket, gid)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	h := &xdp.Helper{
		Group: gid, Addresses: addrs, Interfaces: s.interfaces, Queue: s.queue, Native: s.native, Seats: s.seats, Ring: s.ring,
		Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
	}
	fmt.Fprintln(cmd.OutOrStdout(), s.socket)
	return h.Serve(ctx, l)
}

// listenHelper listens at path, only for the group. It replaces a socket without a listener.
func listenHelper(path string, gid int) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if xdp.Reach(path) == nil {
		return nil, fmt.Errorf("another helper is already listening at %s", path)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// Until the socket has its group, no other user can connect.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
