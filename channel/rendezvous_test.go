package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// queued runs a test for each provider whose messages go through a queue.
func queued(t *testing.T, test func(t *testing.T, provider string)) {
	for _, p := range queueProviders {
		if !runs(t, setting{name: p}) {
			continue
		}
		t.Run(p, func(t *testing.T) {
			setting{name: p}.needs(t)
			test(t, p)
		})
	}
}

// joinQueue makes two nodes and returns them with their queues to each other, when
// those are up.
func joinQueue(t testing.TB, provider string, opts ...Option) (nodes []*Node, a, b *queue) {
	nodes = join(t, 2, append(opts, WithProviders(provider))...)
	s, r := sendReceive(t, nodes[0], nodes[1], 8, OnStream(MaxStream))
	require.NoError(t, s.Start())
	require.NoError(t, r.Run(within(t)))
	require.NoError(t, s.WaitContext(within(t)))
	return nodes, queueTo(t, nodes[0], 1), queueTo(t, nodes[1], 0)
}

func queueTo(t testing.TB, n *Node, rank int) *queue {
	p := peerOf(t, n, rank)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotNil(t, p.queue)
	return p.queue
}

// until moves a queue on until something is so, which is asked under its lock.
func until(t testing.TB, q *queue, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; runtime.Gosched() {
		q.progress()
		q.lock.Lock()
		ok := so()
		q.lock.Unlock()
		if ok {
			return
		}
		require.True(t, time.Now().Before(end), "waited for too long")
	}
}

// arrival is the order in which the two sides start.
type arrival int

const (
	senderSecond arrival = iota
	receiverSecond
	atOnce // ready and gate cross
)

func (o arrival) String() string {
	return [...]string{"sender second", "receiver second", "both at once"}[o]
}

// receiveHalves declares a receive whose layout, of two halves, is told the peer.
func receiveHalves(t testing.TB, at *Node, from, size int, opts ...DeclareOption) *Handle {
	return declareReceive(t, at, Strided(make([]byte, size+8), 0, size/2, 2, size/2+8), from, opts...)
}

// known says whether a peer that reaches the rank of a handle knows where its messages are.
func known(p *peer, h *Handle) bool {
	of := h.peer()
	of.mu.Lock()
	at := h.where
	of.mu.Unlock()
	return at != where{} && p.remoteInfo(at, uint64(h.shape.Len())) != nil
}

// startIn starts a pair in the order; the second side knows what the
// first has started, or, at once, neither does.
func startIn(t testing.TB, o arrival, a, b *queue, s, r *Handle) {
	in, out := r.in.number, s.out.number
	until(t, a, func() bool { return known(a.peer, r) })
	until(t, b, func() bool { return known(b.peer, s) })
	switch o {
	case senderSecond:
		require.NoError(t, r.Start())
		until(t, a, func() bool { return a.out[out].opened[r.k] != header{} })
		require.NoError(t, s.Start())
	case receiverSecond:
		require.NoError(t, s.Start())
		until(t, b, func() bool { return b.in[in].ready[s.k] != header{} })
		require.NoError(t, r.Start())
	case atOnce:
		// As Start does, but without polling in between.
		a.lock.Lock()
		b.lock.Lock()
		a.out[out].next++
		s.begin(a.out[out].next)
		s.transfer = transfer{}
		a.out[out].sent.add(s)
		a.send(a.out[out], s)
		b.in[in].next++
		r.begin(b.in[in].next)
		r.setPhase(phaseWaiting)
		b.await(b.in[in], r)
		b.lock.Unlock()
		a.lock.Unlock()
	}
}

// compute keeps a CPU busy, like a computing program, until it is told to stop.
func compute() (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for x := uint64(1); !over.Load(); x = x*6364136223846793005 + 1 {
		}
	})
	return func() { over.Store(true); wg.Wait() }
}

