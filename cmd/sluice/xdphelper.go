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
		Short: "Let unprivileged processes use a network interface through AF_XDP",
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
				return &usageError{cmd, errors.New("it needs --interface and --address")}
			case !power(s.seats, 256) || !power(s.ring, 4096):
				return &usageError{cmd, errors.New("--seats must be a power of two of at most 256, --ring one of at most 4096")}
			case s.queue < 0:
				return &usageError{cmd, fmt.Errorf("--queue is %d: it must not be negative", s.queue)}
			}
			return serveXDP(cmd, s, gid, addrs)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.group, "group", "", "`name` or number of the group whose members may use the helper")
	flags.StringSliceVar(&s.interfaces, "interface", nil, "`name` of a network interface; separate several with commas, or repeat the flag")
	flags.StringSliceVar(&s.addresses, "address", nil, "IP `address` whose packets processes may receive; several as with --interface")
	flags.StringVar(&s.socket, "socket", s.socket, "`path` of the Unix socket to listen on")
	flags.BoolVar(&s.native, "native", false, "attach in the driver (native XDP) instead of after it (generic XDP)")
	flags.IntVar(&s.queue, "queue", 0, "`number` of the interface's queue")
	flags.IntVar(&s.seats, "seats", s.seats, "`number` of processes at an interface at a time, a power of two")
	flags.IntVar(&s.ring, "ring", s.ring, "`number` of packets in each ring of a process, a power of two")
	return cmd
}

// groupID returns the number of a group.
func groupID(name string) (int, error) {
	if name == "" {
		return 0, errors.New("it needs --group")
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

const xdpHelperHelp = `Xdp-helper does the privileged work for the devices of provider xdp: it registers
memory, attaches a program to the interface, and hands out descriptors, so that the
processes that use them need no privileges. Run one on each host, as root or with
CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK.

A process that uses the helper must run as root or in the group, must ask for an address of
the list, and must have a UDP socket, in the helper's network namespace, that is bound to that
address and a port. Only packets to that port bypass the network stack. Processes that share
an interface can harm each other, so all of them must be of one user at a time.

The program is attached for the first process, and detached after the last one. Processes
find the helper at /run/sluice/xdp.sock, or at SLUICE_XDP_SOCKET. It logs on standard
error, and ends on SIGTERM; its processes then go on through the network stack.

Only one queue of an interface is used. If the interface has several, either reduce them to
one ('ethtool -L NAME combined 1') or steer RoCE to that queue ('ethtool -N NAME flow-type
udp4 dst-port PORT action QUEUE'). Packets of other queues go through the network stack.`
