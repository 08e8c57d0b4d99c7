package channel

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/collop"
)

// BenchmarkPingPong is the round trip between two nodes, on two threads.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{8, 56, 64, 1024, 4096, 8192, 16384, 65536, 262144, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			nodes := join(b, 2, WithProviders("shm"))
			var send, receive [2]*Handle
			for i, n := range nodes {
				send[i] = declareSend(b, n, Contiguous(allocate(b, n, size, true)), 1-i)
				receive[i] = declareReceive(b, n, Contiguous(allocate(b, n, size, true)), 1-i)
			}
			done := make(chan error)
			play := func(i, rounds int) error {
				for range rounds {
					if err := receive[i].Start(); err != nil {
						return err
					}
					if i == 0 {
						send[i].Start()
					}
					if err := receive[i].Wait(); err != nil {
						return err
					}
					if i == 1 {
						send[i].Start()
					}
					if err := send[i].Wait(); err != nil {
						return err
					}
				}
				return nil
			}
			run := func(rounds int) {
				go func() { done <- play(1, rounds) }()
				require.NoError(b, play(0, rounds))
				require.NoError(b, <-done)
			}
			run(1000)
			b.SetBytes(2 * int64(size))
			b.ResetTimer()
			run(b.N)
		})
	}
}

// BenchmarkLocal is a message whose line is at hand: both ends on one thread.
func BenchmarkLocal(b *testing.B) {
	everywhereB(b, func(b *testing.B, n, m *Node) {
		s, r := declareBoth(b, n, m, Contiguous(allocate(b, n, 8, true)), Contiguous(allocate(b, m, 8, true)))
		message := func() {
			s.Start()
			r.Start()
			for {
				if done, _ := r.Test(); done {
					break
				}
			}
			s.Test()
		}
		for range 100 {
			message()
		}
		for b.Loop() {
			message()
		}
	})
}

func everywhereB(b *testing.B, bench func(b *testing.B, n, m *Node)) {
	for _, p := range places {
		b.Run(p.name, func(b *testing.B) {
			nodes := join(b, p.size, WithProviders("shm"))
			bench(b, nodes[0], nodes[len(nodes)-1])
		})
	}
}

// BenchmarkQueue compares the ways of a message through a queue, on both sides of
// the crossovers: copied at both ends or straight, packed or block by block, and
// ready messages of many blocks read by the receiver or written by the sender. Half
// a round trip in each case.
func BenchmarkQueue(b *testing.B) {
	const always, never = 1 << 30, 0
	for _, c := range []struct {
		name         string
		crossover    func(*crossovers) *int
		yes, no      string // what is above the crossover, and below
		sizes        []int  // of messages, or of blocks
		src, dst     func(size int) func([]byte) Layout
		total        int // bytes of a message; 0: size
		sendersFirst bool
	}{
		{"eager", func(c *crossovers) *int { return &c.eager }, "straight", "copied", []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10}, flat, flat, 0, false},
		{"pack", func(c *crossovers) *int { return &c.pack }, "blocks", "packed", []int{256, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10}, strided, strided, 512 << 10, false},
		{"gather", func(c *crossovers) *int { return &c.pack }, "blocks", "packed", []int{256, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10}, strided, flat, 512 << 10, false},
		{"read", func(c *crossovers) *int { return &c.read }, "read", "written", []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 512 << 10}, strided, flat, 512 << 10, true},
	} {
		for _, size := range c.sizes {
			for _, yes := range []bool{true, false} {
				name, at := c.no, always
				if yes {
					name, at = c.yes, never
				}
				if c.name == "eager" {
					at = size
					if yes {
						at = size - 1
					}
				}
				for _, provider := range queueProviders {
					b.Run(fmt.Sprintf("%s/%s/%d/%s", provider, c.name, size, name), func(b *testing.B) {
						of := c.crossover(map[string]*crossovers{"tcp": &crossoversTCP, "roce": &crossoversTCP, "ibv": &crossoversRDMA}[provider])
						old := *of
						*of = at
						defer func() { *of = old }()
						total := c.total
						if total == 0 {
							total = size
						}
						benchmarkQueue(b, provider, total, c.src(size), c.dst(size), c.sendersFirst)
					})
				}
			}
		}
	}
}

