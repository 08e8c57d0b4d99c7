package startup

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Process is a process of a job, identified as in every packet.
type Process struct {
	Host HostID // host that it runs on
	PID  uint64 // unique among the processes with that host id
}

// Host is a host of a client. It listens for the other hosts and holds processes.
type Host struct {
	ID   HostID // the address that it listens on
	Port uint16 // the port there
	// AckMark is the number of packets per acknowledgement, at least 1. HiWater is the most packets
	// in flight to one process, at least AckMark.
	AckMark, HiWater uint32
	Processes        []Process // by rank, at least one
}

// Config describes a client of a job to [Dial]. Dial only reads it.
type Config struct {
	// Rank is the rank of this client in the job, from 0.
	Rank int
	// Auth lists the methods that the client offers. 0: AuthKey if Key is not 0, otherwise
	// AuthNone.
	Auth Methods
	// Key is the key that the server checks if it picks AuthKey.
	Key uint64
	// OldAuth sends AUTH in the form of the draft of 1999, which carries the key. Servers of this
	// package accept both forms.
	OldAuth bool

	// Hosts lists the hosts of this client in the order of their processes' ranks; at least one. An
	// AckMark of 0 means 10, and a HiWater of 0 means twice AckMark. A process with a Host of all
	// zeros gets the id of the host that it is listed under.
	Hosts []Host
	// PacketLen is the most bytes of user data that this client accepts in a packet. 0: 64 KiB.
	PacketLen uint32
	// TagUB is the largest tag, at least 32767. 0: 2147483647.
	TagUB int32
	// XSize is the number of bytes from which collectives use the protocols for long messages. All
	// clients must announce the same value. 0 and -1: 1024, the default of IMPI.
	XSize int32
	// MaxLinear is the most hosts for which collectives are linear. All clients must announce the
	// same value. 0 and -1: 4, the default of IMPI.
	MaxLinear int32
	// AnyMaxLinear says that foreign clients honour the agreed MaxLinear. Without it, a job with
	// foreign clients accepts only 4: LAM/MPI announces a number but always uses 4.
	AnyMaxLinear bool

	// Extra is submitted after the labels of the protocol, and reaches the clients of this package
	// that submit the same label. The labels must be above LabelSluice and in ascending order. The
	// data is opaque.
	Extra []Extra
	// MaxAnswer bounds the data that the server may send in one answer, in bytes.
	// 0: 64 MiB.
	MaxAnswer int
}

// Extra is data under a label chosen by the caller.
type Extra struct {
	Label Label
	Data  []byte
}

// Defaults and bounds: IMPI 0.0, Wire Protocols, The COLL command.
const (
	defaultXSize     = 1024
	defaultMaxLinear = 4
	minTagUB         = 32767
)

// Those of this package. The flow control's are LAM/MPI's.
const (
	defaultPacketLen = 64 << 10
	defaultAckMark   = 10
	defaultMaxAnswer = 64 << 20
)

// filled returns c with its zero values filled in, and hosts of its own.
func (c *Config) filled() (Config, error) {
	f := *c
	if f.Auth == 0 {
		f.Auth = AuthNone
		if f.Key != 0 {
			f.Auth = AuthKey
		}
	}
	if f.Auth&^(AuthNone|AuthKey) != 0 {
		return f, fmt.Errorf("%w: unknown methods in %#x", ErrInvalid, uint32(f.Auth))
	}
	if f.Rank < 0 || f.Rank >= MaxClients {
		return f, fmt.Errorf("%w: Rank is %d, not 0 to %d", ErrInvalid, f.Rank, MaxClients-1)
	}
	setDefault(&f.PacketLen, defaultPacketLen)
	setDefault(&f.TagUB, math.MaxInt32)
	setDefault(&f.XSize, -1)
	setDefault(&f.MaxLinear, -1)
	setDefault(&f.MaxAnswer, defaultMaxAnswer)
	switch {
	case f.TagUB < minTagUB:
		return f, fmt.Errorf("%w: TagUB is %d, the least is %d", ErrInvalid, f.TagUB, minTagUB)
	case f.XSize < -1:
		return f, fmt.Errorf("%w: XSize is %d: want -1 or more", ErrInvalid, f.XSize)
	case f.MaxLinear < -1:
		return f, fmt.Errorf("%w: MaxLinear is %d: want -1 or more", ErrInvalid, f.MaxLinear)
	case f.MaxAnswer < 0 || f.MaxAnswer > maxPayload-chdrLen:
		return f, fmt.Errorf("%w: MaxAnswer is %d: want 0 to %d", ErrInvalid, f.MaxAnswer, maxPayload-chdrLen)
	}
	if err := f.fillHosts(); err != nil {
		return f, err
	}
	last := LabelSluice
	for _, x := range f.Extra {
		if x.Label <= last {
			return f, fmt.Errorf("%w: label %v follows %v: the labels must ascend", ErrInvalid, x.Label, last)
		}
		last = x.Label
	}
	return f, nil
}