// shapes are layouts of a message: of the sender, and of the receiver.
var shapes = []struct {
	name string
	size int
	src  func([]byte) Layout
	dst  func([]byte) Layout
	read bool // a receiver that comes second reads
}{
	{"contiguous", 1 << 20, Contiguous, Contiguous, true},
	{"just above eager", eagerQueued + 1, Contiguous, Contiguous, true},
	{"large blocks", 1 << 20, strided(32 << 10), strided(32 << 10), true},
	{"unequal blocks", 3 << 19, strided(48 << 10), strided(64 << 10), true},
	{"small blocks", 3 << 18, strided(192), strided(192), true},
	{"small to contiguous", 3 << 18, strided(192), Contiguous, true},
	{"contiguous to small", 3 << 18, Contiguous, strided(192), true},
	{"many blocks to contiguous", 3 << 19, strided(12 << 10), Contiguous, false},
	{"contiguous to many blocks", 3 << 19, Contiguous, strided(12 << 10), true},
	{"several work requests", 9 << 20, Contiguous, Contiguous, true},
	{"several chains", 6 << 20, strided(16 << 10), strided(24 << 10), true},
}

// strided takes every other block of a slice.
func strided(block int) func([]byte) Layout {
	return func(b []byte) Layout { return Strided(b, 0, block, len(b)/block/2, 2*block) }
}

// room returns memory for a message of n bytes in a layout.
func room(t testing.TB, n *Node, size int, own bool, lay func([]byte) Layout) ([]byte, Layout) {
	b := allocate(t, n, 2*size, own)
	l := lay(b)
	if l.Len() == 2*size {
		b = b[:size]
		l = lay(b)
	}
	require.NoError(t, l.Err())
	require.Equal(t, size, l.Len())
	return b, l
}

func packed(l Layout) []byte {
	b := make([]byte, l.Len())
	l.shape.Gather(b, 0)
	return b
}

// TestWhoMoves: sender second, receiver second and both at once, with the program of either side
// computing, or both waiting. Messages complete while a program computes, every byte is right,
// and the expected side moves it.
func TestWhoMoves(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, qa, qb := joinQueue(t, provider)
		a, b := nodes[0], nodes[1]
		r := rand.NewChaCha8([32]byte{})
		reads := uint64(0)
		turn := 0
		for _, shape := range shapes {
			for _, own := range []bool{true, false} {
				turn++
				if own == ((turn-1)/2%2 == 0) && !need.WantLong() {
					continue // each shape in one kind of memory
				}
				src, from := room(t, a, shape.size, own, shape.src)
				dst, into := room(t, b, shape.size, own, shape.dst)
				s, d := declareBoth(t, a, b, from, into)
				for i, o := range []arrival{senderSecond, receiverSecond, atOnce} {
					for k, away := range []string{"none", "sender", "receiver"} {
						if (i+k+turn)%3 != 0 && !need.WantLong() {
							continue // at another shape
						}
						name := fmt.Sprintf("%s, own %v, %v, %s away", shape.name, own, o, away)
						r.Read(src)
						clear(dst)
						startIn(t, o, qa, qb, s, d)
						if away != "none" {
							stop := compute()
							if away == "sender" {
								require.NoError(t, d.WaitContext(within(t)), name)
							} else {
								require.NoError(t, s.WaitContext(within(t)), name)
							}
							// And the other is over without its user.
							for end := time.Now().Add(limit); away == "sender" && s.phase.Load() != phaseSent || away == "receiver" && d.phase.Load() != phaseReceived; runtime.Gosched() {
								require.True(t, time.Now().Before(end), name)
							}
							stop()
						}
						arrives(t, s, d, name)
						require.True(t, bytes.Equal(packed(from), packed(into)), name)
						if o == receiverSecond && shape.read {
							reads++
						}
						require.Equal(t, reads, a.Stats().Peers[0].Sent.Read, name)
						require.Equal(t, reads, b.Stats().Peers[0].Received.Read, name)
					}
				}
				require.NoError(t, s.Close())
				require.NoError(t, d.Close())
			}
		}
	})
}

