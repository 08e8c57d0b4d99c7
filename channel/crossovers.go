package channel

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// eagerQueued is the default of the largest eager message, for every provider; each
// buffer has that size.
const eagerQueued = 8 << 10

// crossovers are the message and block sizes, in bytes, at which another transfer
// method takes over. Those of tcp were measured on loopback (EPYC, 2 CPUs, Linux 6.18;
// medians of 7 rounds, in µs), those of RDMA over soft-RoCE in the guest (internal/vm,
// 10 rounds). On hardware they have not been measured. To measure them, run
//
//	go test -run '^$' -bench Queue -benchtime 100x ./channel
//
// or "bench tune --what eager,pack", which prints the settings for other machines.
//
// Both ends of a queue use the same provider, so they have the same crossovers.
type crossovers struct {
	// eager is the largest message that is copied at both ends.
	// Half a round trip over tcp, copied vs direct: 10 and 30 at 4 KiB, 14 and 18 at
	// 8 KiB, 31 and 18 at 16 KiB.
	eager int
	// pack is the average block size below which a message that is not eager is packed,
	// or received packed. 512 KiB over tcp, packed vs block by block: with blocks at
	// both ends 190 and 430 at 2 KiB, 146 and 317 at 4 KiB, 187 and 171 at 16 KiB; with
	// blocks at one end 152 and 136 at 4 KiB, 177 and 91 at 16 KiB. Over RDMA, in ms,
	// with blocks at both ends: 15 and 78 at 256 B, 13 and 42 at 512 B, 20 and 22 at
	// 1 KiB, 18 and 19 at 2 KiB, 16 and 20 at 4 KiB, 19 and 20 at 16 KiB. Near equality
	// a message is not packed, which saves memory and a copy. RDMA has the eager size of
	// tcp: in the guest, runs of 1 to 64 KiB vary more than the two methods differ.
	pack int
	// read is the average size of the sender's blocks from which the receiver reads
	// even if it has fewer blocks than the sender. Each block takes an RDMA_READ, while
	// the sender gathers up to maxSGE blocks for a write. 512 KiB over tcp, read vs
	// written: 379 and 191 at 4 KiB, 182 and 203 at 16 KiB, 162 and 191 at 64 KiB, 139
	// and 139 in one block.
	read int
}

// They are variables so that benchmarks and tests can compare both sides of them.
var (
	crossoversTCP  = crossovers{eager: eagerQueued, pack: 8 << 10, read: 16 << 10}
	crossoversRDMA = crossovers{eager: eagerQueued, pack: 1 << 10, read: 16 << 10}
)

// crossovers returns those of the device's provider.
func (d *device) crossovers() *crossovers {
	if d.rdma {
		return &d.node.opt.rdma
	}
	return &d.node.opt.tcp
}

// Environment variables, also accepted by [WithTuning] and in a tuning file, with the sizes
// in bytes at which messages between hosts switch to another transfer method. A value of
// -1, or none, means the default. "bench tune" measures them.
const (
	// EnvEagerTCP and EnvEagerRDMA set the length of the longest eager message, which is
	// copied at both ends and sent before its receiver is ready: 4096 to 65536, by default
	// 8192. Each peer has at most 128 buffers of that length. Up to 4096 bytes a send is complete
	// without its receive on every provider, whatever is set.
	EnvEagerTCP  = "SLUICE_TCP_EAGER"
	EnvEagerRDMA = "SLUICE_RDMA_EAGER"
	// EnvPackTCP and EnvPackRDMA set the average block length below which a longer message
	// is packed into contiguous memory; by default 8192 and 1024.
	EnvPackTCP  = "SLUICE_TCP_PACK"
	EnvPackRDMA = "SLUICE_RDMA_PACK"
	// EnvReadTCP and EnvReadRDMA set the average length of the sender's blocks from which
	// the receiver reads them, even if it has fewer blocks itself; by default 16384.
	EnvReadTCP  = "SLUICE_TCP_READ"
	EnvReadRDMA = "SLUICE_RDMA_READ"
)

