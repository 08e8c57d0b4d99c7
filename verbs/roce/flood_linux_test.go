package roce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// nuisance sends garbage to the port of an end: packets of random bytes, truncated ones, and ones
// with the right CRC, for QPs that do not exist, or for the end's QP with a PSN that is long past or
// far ahead, and keys that are right or wrong.
type nuisance struct {
	wire *udp
	flow flow
	to   *place
	psn  uint32 // of the first request to it
	own  uint32 // of its own first one
	rng  *rand.Rand
	sent atomic.Int64
	// trains are packets of one length, which the kernel accepts together: cheap to send, but not
	// to receive.
	trains bool
}

func newNuisance(t testing.TB, to *place, f flood) *nuisance {
	n := &nuisance{wire: openWire(t, "127.0.0.1"), to: to, rng: rand.New(rand.NewPCG(4, 7)), trains: f.trains}
	ep, err := to.qp.Endpoint()
	require.NoError(t, err)
	remote := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ep.LID)
	if f.elsewhere {
		sink := openWire(t, "127.0.0.1")
		t.Cleanup(sink.close)
		remote = sink.local()
	}
	n.flow.set(n.wire.local(), remote)
	a, err := to.qp.Query()
	require.NoError(t, err)
	n.psn, n.own = a.RQPSN, a.SQPSN
	return n
}

// send sends some.
func (n *nuisance) send() {
	ops := [...]packet.Opcode{packet.SendOnly, packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteOnly, packet.WriteOnlyImm,
		packet.ReadRequest, packet.CompareSwap, packet.FetchAdd, packet.Acknowledge, packet.AtomicAcknowledge, packet.ReadOnly, packet.CNP}
	some := 32
	if n.trains {
		some = trains * trainLen
		if n.sent.Load() > 0 { // the same once more
			n.wire.trainN = trains
			n.wire.send()
			n.sent.Add(int64(some))
			return
		}
	}
	for range some {
		size := n.rng.IntN(1500)
		if !n.trains && n.rng.IntN(4) == 0 {
			for i := range n.wire.frame(&n.flow, size&^3+12) {
				n.wire.out[n.wire.train[n.wire.trainN-1].last+i] = byte(n.rng.Uint32())
			}
			continue
		}
		h := packet.Header{Opcode: ops[n.rng.IntN(len(ops))], Migrated: true, AckReq: true, PKey: packet.DefaultPKey,
			DestQP: n.to.qp.QPNum(), VA: n.to.mem.Addr(), RKey: n.to.mem.RKey(), Length: uint32(size), SwapAdd: 1}
		// A window is 256 packets; packets up to half of all PSNs in the past are duplicates.
		first := n.psn
		if h.Opcode.Response() {
			first = n.own
		}
		h.PSN = (first - 2 - n.rng.Uint32N(1<<20)) & psnMask
		if n.rng.IntN(2) == 0 {
			h.PSN = (first + 1<<21 + n.rng.Uint32N(1<<20)) & psnMask
		}
		if n.rng.IntN(3) == 0 {
			h.DestQP = n.rng.Uint32() & psnMask
		}
		if n.rng.IntN(3) == 0 {
			h.RKey = n.rng.Uint32()
		}
		size &^= 3
		if n.trains {
			size = 128 - h.Len()
		}
		b := n.wire.frame(&n.flow, h.Len()+size)
		h.Append(b[:0])
		for i := range b[h.Len():] {
			b[h.Len()+i] = 0xee
		}
		if !n.trains && n.rng.IntN(8) == 0 { // cut off, with a CRC of what is left
			n.wire.cancel()
			copy(n.wire.frame(&n.flow, 12+n.rng.IntN(4)*4), b)
		}
	}
	n.wire.flush()
	n.sent.Add(int64(some))
}