func (c *Config) fillHosts() error {
	if len(c.Hosts) == 0 {
		return fmt.Errorf("%w: Hosts is empty", ErrInvalid)
	}
	c.Hosts = slices.Clone(c.Hosts)
	seen := make(map[Process]bool)
	for i := range c.Hosts {
		h := &c.Hosts[i]
		if h.ID == (HostID{}) {
			return fmt.Errorf("%w: host %d has no address", ErrInvalid, i)
		}
		setDefault(&h.AckMark, defaultAckMark)
		if h.HiWater == 0 {
			h.HiWater = max(h.AckMark, 2*h.AckMark) // the product may overflow
		}
		if h.HiWater < h.AckMark {
			return fmt.Errorf("%w: host %d: HiWater %d is less than AckMark %d", ErrInvalid, i, h.HiWater, h.AckMark)
		}
		if len(h.Processes) == 0 {
			return fmt.Errorf("%w: host %d has no processes", ErrInvalid, i)
		}
		h.Processes = slices.Clone(h.Processes)
		for k := range h.Processes {
			p := &h.Processes[k]
			setDefault(&p.Host, h.ID)
			if seen[*p] {
				return fmt.Errorf("%w: two processes have id %d on %v", ErrInvalid, p.PID, p.Host)
			}
			seen[*p] = true
		}
	}
	return nil
}

// submissions returns what the client submits, in ascending order of labels.
func (c *Config) submissions() []collCommand {
	perClient := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	var ipv6, port, nprocs, ackMark, hiWater, procIPv6, procPID []byte
	processes := 0
	for _, h := range c.Hosts {
		ipv6 = append(ipv6, h.ID[:]...)
		port = binary.BigEndian.AppendUint32(port, uint32(h.Port))
		nprocs = binary.BigEndian.AppendUint32(nprocs, uint32(len(h.Processes)))
		ackMark = binary.BigEndian.AppendUint32(ackMark, h.AckMark)
		hiWater = binary.BigEndian.AppendUint32(hiWater, h.HiWater)
		for _, p := range h.Processes {
			procIPv6 = append(procIPv6, p.Host[:]...)
			procPID = binary.BigEndian.AppendUint64(procPID, p.PID)
		}
		processes += len(h.Processes)
	}
	list := []collCommand{
		{LabelVersion, make([]byte, 8)}, // 0.0
		{LabelNHosts, perClient(uint32(len(c.Hosts)))},
		{LabelNProcs, perClient(uint32(processes))},
		{LabelPktLen, perClient(c.PacketLen)},
		{LabelTagUB, perClient(uint32(c.TagUB))},
		{LabelXSize, perClient(uint32(c.XSize))},
		{LabelMaxLinear, perClient(uint32(c.MaxLinear))},
		{LabelHostIPv6, ipv6},
		{LabelHostPort, port},
		{LabelHostNProcs, nprocs},
		{LabelHostAckMark, ackMark},
		{LabelHostHiWater, hiWater},
		{LabelProcIPv6, procIPv6},
		{LabelProcPID, procPID},
		{LabelSluice, appendSluice(nil)},
	}
	for _, x := range c.Extra {
		list = append(list, collCommand{x.Label, appendFramed(nil, x.Data)})
	}
	return list
}
