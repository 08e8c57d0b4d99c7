package impi

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// Config says how a process takes part in a job. The zero Config suits most jobs.
type Config struct {
	// Client is the rank of this process as a client of the server; Join only.
	Client int
	// Node is this process's place in a job that joins as one client. All of them call
	// Join with the same Config except for Addr; rank 0 talks to the server. Each rank is a host of
	// the client, in rank order. The node still belongs to the caller and is not used after Join.
	// nil: this process alone is the client. Join only.
	Node *channel.Node
	// Auth lists the methods that the client offers to the server; Key is the key that the server
	// checks for [startup.AuthKey] (see [startup.Config]). Clients of this package also prove to
	// each other that they know the key. Join only.
	Auth startup.Methods
	Key  uint64
	// XSize and MaxLinear are the crossover values of collectives, which must be equal on all
	// clients: see [startup.Config]. Join only.
	XSize, MaxLinear int32
	// AnyMaxLinear says that foreign clients honour the agreed MaxLinear; LAM/MPI does not. Join
	// only.
	AnyMaxLinear bool

	// Processes is the number of consecutive ranks of the job that this operating system process
	// holds: see [Job.Worlds]. 0: 1.
	Processes int
	// Addr is the address to listen on and to announce to peers. The zero Addr: in Join, the
	// address from which the server is reached; in FromNode, all addresses.
	Addr netip.Addr

	// PacketLen is the most bytes of user data in a packet; messages up to that length are eager. A
	// pair of processes uses the smaller of its two values. Once a longer message is being received,
	// processes of this package may use longer packets. 0: 64 KiB.
	PacketLen uint32
	// AckMark is the number of packets per acknowledgement; HiWater is the most packets in flight
	// from one process to another. A pair uses the smaller of its two values. 0: 32, and four times
	// AckMark.
	AckMark, HiWater uint32
	// Unexpected is how many bytes from one process may wait for a receive at another; beyond that
	// the connection fails with [ErrOverflow]. Two kinds of sends complete only when they are
	// received instead of failing: those within a host beyond the bound, and, over queue pairs,
	// messages longer than a queue pair's packet once half the bound is taken. 0: 256 MiB.
	Unexpected int
	// Dialect is that of the packets exchanged with foreign clients.
	Dialect packet.Dialect
	// PeerTimeout bounds how long a foreign peer may take to connect, and how long Close waits for any
	// peer to receive what has been started, or to answer. Rounded to whole seconds, at least 2, it
	// bounds how long the host of a peer may be silent. 0: 10 s. A peer of this package that takes longer to connect is
	// logged, and waited for while it runs. Time in which this process is stopped does not count.
	PeerTimeout time.Duration
	warnAfter   time.Duration // a wait to connect; 0: PeerTimeout
	// Providers are the verbs providers that may carry packets between processes of this package,
	// in order of preference; TCP is used where none does. nil: those of the variable
	// SLUICE_TRANSPORT (see [channel.EnvTransport]), where tcp means TCP; joining fails if none of them
	// works between two hosts. If it is not set: shm within a host, then ibv. Empty but not nil: TCP only.
	Providers []string
	// Wait says how a goroutine waits for messages, as [channel.WithWait] does. "": what the
	// variable SLUICE_WAIT says, or else what fits.
	Wait string
	// Log receives records of hosts that connect and are lost. nil: slog.Default.
	Log *slog.Logger

	named string                   // the value of the variable, if TCP is not among its names
	env   func(name string) string // of channel.Environment
	waits wait.Setting
}

// complete fills in the defaults and validates the fields.
func (c Config) complete() (Config, error) {
	if c.Processes == 0 {
		c.Processes = 1
	}
	if c.PacketLen == 0 {
		c.PacketLen = 64 << 10
	}
	if c.AckMark == 0 {
		c.AckMark = 32
	}
	if c.HiWater == 0 {
		c.HiWater = 4 * c.AckMark
	}
	if c.Unexpected == 0 {
		c.Unexpected = 256 << 20
	}
	if c.PeerTimeout == 0 {
		c.PeerTimeout = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	var err error
	if c.env, err = channel.Environment(); err != nil {
		return c, err
	}
	if c.waits, err = wait.SettingOf(c.Wait, c.env(channel.EnvWait)); err != nil {
		return c, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if value := c.env(channel.EnvTransport); c.Providers == nil && value != "" {
		c.Providers, c.named = []string{}, value
		known := verbs.Providers()
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name == "tcp" {
				c.named = "" // what follows would be of no use
				break
			}
			if !slices.ContainsFunc(known, func(p verbs.ProviderInfo) bool { return p.Name == name }) {
				return c, fmt.Errorf("%w: %s=%q: there is no provider %q", ErrInvalid, channel.EnvTransport, value, name)
			}
			c.Providers = append(c.Providers, name)
		}
	}
	switch {
	case c.Processes < 0 || c.Processes > maxProcesses:
		return c, fmt.Errorf("%w: Processes is %d, not 1 to %d", ErrInvalid, c.Processes, maxProcesses)
	case c.HiWater < c.AckMark:
		return c, fmt.Errorf("%w: HiWater %d is less than AckMark %d", ErrInvalid, c.HiWater, c.AckMark)
	case c.PacketLen > maxPacketLen:
		return c, fmt.Errorf("%w: PacketLen is %d, the most is %d", ErrInvalid, c.PacketLen, maxPacketLen)
	case c.Unexpected < 0:
		return c, fmt.Errorf("%w: Unexpected is %d: it must not be negative", ErrInvalid, c.Unexpected)
	}
	return c, nil
}

const (
	maxProcesses = 256
	maxPacketLen = 16 << 20
)