// TestRace: both start at random times. Whichever side moves a message, each arrives once, in
// order.
func TestRace(t *testing.T) {
	rounds := need.InLong(300, 2000)
	queued(t, func(t *testing.T, provider string) {
		nodes, _, _ := joinQueue(t, provider)
		size := eagerQueued + 8
		play := func(n *Node, seed uint64, start func(round int, h *Handle) error, h *Handle) error {
			r := rand.New(rand.NewPCG(seed, 0))
			for round := range rounds {
				for range r.IntN(20) * r.IntN(500) {
					runtime.KeepAlive(round)
				}
				if err := start(round, h); err != nil {
					return err
				}
			}
			return nil
		}
		done := make(chan error, 1)
		go func() {
			s, out := send(t, nodes[0], 1, size)
			done <- play(nodes[0], rand.Uint64(), func(round int, h *Handle) error {
				binary.LittleEndian.PutUint64(out[size-8:], uint64(round))
				if err := h.Start(); err != nil {
					return err
				}
				return h.WaitContext(within(t))
			}, s)
		}()
		r, in := receive(t, nodes[1], 0, size)
		err := play(nodes[1], rand.Uint64(), func(round int, h *Handle) error {
			if err := h.Start(); err != nil {
				return err
			}
			if err := h.WaitContext(within(t)); err != nil {
				return err
			}
			if got := binary.LittleEndian.Uint64(in[size-8:]); got != uint64(round) {
				return fmt.Errorf("round %d: message %d", round, got)
			}
			return nil
		}, r)
		require.NoError(t, err)
		require.NoError(t, <-done)
		sent, got := nodes[0].Stats().Peers[0].Sent, nodes[1].Stats().Peers[0].Received
		require.Equal(t, sent.Read, got.Read)
		t.Logf("%d of %d were read", got.Read, got.Messages)
	})
}

// TestReadActive: while a message is being read, its handles are active on both
// sides; with other memory afterwards, it is read from there.
func TestReadActive(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, qa, qb := joinQueue(t, provider)
		const size = 3 << 20
		s, r := sendReceive(t, nodes[0], nodes[1], size)
		for i := range 10 {
			src, dst := allocate(t, nodes[0], size, i%2 == 0), allocate(t, nodes[1], size, i%3 == 0)
			rand.NewChaCha8([32]byte{byte(i)}).Read(src)
			require.NoError(t, s.Rebase(src))
			require.NoError(t, r.Rebase(dst))
			startIn(t, receiverSecond, qa, qb, s, r)
			require.ErrorIs(t, s.Rebase(src), ErrActive)
			require.ErrorIs(t, s.Close(), ErrActive)
			require.ErrorIs(t, r.Rebase(dst), ErrActive)
			require.ErrorIs(t, r.Close(), ErrActive)
			short, cancel := context.WithCancel(t.Context())
			cancel()
			if err := r.WaitContext(short); err != nil {
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, r.Start(), ErrActive)
			}
			require.NoError(t, r.WaitContext(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
			require.True(t, bytes.Equal(src, dst))
		}
		require.EqualValues(t, 10, nodes[1].Stats().Peers[0].Received.Read)
	})
}

// TestReadMismatch: a wrong length of a message that is ready uses the pair up, and
// nothing is read.
func TestReadMismatch(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, qa, qb := joinQueue(t, provider)
		s, _ := send(t, nodes[0], 1, 100_000)
		wrong, buf := receive(t, nodes[1], 0, 100_001)
		good, _ := receive(t, nodes[1], 0, 100_000)
		for _, o := range []arrival{receiverSecond, senderSecond, atOnce} {
			startIn(t, o, qa, qb, s, wrong)
			require.ErrorIs(t, wrong.WaitContext(within(t)), ErrLength)
			require.ErrorIs(t, s.WaitContext(within(t)), ErrLength)
			require.Zero(t, bytes.Count(buf, []byte{1}))
			startIn(t, o, qa, qb, s, good)
			require.NoError(t, good.WaitContext(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
		}
		require.EqualValues(t, 1, nodes[1].Stats().Peers[0].Received.Read)
	})
}

