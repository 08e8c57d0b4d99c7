package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"
)

// helperSettings are the flags of xdp-helper.
type helperSettings struct {
	group      string
	addresses  []string
	interfaces []string
	socket     string
	queue      int
	native     bool
	seats      int
	ring       int
}

func newXDPHelper() *cobra.Command {
	s := helperSettings{socket: "/run/sluice/xdp.sock", seats: 16, ring: 512}
	cmd := &cobra.Command{
		Use:   "xdp-helper --group GROUP --interface NAME --address ADDRESS [flags]",
		Short: "Give processes without privileges a place at a network interface (AF_XDP)",
		Long:  xdpHelperHelp,
		Example: `  sluice xdp-helper --group hpc --interface eth0 --address 192.168.1.7
  SLUICE_TRANSPORT=xdp sluice run -n 4 ./program`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			gid, err := groupID(s.group)
			if err != nil {
				return &usageError{cmd, err}
			}
			var addrs []netip.Addr
			for _, text := range s.addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					return &usageError{cmd, err}
				}
				addrs = append(addrs, a.Unmap())
			}
			power := func(n, most int) bool { return n > 0 && n <= most && n&(n-1) == 0 }
			switch {
			case len(s.interfaces) == 0 || len(addrs) == 0:
				return &usageError{cmd, errors.New("needs --interface and --address")}
			case !power(s.seats, 256) || !power(s.ring, 4096):
				return &usageError{cmd, errors.New("--seats is a power of two of at most 256, --ring one of at most 4096")}
			case s.queue < 0:
				return &usageError{cmd, fmt.Errorf("queue %d", s.queue)}
			}
			return serveXDP(cmd, s, gid, addrs)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.group, "group", "", "`name` or number of the group whose members may ask")
	flags.StringSliceVar(&s.interfaces, "interface", nil, "`name` of a network interface; several with commas, or one by one")
	flags.StringSliceVar(&s.addresses, "address", nil, "IP `address` that they may have packets for; several likewise")
	flags.StringVar(&s.socket, "socket", s.socket, "`path` of the Unix socket to listen on")
	flags.BoolVar(&s.native, "native", false, "attach in the driver (native XDP), in place of behind it (generic)")
	flags.IntVar(&s.queue, "queue", 0, "`number` of the interface's queue")
	flags.IntVar(&s.seats, "seats", s.seats, "`number` of processes at an interface at a time, a power of two")
	flags.IntVar(&s.ring, "ring", s.ring, "`number` of packets that a process has room for each way, a power of two")
	return cmd
}

// groupID is the number of a group.
func groupID(name string) (int, error) {
	if name == "" {
		return 0, errors.New("needs --group")
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

const xdpHelperHelp = `Xdp-helper does for the devices of provider xdp what needs privileges: it registers
memory, attaches a program to the interface, and hands out descriptors, so that the
processes that use them need none. One runs on each node, as root or with
CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK.

Who asks must be root or of the group, for an address of the list, and have a UDP socket
of the helper's network namespace that is bound to that and a port: only what comes there is
steered past the network stack. Processes that share an interface can harm each other, so
they must be of one user at a time.

The program is attached when the first process comes, and detached when the last has
gone. Processes find the helper at /run/sluice/xdp.sock, or at SLUICE_XDP_SOCKET. It logs
on standard error, and ends with SIGTERM; processes that are there then go on through
the network stack.

The packets of one queue are taken. Of an interface with several, either leave it one
('ethtool -L NAME combined 1') or steer RoCE there ('ethtool -N NAME flow-type udp4
dst-port PORT action QUEUE'); what comes by another queue goes through the network stack.`
