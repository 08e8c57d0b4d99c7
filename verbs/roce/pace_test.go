package roce

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// keep makes a keep eight messages of 64 KiB in flight to or from b for a while of virtual time, and
// returns the bytes moved per second. It calls watch before each step.
func (n *network) keep(t testing.TB, a, b *side, op verbs.Opcode, d time.Duration, watch func()) float64 {
	const size, deep = 64 << 10, 8
	begin, from := n.now, len(a.done)
	for n.now < begin+int64(d) {
		a.poll(t)
		for a.posted-len(a.done) < deep {
			off := a.posted % deep * size
			a.post(t, verbs.SendWR{Opcode: op, SGList: []verbs.SGE{a.sge(a.local, off, size)},
				RemoteAddr: b.mem.Addr() + uint64(off), RKey: b.mem.RKey()})
		}
		watch()
		require.True(t, n.step())
	}
	for _, wc := range a.done[from:] {
		require.NoError(t, wc.Err())
	}
	return float64((len(a.done)-from)*size) / (float64(n.now-begin) / 1e9)
}

// stream writes for a while of virtual time, and returns the bytes per second.
func stream(t testing.TB, f faults, d time.Duration) float64 {
	n, a, b := pair(t, 1, f, usual, 16)
	rand.NewChaCha8([32]byte{1}).Read(a.local.Buf)
	rate := n.keep(t, a, b, verbs.OpRDMAWrite, d, func() {})
	require.Equal(t, string(a.local.Buf[:512<<10]), string(b.mem.Buf[:512<<10]))
	return rate
}

// A stream keeps more than half of its rate when one packet in a hundred is lost on a path of 1 GB/s
// with a round trip of 200 µs, and uses much of the link when none is.
func TestLossyStream(t *testing.T) {
	t.Parallel()
	need.Full(t)
	path := faults{delay: 100 * time.Microsecond, bytesPerSecond: 1e9, queue: time.Millisecond}
	d := need.InLong(20*time.Millisecond, 100*time.Millisecond)
	whole := stream(t, path, d)
	require.Greater(t, whole, 0.8e9)
	path.drop = 0.01
	lossy := stream(t, path, d)
	t.Logf("%.0f MB/s, with loss %.0f", whole/1e6, lossy/1e6)
	require.Greater(t, lossy, whole/2)
}

// Loss below one packet in ten costs resends and the wait for them, but not the window: the rate falls
// slowly.
func TestLossTable(t *testing.T) {
	t.Parallel()
	need.Full(t)
	d, losses := 20*time.Millisecond, []float64{0.02, 0.05, 0.08}
	if need.WantLong() {
		d, losses = 50*time.Millisecond, []float64{0.01, 0.02, 0.03, 0.05, 0.08}
	}
	for _, c := range []struct {
		delay time.Duration
		below float64 // what is left at up to 5 %
		at8   float64
	}{{20 * time.Microsecond, 0.75, 0.5}, {100 * time.Microsecond, 0.4, 0.12}} {
		path := faults{delay: c.delay, bytesPerSecond: 1e9, queue: time.Millisecond}
		whole := stream(t, path, d)
		for _, path.drop = range losses {
			rate, least := stream(t, path, d), c.below
			if path.drop > 0.05 {
				least = c.at8
			}
			t.Logf("%v there, %.0f %% lost: %.0f of %.0f MB/s", c.delay, 100*path.drop, rate/1e6, whole/1e6)
			require.Greater(t, rate, least*whole)
		}
	}
}

// After so many packets without loss that their count is in the upper half of its range, loss costs as
// much as on a new connection.
func TestLossAfterWrap(t *testing.T) {
	t.Parallel()
	need.Full(t)
	var rates []float64
	for _, clock := range []uint32{0, 1<<31 - 1000} {
		n, a, b := pair(t, 1, faults{delay: 20 * time.Microsecond, bytesPerSecond: 1e9, queue: time.Millisecond}, usual, 16)
		a.qp.req.clock = clock // as when all of them have been acknowledged
		n.keep(t, a, b, verbs.OpRDMAWrite, 5*time.Millisecond, func() {})
		require.Greater(t, a.qp.req.clock, clock+1000)
		n.faults.drop = 0.01
		rates = append(rates, n.keep(t, a, b, verbs.OpRDMAWrite, 20*time.Millisecond, func() {}))
	}
	t.Logf("%.0f MB/s, %.0f after the wrap", rates[0]/1e6, rates[1]/1e6)
	require.Greater(t, rates[1], 0.9*rates[0])
}