// TestReadClose: a receiver that closes its node while reading still gets the whole message, and
// the sender completes; if the sender closes while being read from, the reader gets the message
// or an error.
func TestReadClose(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		const size = 8 << 20
		t.Run("receiver", func(t *testing.T) {
			nodes, qa, qb := joinQueue(t, provider)
			s, r := sendReceive(t, nodes[0], nodes[1], size)
			startIn(t, receiverSecond, qa, qb, s, r)
			closed := make(chan error, 1)
			go func() { closed <- nodes[1].Close() }()
			require.NoError(t, s.WaitContext(within(t)))
			require.NoError(t, <-closed)
		})
		t.Run("sender", func(t *testing.T) {
			nodes, qa, qb := joinQueue(t, provider)
			s, r, out, in := sendReceiveBytes(t, nodes[0], nodes[1], size)
			rand.NewChaCha8([32]byte{}).Read(out)
			want := bytes.Clone(out) // which is gone when the node is
			startIn(t, receiverSecond, qa, qb, s, r)
			if err := nodes[0].Close(); !errors.Is(err, ErrActive) { // it does not test whether the receiver has it
				require.NoError(t, err)
			}
			if err := r.WaitContext(within(t)); err != nil {
				require.ErrorIs(t, err, ErrPeerLeft)
			} else {
				require.True(t, bytes.Equal(want, in))
			}
		})
	})
}