func flat(int) func([]byte) Layout { return Contiguous }

// benchmarkQueue plays ping-pong with messages of two layouts. Unless the senders are
// first, receives are started before what they answer is sent.
func benchmarkQueue(b *testing.B, provider string, size int, src, dst func([]byte) Layout, sendersFirst bool) {
	nodes, qa, qb := joinQueue(b, provider)
	queues := []*queue{qa, qb}
	var send, receive [2]*Handle
	for i, n := range nodes {
		_, from := room(b, n, size, true, src)
		_, into := room(b, n, size, true, dst)
		send[i] = declareSend(b, n, from, 1-i)
		receive[i] = declareReceive(b, n, into, 1-i)
	}
	play := func(i, rounds int) error {
		ready := func() bool { q := queues[i]; return q.in[0].ready[q.in[0].next+1] != header{} }
		step := func(h *Handle) error {
			if h == receive[i] && sendersFirst {
				until(b, queues[i], ready)
			}
			if h == send[i] || sendersFirst {
				if err := h.Start(); err != nil {
					return err
				}
			}
			if err := h.Wait(); err != nil || h == send[i] || sendersFirst {
				return err
			}
			return h.Start() // the next
		}
		first, second := send[i], receive[i]
		if i == 1 {
			first, second = second, first
		}
		for range rounds {
			if err := step(first); err != nil {
				return err
			}
			if err := step(second); err != nil {
				return err
			}
		}
		return nil
	}
	if !sendersFirst {
		require.NoError(b, receive[0].Start())
		require.NoError(b, receive[1].Start())
	}
	done := make(chan error)
	run := func(rounds int) {
		go func() { done <- play(1, rounds) }()
		require.NoError(b, play(0, rounds))
		require.NoError(b, <-done)
	}
	run(20)
	b.SetBytes(2 * int64(size))
	b.ResetTimer()
	run(b.N)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/message")
}

// BenchmarkPipe is an exchange both ways of heap memory, 768 KiB a message, one
// message on a stream.
func BenchmarkPipe(b *testing.B) {
	for _, count := range []int{1, 2, 8} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			const size = 768 << 10
			nodes := join(b, 2, WithProviders("shm"))
			var all [2]*Handle
			for i, n := range nodes {
				var handles []*Handle
				for stream := range count {
					s := declareSend(b, n, Contiguous(make([]byte, size)), 1-i, OnStream(stream))
					r := declareReceive(b, n, Contiguous(make([]byte, size)), 1-i, OnStream(stream))
					handles = append(handles, s, r)
				}
				var err error
				all[i], err = n.Multiple(handles...)
				require.NoError(b, err)
			}
			done := make(chan error)
			run := func(rounds int) {
				for _, h := range all {
					go func() {
						for range rounds {
							if err := h.Start(); err != nil {
								done <- err
								return
							}
							if err := h.Wait(); err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				for range all {
					require.NoError(b, <-done)
				}
			}
			run(20)
			b.SetBytes(int64(count * size))
			b.ResetTimer()
			run(b.N)
		})
	}
}

