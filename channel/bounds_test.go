package channel

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// The bounds of what a peer may say and of what goes to it, on both of their sides.

// bareQueue is a queue of a node to a peer that is not there, with stream 0 both ways. It gets no
// buffers to send from.
func bareQueue(n *Node) (q *queue, out *sendStream, in *receiveStream) {
	p := &peer{node: n, rank: 1, bell: ringer{bell: n.bell}, layouts: map[uint32]*remoteLayout{}, wake: make(chan struct{}, 1)}
	p.state.Store(peerUp)
	q = &queue{peer: p, link: &link{dev: &device{sends: &sendPool{lacks: errPoolFull}}}, cross: &crossoversTCP, out: map[uint32]*queueOut{}, in: map[uint32]*queueIn{}, ends: map[uint32]*streamEnd{}, credits: queueRecvs / 2}
	out, in = &sendStream{peer: p}, &receiveStream{peer: p}
	q.adoptSend(out)
	q.adoptReceive(in)
	return q, out, in
}

// asksForBuffer says whether the queue has tried to send since.
func (q *queue) asksForBuffer() bool {
	p := q.link.dev.sends
	asked := len(p.waiting) > 0
	p.waiting = nil
	return asked
}

// TestQueueBounds: what the other side may say of a queue is taken up to its bound, and nothing
// beyond it.
func TestQueueBounds(t *testing.T) {
	n := join(t, 1)[0]
	const wrapped = 1<<32 + 1
	for _, c := range []struct {
		name string
		set  func(q *queue, o *queueOut, i *queueIn)
		ok   []header // each alone
		bad  []header
		then func(q *queue, o *queueOut, i *queueIn) bool
	}{
		{"credits", func(q *queue, _ *queueOut, _ *queueIn) { q.credits = queueRecvs - 1 },
			[]header{{kind: queueCredit, credits: 1}}, []header{{kind: queueCredit, credits: 2}},
			func(q *queue, _ *queueOut, _ *queueIn) bool { return q.credits == queueRecvs }},
		{"ends of streams", func(q *queue, _ *queueOut, _ *queueIn) { q.credits, q.telling = 0, maxStreams-MaxStream-1 },
			[]header{{kind: queueEnd, stream: MaxStream + 9}}, nil,
			func(q *queue, _ *queueOut, _ *queueIn) bool {
				return q.telling == maxStreams-MaxStream && len(q.ends) == 0
			}},
		{"ends of streams, without taking the answers", func(q *queue, _ *queueOut, _ *queueIn) { q.credits, q.telling = 0, maxStreams-MaxStream },
			nil, []header{{kind: queueEnd, stream: MaxStream + 9}}, nil},
		{"taken", func(_ *queue, o *queueOut, _ *queueIn) { o.ahead, o.taken = 5, 2 },
			[]header{{kind: queueTaken, k: 5}}, []header{{kind: queueTaken, k: 6}, {kind: queueTaken, k: 1}},
			func(_ *queue, o *queueOut, _ *queueIn) bool { return o.taken == 5 }},
		{"taken, again", func(_ *queue, o *queueOut, _ *queueIn) { o.ahead, o.taken = 5, 2 },
			[]header{{kind: queueTaken, k: 2}}, nil,
			func(_ *queue, o *queueOut, _ *queueIn) bool { return o.taken == 2 }},
		{"taken with a message", func(_ *queue, o *queueOut, _ *queueIn) { o.ahead, o.taken = 5, 2 },
			[]header{{kind: queueEager, k: 1, taken: 5}}, []header{{kind: queueEager, k: 1, taken: 6}, {kind: queueEager, k: 1, taken: 1}},
			func(_ *queue, o *queueOut, _ *queueIn) bool { return o.taken == 5 }},
		{"taken with a message, modulo 2^32", func(_ *queue, o *queueOut, _ *queueIn) { o.ahead, o.taken = wrapped, wrapped-3 },
			[]header{{kind: queueEager, k: 1, taken: 1}}, []header{{kind: queueEager, k: 1, taken: 2}, {kind: queueEager, k: 1, taken: ^uint32(2)}},
			func(_ *queue, o *queueOut, _ *queueIn) bool { return o.taken == wrapped }},
		{"verdicts", func(_ *queue, o *queueOut, _ *queueIn) {
			o.next, o.eager[0], o.late = 3, length{3, 8}, make(faults, maxAhead-1)
		}, []header{{kind: queueWrong, k: 3}}, []header{{kind: queueWrong, k: 4}, {kind: queueWrong, k: 0}},
			func(_ *queue, o *queueOut, _ *queueIn) bool { return len(o.late) == maxAhead }},
		{"too many verdicts", func(_ *queue, o *queueOut, _ *queueIn) {
			o.next, o.eager[0], o.late = 3, length{3, 8}, make(faults, maxAhead)
		}, nil, []header{{kind: queueWrong, k: 3}}, nil},
		{"starts", func(_ *queue, _ *queueOut, i *queueIn) { i.next = 3 },
			[]header{{kind: queueReady, k: 4}, {kind: queueEager, k: 4}},
			[]header{{kind: queueReady, k: 3}, {kind: queueEager, k: 3}, {kind: queueReady, k: 0}, {kind: queueEager, k: 0}}, nil},
		{"messages ahead", func(_ *queue, _ *queueOut, i *queueIn) { fill(i.arrived, window-1) },
			[]header{{kind: queueEager, k: 1 << 40}}, nil,
			func(_ *queue, _ *queueOut, i *queueIn) bool { return len(i.arrived) == window }},
		{"too many messages ahead", func(_ *queue, _ *queueOut, i *queueIn) { fill(i.arrived, window) },
			nil, []header{{kind: queueEager, k: 1 << 40}}, nil},
		{"messages ready", func(_ *queue, _ *queueOut, i *queueIn) { fill(i.ready, maxAhead-1) },
			[]header{{kind: queueReady, k: 1 << 40}}, nil,
			func(_ *queue, _ *queueOut, i *queueIn) bool { return len(i.ready) == maxAhead }},
		{"too many messages ready", func(_ *queue, _ *queueOut, i *queueIn) { fill(i.ready, maxAhead) },
			nil, []header{{kind: queueReady, k: 1 << 40}}, nil},
		{"gates open", func(_ *queue, o *queueOut, _ *queueIn) { fill(o.opened, maxAhead-1) },
			[]header{{kind: queueGate, k: 1 << 40}}, []header{{kind: queueGate, k: 0}},
			func(_ *queue, o *queueOut, _ *queueIn) bool { return len(o.opened) == maxAhead }},
		{"too many gates open", func(_ *queue, o *queueOut, _ *queueIn) { fill(o.opened, maxAhead) },
			nil, []header{{kind: queueGate, k: 1 << 40}}, nil},
		{"streams", func(*queue, *queueOut, *queueIn) {},
			[]header{{kind: queueReady, stream: maxStreams - 1, k: 1}, {kind: queueCredit, credits: queueRecvs / 2}},
			[]header{{kind: queueReady, stream: maxStreams, k: 1}, {kind: queueKinds}, {}, {kind: queueCredit, credits: queueRecvs + 1}}, nil},
	} {
		arrive := func(h header) (*queue, error) {
			q, _, _ := bareQueue(n)
			c.set(q, q.out[0], q.in[0])
			b := make([]byte, headerSize)
			h.put(b)
			m, err := parseHeader(b)
			if err == nil {
				q.lock.Lock()
				defer q.lock.Unlock()
				err = q.arrive(m, nil)
			}
			return q, err
		}
		for _, h := range c.ok {
			q, err := arrive(h)
			require.NoError(t, err, "%s: %+v", c.name, h)
			require.True(t, c.then == nil || c.then(q, q.out[0], q.in[0]), "%s: %+v", c.name, h)
		}
		for _, h := range c.bad {
			_, err := arrive(h)
			require.ErrorIs(t, err, ErrProtocol, "%s: %+v", c.name, h)
		}
	}
}