// TestHostile: what a broken peer says ends the peer, with an error that tells.
func TestHostile(t *testing.T) {
	t.Parallel() // it waits for peer timeouts

	const size = 100_000
	// Each says something wrong as b, when a receive of a from b of number 1 and a
	// send of a to b of number 2 are declared and started, the latter if started.
	type scene struct {
		a, b       *queue
		send, recv *Handle // of a
		back       *Handle // of b: receives what a sends
	}
	say := func(h header) func(*scene) {
		return func(s *scene) {
			s.b.lock.Lock()
			s.b.tell(h)
			s.b.lock.Unlock()
		}
	}
	writeImm := func(imm uint32) func(*scene) {
		return func(s *scene) {
			s.b.lock.Lock()
			defer s.b.lock.Unlock()
			s.b.link.qp.PostSend([]verbs.SendWR{{WRID: wrWrite, Opcode: verbs.OpRDMAWriteWithImm, Imm: imm}})
		}
	}
	gate := func(s *scene, h header) header {
		h.kind, h.stream, h.k = queueGate, 2, s.send.k
		return h
	}
	for _, c := range []struct {
		name string
		do   func(*scene)
		want error
	}{
		{"done of nothing", say(header{kind: queueDone, stream: 2, k: 7, length: size}), ErrProtocol},
		{"done of another length", say(header{kind: queueDone, stream: 2, k: 1, length: 1}), ErrProtocol},
		{"done of a stream that is not", say(header{kind: queueDone, stream: 77, k: 1, length: size}), ErrProtocol},
		{"immediate of nothing", writeImm(12345), ErrProtocol},
		{"gate of start 0", say(header{kind: queueGate, stream: 2, length: size}), ErrProtocol},
		{"gate to no layout", func(s *scene) { say(gate(s, header{length: size, where: where{handle: 9999}}))(s) }, ErrProtocol},
		{"gate to an old layout", func(s *scene) {
			say(gate(s, header{length: size, where: where{handle: s.back.id, version: s.back.version + 1}}))(s)
		}, ErrProtocol},
		{"gate to a layout of another length", func(s *scene) {
			short := receiveHalves(t, s.b.peer.node, 0, size-2, OnStream(2))
			until(t, s.a, func() bool { return known(s.a.peer, short) })
			say(gate(s, header{length: size, where: where{handle: short.id}}))(s)
		}, ErrProtocol},
		{"two gates", func(s *scene) {
			g := gate(s, header{length: size, where: where{handle: s.back.id}})
			s.a.lock.Lock() // so that it has not written before it sees the second
			say(g)(s)
			s.a.writes.limit = 0
			s.a.lock.Unlock()
			say(g)(s)
		}, ErrProtocol},
		{"verdict on what is being written", func(s *scene) {
			s.a.lock.Lock()
			say(gate(s, header{length: size, where: where{handle: s.back.id}}))(s)
			s.a.writes.limit = 0
			s.a.lock.Unlock()
			say(header{kind: queueWrong, stream: 2, k: s.send.k, length: 1})(s)
		}, ErrProtocol},
		{"gate to memory that is not", func(s *scene) {
			l := layoutInfo{handle: 9999, regions: []region{{0xdead, 0x1000, size}}, parts: []remotePart{{0, 0, size, 1, 0}}}
			s.b.peer.mu.Lock()
			s.b.peer.tell(kindLayout, l.append(nil))
			s.b.peer.mu.Unlock()
			say(gate(s, header{length: size, where: where{handle: 9999}}))(s)
		}, ErrPeerDied},
		{"ready for a start that is over", say(header{kind: queueReady, stream: 1, k: 0, length: size}), ErrProtocol},
		{"more eager messages than go", func(s *scene) {
			for k := range uint64(window) + 1 {
				say(header{kind: queueEager, stream: 3, k: k + 1})(s)
			}
		}, ErrProtocol},
		{"verdict on the future", say(header{kind: queueWrong, stream: 2, k: 9}), ErrProtocol},
		{"taken what was not sent", say(header{kind: queueTaken, stream: 2, k: 9}), ErrProtocol},
		{"taken what was not sent, by the way", say(header{kind: queueEager, stream: 2, k: 1, taken: 1}), ErrProtocol},
		{"credits from nowhere", func(s *scene) {
			s.b.lock.Lock()
			s.b.owed = queueRecvs
			s.b.tell(header{kind: queueCredit})
			s.b.lock.Unlock()
		}, ErrProtocol},
		{"kind", say(header{kind: queueKinds}), ErrProtocol},
		{"stream", say(header{kind: queueReady, stream: maxStreams, k: 1}), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			queued(t, func(t *testing.T, provider string) {
				t.Parallel()
				nodes, a, b := joinQueue(t, provider, WithPeerTimeout(time.Second))
				s := &scene{a: a, b: b}
				s.recv, _ = receive(t, nodes[0], 1, size, OnStream(1))
				s.send, _ = send(t, nodes[0], 1, size, OnStream(2))
				s.back = receiveHalves(t, nodes[1], 0, size, OnStream(2))
				until(t, a, func() bool { return known(a.peer, s.back) })
				startAll(t, s.recv, s.send)
				c.do(s)
				for _, h := range []*Handle{s.recv, s.send} {
					err := h.WaitContext(within(t))
					requireError(t, err, c.want, 1)
				}
			})
		})
	}
}

// TestGateBeforeLayout: a gate whose layout comes later by the control connection opens when that
// comes, however late; if the other side has none, that is found out without waiting for a time.
func TestGateBeforeLayout(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		const size = 100_000
		_, a, b := joinQueue(t, provider, WithPeerTimeout(time.Hour))
		from, _ := send(t, a.peer.node, 1, size, OnStream(2))
		into := receiveHalves(t, b.peer.node, 0, size, OnStream(2))
		until(t, a, func() bool { return known(a.peer, into) })
		late := *a.peer.remoteInfo(into.where, size)
		a.peer.dropLayout(into.id)
		b.peer.mu.Lock() // it writes nothing
		require.NoError(t, into.Start())
		until(t, a, func() bool { return len(a.out[2].opened) == 1 })
		require.NoError(t, from.Start())
		until(t, a, func() bool { return len(a.early) == 1 })
		b.peer.tell(kindLayout, late.append(nil))
		b.peer.mu.Unlock()
		require.NoError(t, from.WaitContext(within(t)))
		require.NoError(t, into.WaitContext(within(t)))

		require.NoError(t, from.Start())
		b.lock.Lock()
		b.tell(header{kind: queueGate, stream: 2, k: from.k, length: size, where: where{handle: 9999}})
		b.lock.Unlock()
		require.ErrorIs(t, from.WaitContext(within(t)), ErrProtocol)
	})
}

