package impi

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// laneEnd is a process of a job of two with a lane and no queue pair. It acknowledges
// nothing.
func laneEnd(rank int32) (*Comm, *rcCarrier) {
	e := &engine{log: slog.New(slog.DiscardHandler), unexpected: 100_000, hostOf: []int32{rank, 1 - rank}}
	e.procs = append(e.procs, fuzzProcs...)
	p := &process{e: e, rank: rank, matchers: map[uint64]*matcher{}, pairs: make([]*pair, 2)}
	e.processes = []*process{p}
	l := &link{e: e, host: 1, packetLen: rcSlot, first: rcSlot, rest: rcSlot, ackMark: 1 << 30, hiWater: 1 << 31}
	c := &rcCarrier{l: l, d: &rcDevice{e: e, maps: true}, peers: []int32{1 - rank}}
	c.lanes.in = new(lane)
	l.carrier = c
	e.links = []*link{nil, l}
	j := &Job{e: e, tagUB: 1<<31 - 1}
	return j.newComm(p, identity(2), 0), c
}

// TestLane: messages through a lane arrive in order, whole, while the receiver takes
// them, some before a receive is there. The lane is full again and again, the number of the lines passes the end
// of its 32 bits, and often the sender has heard something, and prepares the place of the next message.
func TestLane(t *testing.T) {
	const messages, begun = 10_000, 1<<32 - 5000
	a, from := laneEnd(0)
	b, to := laneEnd(1)
	b.e.unexpected = 1 << 30
	from.lanes.out, from.lanes.sent, from.lanes.room = to.lanes.in, begun, begun+laneLines
	to.lanes.seen, to.lanes.told, to.lanes.in.taken = begun, begun, begun
	size := func(k int) int { return int(rand.New(rand.NewPCG(1, uint64(k))).ExpFloat64()*300) % (laneMost + 1) }
	go func() {
		p := a.p.pair(1)
		for k := 0; k < messages; {
			n := max(size(k), 8)
			if k%4 > 0 {
				from.lanes.seen++
			}
			line, at := from.lane(n)
			if line == nil {
				runtime.Gosched()
				continue
			}
			for i := range at {
				at[i] = byte(k + i)
			}
			binary.LittleEndian.PutUint64(at, uint64(k))
			from.sendLine(line, p, int32(k%3), 0, 0, n)
			k++
		}
	}()
	buf := make([]byte, laneMost)
	for k := range messages {
		b.e.lock.Lock()
		for k%100 == 0 && to.pollLane() { // before the receive
		}
		b.e.lock.Unlock()
		r, err := b.startReceive(b.match, buf, nil, 0, k%3)
		require.NoError(t, err)
		for !r.over() {
			require.NoError(t, to.l.err)
			if !to.pollLane() {
				runtime.Gosched()
			}
		}
		st, err := r.collect()
		require.NoError(t, err)
		require.Equal(t, max(size(k), 8), st.Len, "message %d, in fact %d", k, binary.LittleEndian.Uint64(buf))
		require.EqualValues(t, k, binary.LittleEndian.Uint64(buf))
		for i := 8; i < st.Len; i++ {
			if buf[i] != byte(k+i) {
				t.Fatalf("byte %d of message %d of %d bytes is %d", i, k, st.Len, buf[i])
			}
		}
	}
	require.EqualValues(t, begun+messages-1<<32, to.lanes.seen)
}