// fill puts so many entries into a map of starts to come.
func fill[T any](m map[uint64]T, n int) {
	var none T
	for i := range uint64(n) {
		m[100+i] = none
	}
}

// TestQueueFlow: messages and credits go as far as the other side has room, and keep what tells it
// that there is room again.
func TestQueueFlow(t *testing.T) {
	n := join(t, 1)[0]
	q, _, _ := bareQueue(n)
	o, i := q.out[0], q.in[0]
	h := &Handle{node: n}
	require.NoError(t, h.adoptLayout(Contiguous(make([]byte, 8))))
	defer h.release()
	for _, c := range []struct {
		name           string
		ahead, credits int
		control        []header
		goes           bool
	}{
		{"room", window - 1, reserve + 1, nil, true},
		{"the window is full", window, reserve + 1, nil, false},
		{"the last credit", window - 1, reserve, nil, false},
		{"others first", window - 1, queueRecvs, []header{{kind: queueReady}}, false},
	} {
		o.taken, o.ahead, q.credits, q.control = 7, 7+uint64(c.ahead), c.credits, c.control
		require.False(t, q.sendEager(o, h))
		require.Equal(t, c.goes, q.asksForBuffer(), "%s: a message tries to go", c.name)
	}
	for _, c := range []struct {
		name          string
		owed, credits int
		control       []header
		goes          bool
	}{
		{"few owed", queueRecvs/2 - 1, queueRecvs, nil, false},
		{"half owed", queueRecvs / 2, 1, nil, true},
		{"half owed, none to say so", queueRecvs / 2, 0, nil, false},
		{"control", 0, reserve + 1, []header{{kind: queueReady}}, true},
		{"control, the last credit", 0, reserve, []header{{kind: queueReady}}, false},
	} {
		q.owed, q.credits, q.control = c.owed, c.credits, c.control
		q.flush()
		require.Equal(t, c.goes, q.asksForBuffer(), c.name)
	}
	q.owed, q.control = 0, nil
	for k := uint64(1); k <= 2*window; k++ {
		q.consume(i)
		require.Len(t, q.control, int(2*k/window), "after %d messages", k)
		if len(q.control) > 0 {
			require.Equal(t, k-k%(window/2), q.control[len(q.control)-1].k)
		}
	}

	s := &q.outstanding
	for i := range s.buffers {
		s.buffers[i] = noBuffer
	}
	for _, c := range []struct{ done, posted, n, want uint32 }{
		{1, 3, 2, 2}, {1, 3, 3, 3}, {1, 3, 1, 1}, {1, 3, 4, 1}, {1, 3, 0, 1},
		{1<<32 - 1, 1, 1, 1}, {1<<32 - 1, 1, 2, 1<<32 - 1}, {1<<32 - 1, 1, 1<<32 - 2, 1<<32 - 1},
	} {
		s.done, s.posted = c.done, c.posted
		q.release(c.n)
		require.Equal(t, c.want, s.done, "%+v", c)
	}
}