// TestHostileReady: the same while a message is being read.
func TestHostileReady(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		const size = 100_000
		for _, c := range []struct {
			name string
			said header
		}{
			{"ready again", header{kind: queueReady, length: size - 1}},
			{"eager", header{kind: queueEager}},
		} {
			t.Run(c.name, func(t *testing.T) {
				nodes, a, b := joinQueue(t, provider)
				s, r := sendReceive(t, nodes[0], nodes[1], size)
				until(t, b, func() bool { return known(b.peer, s) })
				require.NoError(t, s.Start())
				until(t, b, func() bool { return b.in[0].ready[s.k] != header{} })
				b.lock.Lock()
				b.reads.limit = 0 // it is begun, and stands still
				r.begin(1)
				b.in[0].next = 1
				r.setPhase(phaseWaiting)
				b.reads.limit = 1
				b.reads.wrs = 1
				b.await(b.in[0], r)
				b.lock.Unlock()
				c.said.k = 1
				a.lock.Lock()
				a.tell(c.said)
				a.lock.Unlock()
				require.ErrorIs(t, r.WaitContext(within(t)), ErrProtocol)
				require.Error(t, s.WaitContext(within(t)))
			})
		}
		t.Run("memory that is not", func(t *testing.T) {
			nodes, a, b := joinQueue(t, provider)
			s, r := sendReceive(t, nodes[0], nodes[1], size)
			until(t, b, func() bool { return known(b.peer, s) })
			s.where = where{s.id, 0xdead, 0x1000}
			startIn(t, receiverSecond, a, b, s, r)
			require.ErrorIs(t, r.WaitContext(within(t)), ErrPeerDied)
			require.Error(t, s.WaitContext(within(t)))
		})
	})
}

// TestHeaderFormat: the messages of a queue are as they were first sent.
func TestHeaderFormat(t *testing.T) {
	for _, c := range []struct {
		h    header
		wire string
	}{
		{header{kind: queueEager, credits: 3, stream: 5, k: 9, length: 2, taken: 8}, "01000003" + "00000005" + "0000000000000009" + "0000000000000002" + "0000000800000000" + "0102"},
		{header{kind: queueReady, stream: MaxStream, k: 1 << 40, length: 1 << 33, where: where{handle: 7, version: 2}}, "02000000" + "0000ffff" + "0000010000000000" + "0000000200000000" + "0000000700000002"},
		{header{kind: queueGate, credits: 64, k: 1, length: 5000, where: where{handle: 7, version: 2}}, "03000040" + "00000000" + "0000000000000001" + "0000000000001388" + "0000000700000002"},
		{header{kind: queueReady, k: 1, length: 5000, where: where{7, 0xdead, 0x1000}}, "02010000" + "00000000" + "0000000000000001" + "0000000000001388" + "000000070000dead" + "0000000000001000"},
		{header{kind: queueDone, k: 1, length: 5000}, "04000000" + "00000000" + "0000000000000001" + "0000000000001388" + "0000000000000000"},
		{header{kind: queueWrong, k: 1, length: 5000}, "05000000" + "00000000" + "0000000000000001" + "0000000000001388" + "0000000000000000"},
		{header{kind: queueTaken, k: 16}, "06000000" + "00000000" + "0000000000000010" + "0000000000000000" + "0000000000000000"},
		{header{kind: queueCredit, credits: 64}, "07000040" + "00000000" + "0000000000000000" + "0000000000000000" + "0000000000000000"},
	} {
		b, err := hex.DecodeString(c.wire)
		require.NoError(t, err)
		h, err := parseHeader(b)
		require.NoError(t, err)
		require.Equal(t, c.h, h)
		got := make([]byte, headerSize+c.h.more())
		c.h.put(got)
		require.Equal(t, b[:len(got)], got)
		for n := range got {
			_, err := parseHeader(b[:n])
			require.ErrorIs(t, err, ErrProtocol)
		}
	}
}