const (
	leastEager    = eagerMax // as over shared memory: see the package documentation
	mostEager     = 64 << 10
	mostCrossover = 1 << 30
)

// routes are the crossovers of all providers.
type routes struct{ tcp, rdma crossovers }

// crossing is one crossover and its variable.
type crossing struct {
	variable    string
	value       *int
	least, most int
}

func (r *routes) list() []crossing {
	return []crossing{
		{EnvEagerTCP, &r.tcp.eager, leastEager, mostEager},
		{EnvPackTCP, &r.tcp.pack, 0, mostCrossover},
		{EnvReadTCP, &r.tcp.read, 0, mostCrossover},
		{EnvEagerRDMA, &r.rdma.eager, leastEager, mostEager},
		{EnvPackRDMA, &r.rdma.pack, 0, mostCrossover},
		{EnvReadRDMA, &r.rdma.read, 0, mostCrossover},
	}
}

// settingNames returns the names of all settings that [WithTuning] accepts.
func settingNames() []string {
	names := coll.Variables()
	for _, c := range new(routes).list() {
		names = append(names, c.variable)
	}
	return names
}

// parseRoutes reads the settings; those not set have their defaults.
func parseRoutes(getenv func(string) string) (routes, error) {
	r := routes{crossoversTCP, crossoversRDMA}
	for _, c := range r.list() {
		text := strings.TrimSpace(getenv(c.variable))
		if text == "" {
			continue
		}
		v, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return r, fmt.Errorf("%s=%q: not a number", c.variable, text)
		case v != -1 && (v < c.least || v > c.most):
			return r, fmt.Errorf("%s=%q: must be from %d to %d, or -1 for the default", c.variable, text, c.least, c.most)
		case v >= 0:
			*c.value = v
		}
	}
	return r, nil
}

// append appends the crossovers as bytes, in the order of list.
func (r routes) append(b []byte) []byte {
	for _, c := range r.list() {
		b = binary.LittleEndian.AppendUint32(b, uint32(*c.value))
	}
	return b
}

// settings are what all ranks must have alike: collectives are planned by them, and both ends of a
// queue have buffers of the eager size.
type settings struct {
	coll   coll.Settings
	routes routes
}

func (s settings) append(b []byte) ([]byte, error) {
	b, err := s.coll.AppendBinary(b)
	return s.routes.append(b), err
}

// parseSettings parses those of a rank, and returns what follows them.
func parseSettings(b []byte) (s settings, rest []byte, err error) {
	k, err := s.coll.ParseBinary(b)
	if err != nil {
		return s, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	b = b[k:]
	list := s.routes.list()
	if len(b) < 4*len(list) {
		return s, nil, fmt.Errorf("%w: %d bytes of crossovers", ErrProtocol, len(b))
	}
	for i, c := range list {
		*c.value = int(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return s, b[4*len(list):], nil
}

// differ says what differs, as in "COLL_XSIZE is 1024 and 2048"; "" if nothing does.
func (s settings) differ(o settings) string {
	var differ []string
	if text := coll.Diff(s.coll, o.coll); text != "" {
		differ = append(differ, text)
	}
	theirs := o.routes.list()
	for i, c := range s.routes.list() {
		if *c.value != *theirs[i].value {
			differ = append(differ, fmt.Sprintf("%s is %d and %d", c.variable, *c.value, *theirs[i].value))
		}
	}
	return strings.Join(differ, ", ")
}

// DefaultCrossover returns the default, in bytes, of a message crossover, which is
// [EnvEagerTCP] or one of the constants after it; -1 for any other name.
func DefaultCrossover(variable string) int {
	r := routes{crossoversTCP, crossoversRDMA}
	for _, c := range r.list() {
		if c.variable == variable {
			return *c.value
		}
	}
	return -1
}
