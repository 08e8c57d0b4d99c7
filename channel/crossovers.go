package channel

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// eagerQueued is the largest eager message, for which buffers are, of every provider,
// where no setting says otherwise.
const eagerQueued = 8 << 10

// crossovers are sizes in bytes at which the way of a message changes. Those of tcp are
// what was measured on loopback (EPYC, 2 CPUs, Linux 6.18; medians of 7 rounds, in
// µs), those of RDMA what was over soft-RoCE in the guest (internal/vm, 10 rounds); on
// hardware they have not been measured:
//
//	go test -run '^$' -bench Queue -benchtime 100x ./channel
//
// and by "bench tune --what eager,pack", which prints what to set on other machines.
//
// Both ends of a queue are of the same provider, and have the same.
type crossovers struct {
	// eager is the largest message that is copied at both ends.
	// Half a round trip over tcp, copied against straight: 10 and 30 at 4 KiB, 14 and
	// 18 at 8 KiB, 31 and 18 at 16 KiB.
	eager int
	// pack is the size of blocks, on average, below which a message that is not eager
	// is packed, or received packed. 512 KiB over tcp, packed against block by block:
	// of blocks at both ends 190 and 430 at 2 KiB, 146 and 317 at 4 KiB, 187 and 171
	// at 16 KiB; of blocks at one end 152 and 136 at 4 KiB, 177 and 91 at 16 KiB. Over
	// RDMA, in ms, of blocks at both ends: 15 and 78 at 256 B, 13 and 42 at 512 B, 20
	// and 22 at 1 KiB, 18 and 19 at 2 KiB, 16 and 20 at 4 KiB, 19 and 20 at 16 KiB:
	// what is not packed costs no memory and no copy. The eager size of RDMA is that of
	// tcp: in the guest rounds of 1 to 64 KiB vary more than their ways differ.
	pack int
	// read is the size of the sender's blocks, on average, from which on the receiver
	// reads although it has fewer blocks than the sender: each takes an RDMA_READ,
	// where the sender gathers up to maxSGE for a write. 512 KiB over tcp, read
	// against written: 379 and 191 at 4 KiB, 182 and 203 at 16 KiB, 162 and 191 at
	// 64 KiB, 139 and 139 in one block.
	read int
}

// They are variables for the benchmark and tests, which compare what is on both sides
// of them.
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

// Variables of the environment, and settings of [WithTuning] and of a file, that say from
// which size on messages between hosts go another way, in bytes; -1, or none, is the
// default. "bench tune" measures them.
const (
	// EnvEagerTCP and EnvEagerRDMA are the length of the longest message that is copied
	// at both ends, without asking the receiver first: 0 to 65536, by default 8192. For
	// each peer there are 128 buffers of that length at most.
	EnvEagerTCP  = "SLUICE_TCP_EAGER"
	EnvEagerRDMA = "SLUICE_RDMA_EAGER"
	// EnvPackTCP and EnvPackRDMA are the length of blocks, on average, below which a longer
	// message is packed into one piece of memory, by default 8192 and 1024.
	EnvPackTCP  = "SLUICE_TCP_PACK"
	EnvPackRDMA = "SLUICE_RDMA_PACK"
	// EnvReadTCP and EnvReadRDMA are the length of the sender's blocks, on average, from
	// which on the receiver reads them, though it has fewer blocks; by default 16384.
	EnvReadTCP  = "SLUICE_TCP_READ"
	EnvReadRDMA = "SLUICE_RDMA_READ"
)

const (
	mostEager     = 64 << 10
	mostCrossover = 1 << 30
)

// routes are the crossovers of all providers.
type routes struct{ tcp, rdma crossovers }

// crossing is one of them, by its variable.
type crossing struct {
	variable string
	value    *int
	most     int
}

func (r *routes) list() []crossing {
	return []crossing{
		{EnvEagerTCP, &r.tcp.eager, mostEager},
		{EnvPackTCP, &r.tcp.pack, mostCrossover},
		{EnvReadTCP, &r.tcp.read, mostCrossover},
		{EnvEagerRDMA, &r.rdma.eager, mostEager},
		{EnvPackRDMA, &r.rdma.pack, mostCrossover},
		{EnvReadRDMA, &r.rdma.read, mostCrossover},
	}
}

// settings are the names of all that [WithTuning] takes.
func settings() []string {
	names := coll.Variables()
	for _, c := range new(routes).list() {
		names = append(names, c.variable)
	}
	return names
}

// parseRoutes reads the settings; what is not set is as by default.
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
		case v != -1 && (v < 0 || v > c.most):
			return r, fmt.Errorf("%s=%q: not within 0 and %d, nor -1", c.variable, text, c.most)
		case v >= 0:
			*c.value = v
		}
	}
	return r, nil
}

// append appends them as bytes, in the order of list.
func (r routes) append(b []byte) []byte {
	for _, c := range r.list() {
		b = binary.LittleEndian.AppendUint32(b, uint32(*c.value))
	}
	return b
}

// differ says which are not those of another rank, b, and returns what is behind them.
// Both ends of a queue have to have the same: the buffers are as long as eager messages.
func (r routes) differ(b []byte) (string, []byte, error) {
	list := r.list()
	if len(b) < 4*len(list) {
		return "", nil, fmt.Errorf("%w: %d bytes of crossovers", ErrProtocol, len(b))
	}
	var differ []string
	for i, c := range list {
		if theirs := binary.LittleEndian.Uint32(b[4*i:]); theirs != uint32(*c.value) {
			differ = append(differ, fmt.Sprintf("%s is %d and %d", c.variable, *c.value, theirs))
		}
	}
	return strings.Join(differ, ", "), b[4*len(list):], nil
}

// DefaultCrossover returns the bytes of a setting of messages, [EnvEagerTCP] and those
// that follow it, where nothing says otherwise; -1 of any other name.
func DefaultCrossover(variable string) int {
	r := routes{crossoversTCP, crossoversRDMA}
	for _, c := range r.list() {
		if c.variable == variable {
			return *c.value
		}
	}
	return -1
}