// TestLateLength: the error of a message that was complete has its length, whatever
// was started after it.
func TestLateLength(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, _, qb := joinQueue(t, provider)
		small, _ := send(t, nodes[0], 1, 24)
		wrong, _ := receive(t, nodes[1], 0, 40)
		require.NoError(t, small.Start())
		var large, into []*Handle
		for range 2 * window {
			s, r := sendReceive(t, nodes[0], nodes[1], eagerQueued+8)
			require.NoError(t, s.Start())
			large, into = append(large, s), append(into, r)
		}
		until(t, qb, func() bool { return len(qb.inStream(0).ready) == len(large) })
		require.NoError(t, wrong.Start())
		require.ErrorIs(t, wrong.WaitContext(within(t)), ErrLength)
		for i, r := range into {
			require.NoError(t, r.Run(within(t)))
			require.NoError(t, large[i].WaitContext(within(t)))
		}
		var e *Error
		require.ErrorAs(t, small.WaitContext(within(t)), &e)
		require.ErrorIs(t, e, ErrLength)
		require.Equal(t, []int{1, 24, 40}, []int{int(e.Start), e.Len, e.Other})
	})
}

// TestStaging: while a message of small blocks is packed, or unpacked, others have
// the queue.
func TestStaging(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, qa, qb := joinQueue(t, provider)
		const size = 3 << 20
		src, from := room(t, nodes[0], size, true, strided(192))
		_, into := room(t, nodes[1], size, true, strided(192))
		s, r := declareBoth(t, nodes[0], nodes[1], from, into)
		until(t, qa, func() bool { return known(qa.peer, r) })
		// Between two pieces the goroutine that copies takes the lock itself: it is free.
		var pieces [2]atomic.Int64
		var report atomic.Value
		atPiece = func(h *Handle) {
			q, i := qa, 0
			if h == r {
				q, i = qb, 1
				var b strings.Builder
				nodes[1].Report(&b)
				report.Store(b.String())
			}
			q.lock.Lock()
			defer q.lock.Unlock()
			if h.copying {
				pieces[i].Add(1)
			}
		}
		defer func() { atPiece = nil }()
		over := func() {
			require.NoError(t, r.WaitContext(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
			require.True(t, bytes.Equal(packed(from), packed(into)))
		}
		src[0]++
		startAll(t, s, r)
		over()
		require.Greater(t, pieces[0].Load(), int64(1), "packed where the sender comes first")
		src[0]++
		require.NoError(t, r.Start())
		until(t, qa, func() bool { return qa.out[0].opened[r.k] != header{} })
		require.NoError(t, s.Start())
		over()
		require.Greater(t, pieces[1].Load(), int64(1), "unpacked where the gate is open")
		require.Contains(t, report.Load(), fmt.Sprintf("receive from rank 0, stream 0, start 2, %d bytes: is being copied here, for ", size))
	})
}

