package reach

import (
	"encoding/hex"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// asked returns the interfaces that are up where netlink is refused (RestrictAddressFamilies of
// systemd, a seccomp filter): each with its first address by IPv4, and all by IPv6. None counts as
// Ethernet. See netdevice(7).
func asked() (list []Interface) {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return nil
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(s)
	six := addresses6()
	for line := range strings.Lines(string(b)) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		r, err := unix.NewIfreq(name)
		ask := func(what uint) bool { return unix.IoctlIfreq(s, what, r) == nil }
		if err != nil || !ask(unix.SIOCGIFFLAGS) || r.Uint16()&unix.IFF_UP == 0 {
			continue
		}
		n := Interface{Name: name, Loop: r.Uint16()&unix.IFF_LOOPBACK != 0}
		if ask(unix.SIOCGIFMTU) {
			n.MTU = int(r.Uint32())
		}
		if ask(unix.SIOCGIFINDEX) {
			n.Index = int(r.Uint32())
		}
		if ask(unix.SIOCGIFADDR) {
			if a, err := r.Inet4Addr(); err == nil {
				ip, _ := netip.AddrFromSlice(a)
				n.Addrs = append(n.Addrs, ip)
			}
		}
		n.Addrs = append(n.Addrs, six[name]...)
		list = append(list, n)
	}
	return list
}

// addresses6 returns the IPv6 addresses of all interfaces by name.
func addresses6() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	b, _ := os.ReadFile("/proc/self/net/if_inet6") // not there without IPv6
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 6 {
			continue
		}
		var ip [16]byte
		if n, err := hex.Decode(ip[:], []byte(f[0])); n == len(ip) && err == nil {
			all[f[5]] = append(all[f[5]], netip.AddrFrom16(ip))
		}
	}
	return all
}