// Loss of more than one packet in ten is taken for congestion: the window does not
// stay open.
func TestPersistentLoss(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, drop := range []float64{0.15, 0.3} {
		n, a, b := pair(t, 1, faults{drop: drop, delay: 20 * time.Microsecond}, usual, 16)
		n.keep(t, a, b, verbs.OpRDMAWrite, 50*time.Millisecond, func() {})
		sum, steps := 0.0, 0.0
		n.keep(t, a, b, verbs.OpRDMAWrite, 100*time.Millisecond, func() {
			sum += a.qp.req.pace.window
			steps++
		})
		require.Less(t, sum/steps, float64(firstWindow)) // of 255 that it may have
		require.NotEmpty(t, a.done)
	}
}

// A path that becomes longer permanently is used like one that was as long from the start.
func TestLongerPath(t *testing.T) {
	t.Parallel()
	need.Full(t)
	short, long := 20*time.Microsecond, 700*time.Microsecond
	var rates []float64
	for _, delay := range []time.Duration{long, short} {
		n, a, b := pair(t, 1, faults{delay: delay}, usual, 16)
		n.keep(t, a, b, verbs.OpRDMAWrite, 20*time.Millisecond, func() {})
		n.faults.delay = long
		n.keep(t, a, b, verbs.OpRDMAWrite, 500*time.Millisecond, func() {})
		rates = append(rates, n.keep(t, a, b, verbs.OpRDMAWrite, 100*time.Millisecond, func() {}))
		require.Equal(t, verbs.QPRTS, a.qp.State())
	}
	t.Logf("%.0f MB/s, %.0f after it became longer", rates[0]/1e6, rates[1]/1e6)
	require.Greater(t, rates[1], 0.8*rates[0])
}

// A peer that has no CPU for longer than the timer runs has lost nothing: when it goes on, the window is
// restored.
func TestUnscheduledPeer(t *testing.T) {
	t.Parallel()
	need.Full(t)
	for _, foreign := range []bool{false, true} {
		for _, away := range []time.Duration{3 * time.Millisecond, 20 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprintf("foreign %v, %v", foreign, away), func(t *testing.T) {
				n, a, b := pair(t, 1, faults{delay: 20 * time.Microsecond, foreign: foreign}, usual, 16)
				a.qp.req.pace.congested(n.now) // once, which ends the fast growth of the beginning
				n.keep(t, a, b, verbs.OpRDMAWrite, 20*time.Millisecond, func() {})
				window := a.qp.req.pace.window
				require.Greater(t, window, 100.0)
				n.away, n.back = b.a, n.now+int64(away)
				least := window
				n.keep(t, a, b, verbs.OpRDMAWrite, away, func() { least = min(least, a.qp.req.pace.window) })
				require.Less(t, least, window, "no timer has run out")
				n.keep(t, a, b, verbs.OpRDMAWrite, 200*time.Microsecond, func() {})
				require.GreaterOrEqual(t, a.qp.req.pace.window, window)
			})
		}
	}
}

// A queue on the way does not fill: the window follows the delay.
func TestDelayBoundsQueue(t *testing.T) {
	t.Parallel()
	path := faults{delay: 10 * time.Microsecond, bytesPerSecond: 1e8, queue: time.Second}
	n, a, b := pair(t, 1, path, usual, 16)
	d := 100 * time.Millisecond
	n.keep(t, a, b, verbs.OpRDMAWrite, d, func() {})
	var longest int64
	rate := n.keep(t, a, b, verbs.OpRDMAWrite, d, func() { longest = max(longest, a.a.wire.(*memory).free-n.now) })
	require.Greater(t, rate, 0.8e8)
	// A full window would take 2.7 ms.
	require.Less(t, time.Duration(longest), 1500*time.Microsecond)
}

// Marks slow down the end that decides how much is in flight: for an RDMA READ, the reader.
func TestMarks(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			n, a, b := pair(t, 1, faults{delay: 20 * time.Microsecond, mark: 0.3}, usual, 16)
			data := b
			if op == verbs.OpRDMARead {
				data = a
			}
			n.keep(t, a, b, op, 20*time.Millisecond, func() {
				for i := range n.flying {
					p := &n.flying[i]
					p.ce = p.ce && p.to == data.a.wire // and not what only asks, or acknowledges
				}
			})
			require.Less(t, a.qp.req.pace.window, float64(firstWindow)) // of 255
			require.EqualValues(t, firstWindow, b.qp.req.pace.window)
		})
	}
}