// TestMatchWords: what the words of a rendezvous say, around the numbers of its start and of its
// chunks.
func TestMatchWords(t *testing.T) {
	const k, n = 70, 3
	for _, c := range []struct {
		next, done              uint64
		chunk                   int
		verdict                 uint32
		claimed, sane, finished bool
	}{
		{key(k-ringSlots, 9), key(k-ringSlots, 9), 0, 0, false, true, false},
		{key(k, 0), 0, 0, 0, false, true, false},
		{key(k, n-1), key(k, n-1), n - 1, 0, false, true, false},
		{key(k, n), key(k, n-1), -1, 0, true, true, false},
		{key(k, n), key(k, n), -1, 0, true, true, true},
		{key(k, n), key(k, n+1), -1, 0, true, false, false},
		{key(k, n+1), key(k, n), -1, 0, true, false, true},
		{key(k, maxChunks), 0, -1, 0, true, false, false},
		{key(k, verdictLength), 0, -1, verdictLength, true, true, false},
		{key(k, verdictWithdrawn), 0, -1, verdictWithdrawn, true, true, false},
		{key(k, verdictLength-1), 0, -1, verdictLength - 1, true, false, false},
		{key(k+1, 0), 0, -1, 0, true, false, false},
		{key(k, 0), key(k+1, 0), 0, 0, false, false, false},
	} {
		m := match{c.next, c.done}
		at := fmt.Sprintf("next %#x, done %#x", c.next, c.done)
		require.Equal(t, c.claimed, m.claimed(k, n), at)
		require.Equal(t, c.sane, m.sane(k, n), at)
		require.Equal(t, c.finished, m.finished(k, n), at)
		require.Equal(t, c.verdict, m.verdict(k), at)
		chunk, verdict := m.claim(k, n)
		require.Equal(t, c.chunk, chunk, at)
		require.Equal(t, c.verdict, verdict, at)
		if chunk >= 0 {
			require.Equal(t, key(k, uint32(chunk)+1), m.next, at)
		}
	}
}

