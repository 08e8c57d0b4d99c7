package impi

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
)

// Config says how a process takes part in a job. The zero Config is good for most.
type Config struct {
	// Client is the rank of this process as a client of the server; Join only.
	Client int
	// Node is this process's place in a job whose ranks together are one client: all of
	// them call Join, with the same Config but for Addr, and rank 0 talks to the server.
	// Each rank is a host of the client, in their order. The node stays the caller's, and
	// is not used after Join. nil: this process alone is the client. Join only.
	Node *channel.Node
	// Auth are the methods that the client offers to the server, and Key what it wants
	// to see for [startup.AuthKey]: see [startup.Config]. Clients of this package also
	// prove to each other that they know the key. Join only.
	Auth startup.Methods
	Key  uint64
	// XSize and MaxLinear are the collective crossover values, equal at all clients: see
	// [startup.Config]. Join only.
	XSize, MaxLinear int32
	// AnyMaxLinear says that foreign clients follow the agreed MaxLinear; LAM/MPI does
	// not. Join only.
	AnyMaxLinear bool

	// Processes of the job that this process of the operating system is, with ranks
	// that follow each other: [Job.Worlds]. 0: 1.
	Processes int
	// Addr is the address to listen on and to be known by. The zero Addr: of Join, the
	// one by which the server is reached; of FromNode, all.
	Addr netip.Addr

	// PacketLen is the most bytes of user data in a packet; messages up to that are
	// eager. A pair of processes uses the smaller. 0: 64 KiB.
	PacketLen uint32
	// AckMark is for how many packets one acknowledgement is sent, HiWater how many may
	// be in flight from one process to another; a pair uses the smaller. 0: 32, and four
	// times AckMark.
	AckMark, HiWater uint32
	// Unexpected is how many bytes may wait for a receive, from each process to each
	// other; beyond, the connection fails with [ErrOverflow]. Within a host, and over
	// queue pairs for messages longer than their packets when half of it is taken, sends
	// beyond are complete only when they are received. 0: 256 MiB.
	Unexpected int
	// Dialect of foreign clients' packets.
	Dialect packet.Dialect
	// PeerTimeout is how long a peer may take to connect, or to answer when the job is
	// closed, and its host may be silent, in seconds and at least 2. 0: 10 s.
	PeerTimeout time.Duration
	// Providers of verbs that carry packets between processes of this package, in order
	// of preference. nil: shm within a host, then ibv. Empty, but not nil: TCP only.
	Providers []string
	// Log is told of hosts that connect and are lost. nil: slog.Default.
	Log *slog.Logger
}

// complete puts the defaults in place.
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
	switch {
	case c.Processes < 0 || c.Processes > maxProcesses:
		return c, fmt.Errorf("%w: %d processes, 1 to %d", ErrInvalid, c.Processes, maxProcesses)
	case c.HiWater < c.AckMark:
		return c, fmt.Errorf("%w: HiWater %d below AckMark %d", ErrInvalid, c.HiWater, c.AckMark)
	case c.PacketLen > maxPacketLen:
		return c, fmt.Errorf("%w: packets of %d bytes, at most %d", ErrInvalid, c.PacketLen, maxPacketLen)
	case c.Unexpected < 0:
		return c, fmt.Errorf("%w: %d unexpected bytes", ErrInvalid, c.Unexpected)
	}
	return c, nil
}

const (
	maxProcesses = 256
	maxPacketLen = 16 << 20
)
