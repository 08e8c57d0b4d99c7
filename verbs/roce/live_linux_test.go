package roce

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// live is a network in memory that runs in real time: each of its adapters has a driver, and their
// users are goroutines of this process.
type live struct {
	mu    sync.Mutex // of all
	net   *network
	wires map[*memory]*liveWire
	began time.Time
	later *time.Timer // for the first packet on its way
}

// liveWire is a wire of it.
type liveWire struct {
	*memory
	live  *live
	event int // eventfd: there are packets, or reports
	told  bool
	dead  []report
}

func newLive(seed uint64, f faults) *live {
	l := &live{net: newNetwork(seed, f), wires: map[*memory]*liveWire{}, began: time.Now().Add(-1)}
	l.later = time.AfterFunc(time.Hour, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.move()
	})
	return l
}

func (l *live) clock() int64 { return int64(time.Since(l.began)) }

// move delivers the packets that are due. The caller holds mu.
func (l *live) move() {
	l.net.now = l.clock()
	l.net.deliver()
	for _, w := range l.wires {
		w.tell()
	}
	if f := l.net.flying; len(f) > 0 {
		l.later.Reset(time.Duration(f[0].at - l.net.now))
	}
}

// tell wakes the driver if there is something to receive. The caller holds mu.
func (w *liveWire) tell() {
	if some := len(w.inbox) > 0 || len(w.dead) > 0; some != w.told {
		w.told = some
		b := [8]byte{1}
		if some {
			unix.Write(w.event, b[:])
		} else {
			unix.Read(w.event, b[:])
		}
	}
}

func (w *liveWire) frame(f *flow, n int) []byte {
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	return w.memory.frame(f, n)
}

func (w *liveWire) flush() {
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	for i, f := range w.flows {
		if w.net.wires[f.remote] == nil {
			r := report{to: f.remote}
			r.packet.ParseBTH(w.out[i].b)
			w.dead = append(w.dead, r)
		}
	}
	w.net.now = w.live.clock()
	w.memory.flush()
	w.live.move()
}

func (w *liveWire) recv(into []arrival) int {
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	n := w.memory.recv(into)
	w.tell()
	return n
}

func (w *liveWire) unreachable() (report, bool) {
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	if len(w.dead) == 0 {
		return report{}, false
	}
	r := w.dead[0]
	w.dead = w.dead[:copy(w.dead, w.dead[1:])]
	w.tell()
	return r, true
}

func (w *liveWire) close() {
	w.live.mu.Lock()
	defer w.live.mu.Unlock()
	w.memory.close()
	delete(w.live.wires, w.memory)
	unix.Close(w.event)
}

// inMemory is a provider whose only device is on the network of the running test.
type inMemory struct{ net *live }

func (*inMemory) Name() string       { return "memory" }
func (*inMemory) Rank() int          { return 1 << 20 }
func (*inMemory) Probe() verbs.Probe { return verbs.Probe{Answer: verbs.Yes} }
func (*inMemory) Devices() ([]verbs.DeviceInfo, error) {
	return []verbs.DeviceInfo{{Name: "memory0"}}, nil
}
func (p *inMemory) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	l := p.net
	if l == nil {
		return nil, verbs.Errorf(device, "open", verbs.ErrInvalid, "no test has a network")
	}
	a, err := l.open(device, cfg, func(w *liveWire) wire { return w })
	if err != nil {
		return nil, err
	}
	if l.net.faults.foreign {
		return stranger{a}, nil
	}
	return a, nil
}

// open adds an adapter over a wire.
func (l *live) open(device string, cfg verbs.Config, over func(*liveWire) wire) (*adapter, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	addr := netip.AddrFrom4([4]byte{10, 0, 0, 1})
	for l.net.wires[netip.AddrPortFrom(addr, packet.Port)] != nil {
		addr = addr.Next()
	}
	w := &liveWire{memory: l.net.join(addr), live: l, event: event}
	l.wires[w.memory] = w
	l.mu.Unlock()
	a := newAdapter(device, "", cfg, over(w), l.clock)
	if err := startDriver(a, nil, event); err != nil {
		w.close()
		return nil, err
	}
	return a, nil
}

// stranger does not say that it is of this library.
type stranger struct{ *adapter }

func (s stranger) QueryPort(port int) (verbs.PortAttr, error) {
	p, err := s.adapter.QueryPort(port)
	p.LID = 0
	return p, err
}

var memories = new(inMemory)

func init() { verbs.Register(memories) }

// TestMemoryConformance: the engine alone, over a network that loses nothing, and over one that loses,
// duplicates, delays, reorders and corrupts; and over both as if the peer were an adapter.
func TestMemoryConformance(t *testing.T) {
	faulty := faults{drop: 0.01, double: 0.01, reorder: 0.02, corrupt: 0.005, mark: 0.01, delay: 10 * time.Microsecond}
	foreign := faulty
	foreign.foreign = true
	for wire, f := range map[string]faults{wireFaultless: {}, wireFaulty: faulty, wireForeign: {foreign: true}, wireForeignFaulty: foreign} {
		if len(groupsOver(wire)) == 0 {
			continue
		}
		t.Run(wire, func(t *testing.T) {
			if f.drop > 0 {
				need.NoRace(t, "an RDMA READ that comes once more reads what its owner may write again")
			}
			seed := uint64(time.Now().UnixNano())
			t.Logf("faults are of seed %d", seed)
			rounds := need.InLong(1, 2)
			memories.net = newLive(seed, f)
			defer memories.net.later.Stop()
			verbstest.Run(t, verbstest.Suite{Device: "memory0", Local: true, Rounds: rounds, Only: groupsOver(wire),
				// Data read from an adapter arrives in parts.
				Deviations: verbstest.Deviations{PartialReads: f.foreign}})
		})
	}
}