// TestRingSlots: a slot is used again when its message has been taken, and no other: neither by
// its place alone nor for its length.
func TestRingSlots(t *testing.T) {
	x := newHostile(t, join(t, 1)[0])
	h := x.sends[1]
	s := h.out
	for range ringSlots {
		require.NoError(t, s.start(h))
		require.Equal(t, phaseSent, h.phase.Load(), "message %d", h.k)
	}
	late := &Handle{node: h.node, kind: kindSend, out: s}
	require.NoError(t, late.adoptLayout(Contiguous(make([]byte, 8))))
	defer late.release()
	require.NoError(t, s.start(late))
	flush := func() {
		s.lock.Lock()
		s.flush()
		s.lock.Unlock()
	}
	const k = ringSlots + 1
	for _, ack := range []uint64{0, k << 1, k<<1 | 1, 2 << 1} { // of no message, and of others
		atomic.StoreUint64(&x.out.acks[1], ack)
		flush()
		require.Equal(t, phasePending, late.phase.Load(), "acknowledged: %#x", ack)
		require.Zero(t, s.freed)
	}
	atomic.StoreUint64(&x.out.acks[1], 1<<1)
	flush()
	require.Equal(t, phaseSent, late.phase.Load())
	require.EqualValues(t, 1, s.freed)
	require.EqualValues(t, k, x.out.slots[1].word>>16)

	for _, c := range []struct {
		k, ack uint64
		faults int
	}{{k, 1<<1 | 1, 0}, {k, (k+ringSlots)<<1 | 1, 0}, {k, k << 1, 0}, {k, k<<1 | 1, 1}, {k, k<<1 | 1, 1}, {2, 2<<1 | 1, 2}} {
		s.lock.Lock()
		s.note(c.k, c.ack)
		s.lock.Unlock()
		require.Len(t, s.late, c.faults, "start %d, acknowledged: %#x", c.k, c.ack)
	}
}

// TestCalledNumbers: what another member has called is held against the same call of this one, and
// against none before or behind it in the same place.
func TestCalledNumbers(t *testing.T) {
	n := join(t, 1)[0]
	g := &Group{node: n, id: 77, ranks: []int{n.rank}}
	n.mu.Lock()
	n.groups[g.id] = g
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.groups, g.id)
		n.mu.Unlock()
	}()
	const ours, other = coll.Signature(uint64(coll.Barrier) << 60), coll.Signature(uint64(coll.Barrier)<<60 | 1<<55)
	places := uint64(len(g.calls))
	for i := range places + 1 {
		g.record(&Collective{number: 1 + i, sig: ours})
	}
	for _, c := range []struct {
		number uint64
		sig    coll.Signature
		fault  bool
	}{{1, other, false}, {2*places + 1, other, false}, {places + 2, other, false}, {places + 1, ours, false}, {2, ours, false}, {places + 1, other, true}} {
		n.checkCall(callInfo{g.id, c.number, c.sig}, 1)
		f := g.fault.Load()
		require.Equal(t, c.fault, f != nil, "call %d, signature %#x", c.number, uint64(c.sig))
		if c.fault {
			require.ErrorIs(t, *f, ErrMismatch)
		}
	}
}

// TestGateBeforeAnnouncement: a message whose gate has come, but not yet the layout behind it, is not announced
// any more: no answer would come.
func TestGateBeforeAnnouncement(t *testing.T) {
	q, out, _ := bareQueue(join(t, 1)[0])
	o := q.out[0]
	o.told = aheadMost - 1
	var handles []*Handle
	for range 2 {
		h := &Handle{node: q.peer.node, kind: kindSend, out: out}
		require.NoError(t, h.adoptLayout(Contiguous(make([]byte, 100_000))))
		defer h.release()
		o.next++
		h.begin(o.next)
		q.send(o, h)
		handles = append(handles, h)
	}
	require.Equal(t, []uint64{2}, o.untold)
	q.lock.Lock()
	defer q.lock.Unlock()
	require.NoError(t, q.arrive(header{kind: queueGate, k: 2, length: 100_000, where: where{handle: 7}}, nil))
	require.NoError(t, q.arrive(header{kind: queueDone, k: 1, length: 100_000}, nil))
	require.Equal(t, aheadMost-1, o.told)
	require.False(t, handles[1].transfer.ahead)
	require.Empty(t, o.untold)
}
