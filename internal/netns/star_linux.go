package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"

	"github.com/vishvananda/netlink"
)

// Star is a set of hosts connected by a router, each through an interface veth0.
//
//	      host 0                      router                      host 1
//	+----------------+        +-----------------------+        +----------------+
//	|   198.18.1.2   | - veth - 198.18.1.1  198.18.2.1 - veth - |   198.18.2.2   |
//	+----------------+        +-----------------------+        +----------------+
type Star struct {
	Router Namespace
	Hosts  []Namespace
}

// Address returns the address of host i of a star. RFC 2544 reserves 198.18.0.0/15 for tests.
func Address(i int) net.IP { return net.IPv4(198, 18, byte(i+1), 2) }

// NewStar creates a star of the given number of hosts. The caller must call [Star.Close].
func NewStar(hosts int) (_ *Star, err error) {
	s := new(Star)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Router, err = New(); err != nil {
		return s, fmt.Errorf("network namespace: %w", err)
	}
	if err := s.Router.In(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
		return s, err
	}
	for i := range hosts {
		h, err := New()
		if err != nil {
			return s, fmt.Errorf("network namespace: %w", err)
		}
		s.Hosts = append(s.Hosts, h)
		if err := s.join(i); err != nil {
			return s, fmt.Errorf("host %d: %w", i, err)
		}
	}
	return s, nil
}

// join connects a host to the router.
func (s *Star) join(i int) error {
	h, port, outer := s.Hosts[i], fmt.Sprintf("host%d", i), net.IPv4(198, 18, byte(i+1), 1)
	return errors.Join(
		s.Router.In(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = port
			err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "veth0", PeerNamespace: netlink.NsFd(h)})
			return errors.Join(err, up(port, outer))
		}),
		h.In(func() error {
			// No rate limit, as on loopback: "port unreachable" is reported at once.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0),
				up("lo", nil), up("veth0", Address(i)), netlink.RouteAdd(&netlink.Route{Gw: outer}))
		}))
}

// up brings an interface up, with an address unless ip is nil.
func up(name string, ip net.IP) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("bring up interface %s: %w", name, err)
	}
	if ip != nil {
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}); err != nil {
			return fmt.Errorf("set address of interface %s: %w", name, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// Cut makes each host's kernel segment data into packets before they leave, so that the
// router loses packets one by one.
func (s *Star) Cut() error {
	for i, h := range s.Hosts {
		err := h.In(func() error {
			l, err := netlink.LinkByName("veth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetGSOMaxSegs(l, 1)
		})
		if err != nil {
			return fmt.Errorf("host %d: limit segmentation offload to one packet: %w", i, err)
		}
	}
	return nil
}

// Connect returns a TCP connection of host 0 to a listener of host 1.
func (s *Star) Connect() (conn net.Conn, l net.Listener, err error) {
	err = s.Hosts[1].In(func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(Address(1).String(), "0"))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = s.Hosts[0].In(func() (err error) {
		conn, err = net.Dial("tcp4", l.Addr().String())
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return conn, l, nil
}

// Vanish takes the link of a host down: no packet reaches it any more, or leaves it.
func (n Namespace) Vanish() error {
	return n.In(func() error {
		l, err := netlink.LinkByName("veth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
}

// Lose makes a router drop perMille of a thousand packets that pass it, at random, from now on.
// It uses nft(8): many kernels lack netem but have nftables rules that drop.
func (n Namespace) Lose(perMille int) error {
	rules := "add table ip lossy; delete table ip lossy;"
	if perMille > 0 {
		which := ""
		if perMille < 1000 {
			which = fmt.Sprintf("numgen random mod 1000 < %d ", perMille)
		}
		rules += fmt.Sprintf("table ip lossy { chain on { type filter hook forward priority 0; %sdrop; }; }", which)
	}
	return n.In(func() error {
		if out, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
			return fmt.Errorf("nft %q: %w: %s", rules, err, out)
		}
		return nil
	})
}

// Close closes the descriptors; a namespace with processes inside lasts until they end.
func (s *Star) Close() error {
	var errs []error
	for _, n := range append(s.Hosts, s.Router) {
		if n > 0 {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}
