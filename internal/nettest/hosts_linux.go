package nettest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The hosts of this process: network namespaces that a router joins, which is another one.
// They have no names, and end with the process.
//
//	      host 1                      router                      host 2
//	+----------------+        +-----------------------+        +----------------+
//	|   198.18.1.2   | - veth - 198.18.1.1  198.18.2.1 - veth - |   198.18.2.2   |
//	+----------------+        +-----------------------+        +----------------+

// maxHosts is the most contexts that are open at a time.
const maxHosts = 24

// namespace is a network namespace, by a descriptor.
type namespace int

// idle are the hosts that no context has.
var idle = make(chan namespace, maxHosts)

func makeHosts() error {
	router, err := newNamespace()
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if err := router.in(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
		return err
	}
	for i := range maxHosts {
		h, err := newNamespace()
		if err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		port := fmt.Sprintf("host%d", i+1)
		// RFC 2544: 198.18.0.0/15 is for tests of networks.
		inner, outer := net.IPv4(198, 18, byte(i+1), 2), net.IPv4(198, 18, byte(i+1), 1)
		err = errors.Join(
			router.in(func() error {
				attrs := netlink.NewLinkAttrs()
				attrs.Name = port
				err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "veth0", PeerNamespace: netlink.NsFd(h)})
				return errors.Join(err, up(port, outer))
			}),
			h.in(func() error {
				// Loopback has no such limit either: that nobody has a port is said at once.
				return errors.Join(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0),
					up("lo", nil), up("veth0", inner), netlink.RouteAdd(&netlink.Route{Gw: outer}))
			}))
		if err != nil {
			return fmt.Errorf("host %d: %w", i+1, err)
		}
		idle <- h
	}
	return nil
}

// up has an interface up, with an address if it is to have one.
func up(name string, ip net.IP) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if ip != nil {
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}); err != nil {
			return fmt.Errorf("address of %s: %w", name, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// newNamespace makes a network namespace.
func newNamespace() (n namespace, err error) {
	err = elsewhere(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		n, err = ofThread()
		return err
	})
	return n, err
}

// in runs f inside: what it opens is of that namespace for good. What it starts as a
// goroutine is not.
func (n namespace) in(f func() error) error {
	return elsewhere(func() error { return unix.Setns(int(n), unix.CLONE_NEWNET) }, f)
}

// elsewhere runs f on a thread that has gone to another namespace. The first thread stays:
// /proc/self tells of that one where this process is.
func elsewhere(enter, f func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		done := make(chan error)
		go func() { done <- elsewhere(enter, f) }() // on another, for this one is taken
		return <-done
	}
	own, err := ofThread()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(int(own))
	if err = enter(); err == nil {
		err = f()
	}
	// A thread that cannot come back stays locked, and ends with its goroutine.
	if e := unix.Setns(int(own), unix.CLONE_NEWNET); e != nil {
		return errors.Join(err, e)
	}
	runtime.UnlockOSThread()
	return err
}

func ofThread() (namespace, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return namespace(fd), err
}