// TestLaneFull: a full lane takes a message only where the oldest one has been taken, and the receiver says so
// after laneTellData bytes, or laneTell lines.
func TestLaneFull(t *testing.T) {
	a, from := laneEnd(0)
	b, to := laneEnd(1)
	b.e.unexpected = 1 << 30
	from.lanes.out, from.lanes.room = to.lanes.in, laneLines
	put := func(n int) bool {
		line, _ := from.lane(n)
		if line != nil {
			from.sendLine(line, a.p.pair(1), 1, 0, 0, n)
		}
		return line != nil
	}
	told := func() uint32 {
		b.e.lock.Lock()
		defer b.e.lock.Unlock()
		for to.pollLane() {
		}
		require.NoError(t, to.l.err)
		return atomic.LoadUint32(&to.lanes.in.taken)
	}
	const full = laneData / laneTellData
	for range full {
		require.True(t, put(laneTellData))
	}
	require.False(t, put(laneTellData))
	atomic.StoreUint32(&to.lanes.in.taken, 1)
	require.True(t, put(laneTellData))
	require.False(t, put(laneTellData))
	require.EqualValues(t, full+1, told())
	for _, more := range []uint32{0, 2, 2, 4} { // halves
		require.True(t, put(laneTellData/2))
		require.EqualValues(t, full+1+more, told())
	}
	for range laneTell - 1 {
		require.True(t, put(8))
	}
	require.EqualValues(t, full+5, told())
	require.True(t, put(8))
	require.EqualValues(t, full+5+laneTell, told())
}

// TestLanePrepared: with a message that is not in its line, the sender writes to the lines of the next one, as long
// as that, if something has come from the peer since it last did.
func TestLanePrepared(t *testing.T) {
	a, from := laneEnd(0)
	_, to := laneEnd(1)
	s := &from.lanes
	s.out, s.room = to.lanes.in, laneLines
	untouched := func() (list []int) { // lines of the first 512 bytes
		for i := range 8 {
			if s.out.data[i*64] == 1 {
				list = append(list, i)
			}
		}
		return list
	}
	for i := range s.out.data {
		s.out.data[i] = 1
	}
	put := func(n int) {
		line, _ := from.lane(n)
		require.NotNil(t, line)
		from.sendLine(line, a.p.pair(1), 1, 0, 0, n)
	}
	put(100)
	require.Len(t, untouched(), 8)
	s.seen++ // a line
	put(8)
	require.Len(t, untouched(), 8)
	put(100)
	require.Equal(t, []int{0, 1, 2, 3, 6, 7}, untouched())
	put(100)
	require.Equal(t, []int{0, 1, 2, 3, 6, 7}, untouched())
	s.qpSeen++ // a packet
	put(60)
	require.Equal(t, []int{0, 1, 2, 3, 6}, untouched())
}

// TestLaneLong: a message longer than laneShort goes by the lane if something has come from the peer since
// the last that did.
func TestLaneLong(t *testing.T) {
	_, from := laneEnd(0)
	_, to := laneEnd(1)
	s := &from.lanes
	s.out, s.room = to.lanes.in, laneLines
	takes := func(n int) bool {
		line, at := from.lane(n)
		require.True(t, line == nil || len(at) == n)
		return line != nil
	}
	require.False(t, takes(laneShort+1))
	require.True(t, takes(laneShort))
	s.seen++ // a line
	require.True(t, takes(laneMost))
	require.False(t, takes(laneMost))
	require.True(t, takes(laneShort))
	s.qpSeen++ // a packet
	require.False(t, takes(laneMost+1))
	require.True(t, takes(laneShort+1))
	require.False(t, takes(laneShort+1))
}

// throughLane has a message go by the lane from a to b, which takes a moment to be there.
func throughLane(t testing.TB, a, b *Comm) {
	ctx := within(t)
	lines := func() uint32 {
		a.e.lock.Lock()
		defer a.e.lock.Unlock()
		return a.e.links[1].carrier.(*rcCarrier).lanes.sent
	}
	for lines() == 0 {
		both(t, func() error { return a.Send(ctx, make([]byte, 8), 1, 4) },
			func() error { _, err := b.Recv(ctx, make([]byte, 8), 0, 4); return err })
	}
}