// TestStagingAtWireUp: while messages of small blocks that were started before the connection was up are packed,
// others are started, also on their stream, and those that wait are tested. All arrive, in order.
func TestStagingAtWireUp(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 2, WithProviders(provider))
		const size, count = 3 * packPiece, 2
		far := peerOf(t, nodes[1], 0)
		far.mu.Lock() // the wire-up waits for it
		held := true
		defer func() {
			if held {
				far.mu.Unlock()
			}
		}()
		var large, small []*Handle
		var from, into []Layout
		for range count {
			src, l := room(t, nodes[0], size, false, strided(64))
			random(rand.New(rand.NewPCG(1, uint64(len(from)))), src)
			s := declareSend(t, nodes[0], l, 1)
			large, from = append(large, s), append(from, l)
		}
		for stream := range 2 {
			s, b := send(t, nodes[0], 1, 8, OnStream(stream))
			b[0] = byte(1 + stream)
			small = append(small, s)
		}
		started := make(chan error)
		pieces := 0
		atPiece = func(h *Handle) {
			if h.node != nodes[0] {
				return
			}
			if pieces++; pieces != 2 {
				return
			}
			go func() {
				_, err := large[1].Test()
				started <- errors.Join(err, small[0].Start(), small[1].Start())
			}()
			select {
			case err := <-started:
				assert.NoError(t, err)
			case <-time.After(limit / 4):
				assert.Fail(t, "nothing can be started")
			}
		}
		defer func() { atPiece = nil }()
		startAll(t, large...)
		held = false
		far.mu.Unlock()
		for range count {
			_, l := room(t, nodes[1], size, false, strided(192))
			r := declareReceive(t, nodes[1], l, 0)
			require.NoError(t, r.Run(within(t)))
			into = append(into, l)
		}
		for i := range count {
			require.NoError(t, large[i].WaitContext(within(t)))
			require.True(t, bytes.Equal(packed(from[i]), packed(into[i])), "message %d", i)
		}
		for stream, s := range small {
			r, b := receive(t, nodes[1], 0, 8, OnStream(stream))
			require.NoError(t, r.Run(within(t)))
			require.NoError(t, s.WaitContext(within(t)))
			require.EqualValues(t, 1+stream, b[0])
		}
		require.Equal(t, 2*size/packPiece, pieces, "packed before the connection is used")
	})
}

// TestPriority: a message of higher priority overtakes one that waits, and one that
// is under way, but not one of the same priority.
func TestPriority(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, qa, qb := joinQueue(t, provider)
		priorities := []int{1, 0, 1, 7, -3, 7}
		const size = 3 * flyingMax // more than may be posted
		var sends, receives []*Handle
		var from, into [][]byte
		for i, priority := range priorities {
			src, dst := allocate(t, nodes[0], size, i%2 == 0), allocate(t, nodes[1], size, i%2 == 0)
			rand.NewChaCha8([32]byte{byte(i)}).Read(src)
			s := declareSend(t, nodes[0], Contiguous(src), 1, OnStream(i), WithPriority(priority))
			r := declareReceive(t, nodes[1], Contiguous(dst), 0, OnStream(i))
			sends, receives, from, into = append(sends, s), append(receives, r), append(from, src), append(into, dst)
		}
		for i, r := range receives {
			until(t, qb, func() bool { return known(qb.peer, sends[i]) })
			require.NoError(t, r.Start())
			until(t, qa, func() bool { return known(qa.peer, r) && len(qa.out[uint32(i)].opened) == 1 })
		}
		// As Start does, but nothing completes in between.
		qa.lock.Lock()
		for _, s := range sends {
			o := qa.out[s.out.number]
			o.next++
			s.begin(o.next)
			s.transfer = transfer{}
			o.sent.add(s)
			qa.send(o, s)
		}
		var order []int
		for _, h := range qa.writes.moving {
			order = append(order, int(h.out.number))
		}
		underWay := sends[0].transfer.moved
		qa.lock.Unlock()
		require.Equal(t, []int{3, 5, 0, 2, 1, 4}, order)
		require.Positive(t, underWay)
		for i := range sends {
			require.NoError(t, receives[i].WaitContext(within(t)))
			require.NoError(t, sends[i].WaitContext(within(t)))
			require.True(t, bytes.Equal(from[i], into[i]))
		}
	})
}