// BenchmarkUnexpected is messages that come before their receives are started: 16 of
// them and one that says so, then an answer.
func BenchmarkUnexpected(b *testing.B) {
	const window = 16
	for _, size := range []int{64, 512, 1024, 2048, 4096, 8192, 16384} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			nodes := join(b, 2, WithProviders("shm"))
			end := func(from, to, size, stream int) (*Handle, *Handle) {
				s := declareSend(b, nodes[from], Contiguous(allocate(b, nodes[from], size, true)), to, OnStream(stream))
				r := declareReceive(b, nodes[to], Contiguous(allocate(b, nodes[to], size, true)), from, OnStream(stream))
				return s, r
			}
			var sends, receives []*Handle
			for range window {
				s, r := end(0, 1, size, 0)
				sends, receives = append(sends, s), append(receives, r)
			}
			said, hear := end(0, 1, 8, 1)
			answer, answered := end(1, 0, 8, 2)
			all := func(handles []*Handle, do func(*Handle) error) error {
				for _, h := range handles {
					if err := do(h); err != nil {
						return err
					}
				}
				return nil
			}
			play := func(i, rounds int) error {
				for range rounds {
					steps := []func() error{
						func() error { return all(sends, (*Handle).Start) }, said.Start, answered.Start, answered.Wait,
						func() error { return all(sends, (*Handle).Wait) }, said.Wait,
					}
					if i == 1 {
						steps = []func() error{
							hear.Start, hear.Wait, func() error { return all(receives, (*Handle).Start) },
							func() error { return all(receives, (*Handle).Wait) }, answer.Start, answer.Wait,
						}
					}
					for _, step := range steps {
						if err := step(); err != nil {
							return err
						}
					}
				}
				return nil
			}
			done := make(chan error)
			run := func(rounds int) {
				go func() { done <- play(1, rounds) }()
				require.NoError(b, play(0, rounds))
				require.NoError(b, <-done)
			}
			run(1000)
			b.ResetTimer()
			run(b.N)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/window, "ns/message")
		})
	}
}

// BenchmarkOperation is the cost of a call that waits for no other member: a group of one rank.
func BenchmarkOperation(b *testing.B) {
	g := worlds(b, 1)[0]
	x := make([]float64, 1)
	ctx := b.Context()
	b.Run("made", func(b *testing.B) {
		for b.Loop() {
			o := Allreduce(Sum, x, x)
			if collop.Of(&o).Err != nil {
				b.Fatal(collop.Of(&o).Err)
			}
		}
	})
	b.Run("called", func(b *testing.B) {
		for b.Loop() {
			if err := g.Run(ctx, Allreduce(Sum, x, x)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("in turn", func(b *testing.B) {
		y := make([]float64, 2)
		for b.Loop() {
			if err := errors.Join(g.Run(ctx, Allreduce(Sum, x, x)), g.Run(ctx, Allreduce(Sum, y, y))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("declared", func(b *testing.B) {
		c, err := g.Declare(Allreduce(Sum, x, x))
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := errors.Join(c.Start(), c.WaitContext(ctx)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStreams is a message that comes after 20 µs, at a rank that has declared receives of as many
// streams, each of which it drives while it waits.
func BenchmarkStreams(b *testing.B) {
	const late = 20 * time.Microsecond
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			nodes := join(b, 2, WithProviders("shm"))
			var ask, asked, answer, answered *Handle
			for i := range n {
				ask, _ = send(b, nodes[0], 1, 8, OnStream(i))
				asked, _ = receive(b, nodes[1], 0, 8, OnStream(i))
				answer, _ = send(b, nodes[1], 0, 8, OnStream(i))
				answered, _ = receive(b, nodes[0], 1, 8, OnStream(i))
				for _, h := range []*Handle{ask, asked, answer, answered} {
					require.NoError(b, h.Start())
				}
				require.NoError(b, WaitAll(ask, asked, answer, answered))
			}
			done := make(chan error, 1)
			b.ResetTimer()
			go func() {
				for range b.N {
					if err := asked.Run(b.Context()); err != nil {
						done <- err
						return
					}
					for from := time.Now(); time.Since(from) < late; {
					}
					if err := answer.Run(b.Context()); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range b.N {
				require.NoError(b, answered.Start())
				require.NoError(b, ask.Run(b.Context()))
				require.NoError(b, answered.Wait())
			}
			require.NoError(b, <-done)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)-float64(late.Nanoseconds()), "ns/message")
		})
	}
}