// loopback connects two queue pairs over the loopback device.
func loopback(t testing.TB, size int) [2]*place {
	return connect(t, size, func(int) *verbs.Context {
		dev, err := verbs.Find(loop(t))
		require.NoError(t, err)
		ctx, err := dev.Open(verbs.Config{})
		require.NoError(t, err)
		return ctx
	})
}

// flood is how an end is flooded.
type flood struct {
	perSecond int // packets; 0: as many as there can be
	trains    bool
	elsewhere bool // to sockets that are not read: measures the cost of sending
}

// flooded runs a function while both ends are flooded, and returns how many packets were sent.
func flooded(t testing.TB, ends [2]*place, f flood, do func()) (packets int64) {
	var stop atomic.Bool
	begun := make(chan struct{}, len(ends))
	done := make(chan int64)
	for _, e := range ends {
		n := newNuisance(t, e, f)
		go func() {
			n.send()
			begun <- struct{}{}
			for start := time.Now(); !stop.Load(); {
				if f.perSecond > 0 && n.sent.Load() > int64(time.Since(start).Seconds()*float64(f.perSecond)) {
					time.Sleep(100 * time.Microsecond)
					continue
				}
				n.send()
				runtime.Gosched() // with one thread, 10 ms of it would be all that the engines' buffers hold
			}
			n.wire.close()
			done <- n.sent.Load()
		}()
	}
	for range ends {
		<-begun
	}
	do()
	stop.Store(true)
	return <-done + <-done
}

// TestFlood: while both ends are flooded, what is written and read arrives, nothing else is
// written, and memory does not grow.
func TestFlood(t *testing.T) {
	need.Full(t)
	const messages = 2
	ends := loopback(t, messages*lossySize)
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	for i, e := range ends {
		b := e.mem.Bytes()
		for k := range b {
			b[k] = byte(k>>8) + byte(k) + byte(100*i)
		}
	}
	want := append([]byte{}, ends[0].mem.Bytes()...)
	total := int64(0)
	least := need.InLong[int64](3000, 10_000)
	for round := 0; round < 2 || total < least; round++ {
		total += flooded(t, ends, flood{}, func() {
			ends[0].writes(t, ends[1], verbs.OpRDMAWrite, messages)
			ends[0].writes(t, ends[1], verbs.OpRDMARead, messages)
		})
		for _, e := range ends {
			require.True(t, string(want) == string(e.mem.Bytes()), "round %d", round)
			a, err := e.qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPRTS, a.QPState)
		}
	}
	t.Logf("%d packets", total)
	require.Less(t, held(), before+16<<20)
}

// The rate of a stream of 64 KiB messages over loopback, alone, while both ends are flooded, and while
// as much is sent to other sockets.
func BenchmarkFlood(b *testing.B) {
	stream := func(b *testing.B, run func(ends [2]*place, do func())) {
		ends := loopback(b, 16*lossySize)
		b.SetBytes(lossySize)
		run(ends, func() {
			b.ResetTimer()
			ends[0].writes(b, ends[1], verbs.OpRDMAWrite, b.N)
			b.StopTimer()
		})
	}
	b.Run("none", func(b *testing.B) { stream(b, func(_ [2]*place, do func()) { do() }) })
	for _, f := range []flood{{perSecond: 10_000}, {perSecond: 100_000}, {}, {perSecond: 1_000_000, trains: true}} {
		name := "most"
		if f.perSecond > 0 {
			name = fmt.Sprintf("%d packets a second", 2*f.perSecond)
		}
		for _, f.elsewhere = range []bool{false, true} {
			if f.elsewhere {
				name += " to others"
			}
			b.Run(name, func(b *testing.B) {
				stream(b, func(ends [2]*place, do func()) {
					before := cpuTime(b)
					start := time.Now()
					packets := flooded(b, ends, f, do)
					b.ReportMetric(float64(packets)/time.Since(start).Seconds(), "packets/s")
					b.ReportMetric((cpuTime(b)-before).Seconds()/time.Since(start).Seconds(), "CPUs")
				})
			})
		}
	}
}
