package xdp

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Reasons for which a process cannot open ports itself.
var (
	ErrNever     = errors.New("the kernel does not support AF_XDP")
	ErrPrivilege = errors.New("missing privilege")
)

// Supported returns nil if this process can open ports itself. Otherwise the error wraps
// [ErrNever] or [ErrPrivilege], or says why that cannot be determined.
func Supported() error {
	var missing []string
	have, err := capabilities()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		set  uint64
	}{
		{"CAP_NET_ADMIN", 1 << unix.CAP_NET_ADMIN},
		{"CAP_NET_RAW", 1 << unix.CAP_NET_RAW},
		{"CAP_BPF", 1<<unix.CAP_BPF | 1<<unix.CAP_SYS_ADMIN},
	} {
		if have&c.set == 0 {
			missing = append(missing, c.name)
		}
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w (CONFIG_XDP_SOCKETS)", ErrNever)
	case !errors.Is(err, unix.EPERM):
		return fmt.Errorf("AF_XDP socket: %w", err)
	}
	if missing != nil {
		return fmt.Errorf("%w: needs %s", ErrPrivilege, strings.Join(missing, ", "))
	}
	m, err := newMaps(1)
	switch {
	case errors.Is(err, unix.EPERM): // CAP_BPF in a user namespace does not suffice
		return fmt.Errorf("%w: needs CAP_BPF of the host: %v", ErrPrivilege, err)
	case err != nil:
		return err
	}
	m.close()
	return nil
}

// capabilities returns the effective capabilities of the calling thread.
func capabilities() (uint64, error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return 0, fmt.Errorf("capget: %w", err)
	}
	return uint64(d[1].Effective)<<32 | uint64(d[0].Effective), nil
}