// TestLaneAndQueuePair: messages keep their order, whichever way they go, and both are
// used.
func TestLaneAndQueuePair(t *testing.T) {
	w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	throughLane(t, w[0], w[1])
	const messages = 1500
	sizes := func(k int) int { return []int{0, 8, 33, 300, laneMost, laneMost + 1, 8000, 100_000}[k*k%61%8] }
	sent := make(chan error, 1)
	go func() {
		var list []Request
		for k := range messages {
			b := make([]byte, sizes(k))
			for i := range b {
				b[i] = byte(k)
			}
			q, err := w[0].Isend(b, 1, 4)
			if err != nil {
				sent <- err
				return
			}
			if list = append(list, q); len(list) == 50 {
				if err := WaitAll(t.Context(), nil, list...); err != nil {
					sent <- err
					return
				}
				list = list[:0]
			}
		}
		sent <- WaitAll(t.Context(), nil, list...)
	}()
	buf := make([]byte, 100_000)
	for k := range messages {
		st := received(t, w[1], buf, 0, 4)
		require.Equal(t, sizes(k), st.Len)
		for _, i := range []int{0, st.Len / 2, st.Len - 1} {
			if st.Len > 0 {
				require.Equal(t, byte(k), buf[i], "message %d", k)
			}
		}
	}
	require.NoError(t, <-sent)
	e := w[0].e
	e.lock.Lock()
	defer e.lock.Unlock()
	c := e.links[1].carrier.(*rcCarrier)
	require.Greater(t, c.lanes.sent, uint32(100))
	require.Greater(t, c.lanes.qpSent, uint16(100))
}

// TestLaneWakes: a message in a lane wakes a receiver that sleeps.
func TestLaneWakes(t *testing.T) {
	w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	w[1].e.policy = wait.NewPolicy(wait.Setting{Mode: wait.Sleeping}, 1, nil)
	c := w[0].e.links[1].carrier.(*rcCarrier)
	ctx := within(t)
	// look returns how many lines have been written, and whether the lane says that its
	// reader is asleep.
	look := func() (lines uint32, asleep bool) {
		w[0].e.lock.Lock()
		defer w[0].e.lock.Unlock()
		return c.lanes.sent, c.lanes.out != nil && atomic.LoadUint32(&c.lanes.out.asleep) != 0
	}
	throughLane(t, w[0], w[1])
	before, _ := look()
	const rounds = 20
	for range rounds {
		got := make(chan error, 1)
		go func() {
			_, err := w[1].Recv(ctx, make([]byte, 8), 0, 4)
			got <- err
		}()
		asleep(t, w[1].e) // the receiver; and its watcher, in the kernel:
		for _, said := look(); !said; _, said = look() {
			require.NoError(t, ctx.Err())
			runtime.Gosched()
		}
		require.NoError(t, w[0].Send(ctx, make([]byte, 8), 1, 4))
		require.NoError(t, <-got)
	}
	after, _ := look()
	require.Equal(t, before+rounds, after, "lines written")
}

// FuzzLane: whatever lies in a lane, memory beside that of a receive is left alone, no
// more is kept than is allowed, and what makes no sense ends the link.
func FuzzLane(f *testing.F) {
	line := func(n, number uint32, tag int32, data string) []byte {
		var l laneLine
		l.word, l.tag = uint64(number)|uint64(n)<<32, tag
		copy(l.data[:], data)
		return append([]byte(nil), (*[64]byte)(unsafe.Pointer(&l))[:]...)
	}
	f.Add(append(line(5, 1, 1, "hello"), line(3, 2, 9, "abc")...))
	f.Add(append(line(100, 1, 1, ""), line(laneMost, 2, 5, "")...))
	f.Add(line(laneMost+1, 1, 1, ""))
	f.Add(line(4, 1, -1, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, carrier := laneEnd(0)
		memory := make([]byte, 48)
		irecv(t, c, memory[16:32], 1, 1)
		irecv(t, c, make([]byte, 8), AnySource, 5)
		in := carrier.lanes.in
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&in.lines)), len(in.lines)*64), b)
		for carrier.l.err == nil && carrier.pollLane() {
		}
		if carrier.l.err != nil {
			require.True(t, errors.Is(carrier.l.err, ErrProtocol) || errors.Is(carrier.l.err, ErrOverflow), carrier.l.err)
		}
		for _, p := range carrier.l.pairs {
			require.LessOrEqual(t, p.held, 100_000)
		}
		require.Equal(t, make([]byte, 16), memory[:16])
		require.Equal(t, make([]byte, 16), memory[32:])
	})
}
