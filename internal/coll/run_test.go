package coll_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
)

var modes = []colltest.Mode{colltest.Eager, colltest.Rendezvous}

// TestAgain: a run is started again and again, each time with other data, while
// members may be a collective apart.
func TestAgain(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		each(6, func(g *group) {
			if g.Count > 7 {
				return
			}
			n := colltest.NewNetwork(g.Size, mode)
			members := g.members(t, n, nil)
			wanted := g.Wanted()
			for sequence := range uint32(3) {
				for _, err := range n.Drive(runs(members), g.headers(sequence), nil) {
					require.NoError(t, err, g)
				}
				for rank, m := range members {
					if wanted[rank] != nil {
						require.Equal(t, wanted[rank], m.out, "%v: member %d", g, rank)
					}
					if g.Kind != coll.Broadcast || rank != g.Root {
						copy(m.out, bytes.Repeat([]byte{0xA5}, len(m.out)))
					}
				}
			}
		})
	}
}

// TestGoroutines: each member in its own goroutine, several collectives one after
// the other, without waiting for the others in between.
func TestGoroutines(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		each(5, func(g *group) {
			if g.Count != 6 && g.Counts == nil {
				return
			}
			n := colltest.NewNetwork(g.Size, mode)
			members := g.members(t, n, nil)
			wanted := g.Wanted()
			var all sync.WaitGroup
			errs := make([]error, g.Size)
			for rank, m := range members {
				all.Go(func() {
					for sequence := range uint32(5) {
						err := m.run.Start(g.header(rank, sequence))
						for done := false; !done && err == nil; {
							runtime.Gosched()
							done, err = m.run.Step()
						}
						if errs[rank] = err; err != nil {
							return
						}
					}
				})
			}
			all.Wait()
			for rank, m := range members {
				require.NoError(t, errs[rank], g)
				if wanted[rank] != nil {
					require.Equal(t, wanted[rank], m.out, "%v: member %d", g, rank)
				}
			}
		})
	}
}

// floats adds in float64, where the grouping shows in the bits.
func floats(dst, a, b []byte) {
	at := func(s []byte, i int) float64 { return float64(int64(binary.LittleEndian.Uint64(s[i:]))) }
	for i := 0; i < len(dst); i += elem {
		x, y := at(a, i), at(b, i)
		binary.LittleEndian.PutUint64(dst[i:], math.Float64bits(x*0.1+y*0.7))
	}
}

// TestSameBits: with a function that is neither associative nor commutative all
// members of an allreduce still have the same bits, and every run has them, in
// whatever order members go on.
func TestSameBits(t *testing.T) {
	t.Parallel()
	for size := 1; size <= 17; size++ {
		for _, algorithm := range coll.Algorithms(coll.Allreduce) {
			var first []byte
			for i := range 6 {
				g := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: size, Count: 37, InPlace: i%2 == 1, Combine: floats}, algorithm: algorithm, segment: 5 * elem}
				n := colltest.NewNetwork(size, modes[i/3])
				members := g.members(t, n, nil)
				for _, err := range n.Drive(runs(members), g.headers(1), rand.New(rand.NewPCG(uint64(i), 1))) {
					require.NoError(t, err)
				}
				if first == nil {
					first = members[0].out
				}
				for rank, m := range members {
					require.Equal(t, first, m.out, "%v: member %d", g, rank)
				}
			}
		}
	}
}

// TestMismatch: one member calls another collective, operation, type, root or length, or is a call
// ahead. Each member that waits for a message that depends on it gets an error that says what
// differs, and no member waits forever.
func TestMismatch(t *testing.T) {
	t.Parallel()
	good := group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: 6, Count: 12}}
	for _, c := range []struct {
		says   string
		change func(g *group, h *coll.Header)
	}{
		{"operation: this member has 1, member 3 has 3", func(g *group, h *coll.Header) { h.Signature = coll.Sign(g.shape(3), g.algorithm, 3, 2) }},
		{"type: this member has 2, member 3 has 5", func(g *group, h *coll.Header) { h.Signature = coll.Sign(g.shape(3), g.algorithm, 1, 5) }},
		{"this member is in call 7, member 3 in call 8", func(g *group, h *coll.Header) { h.Sequence++ }},
		{"this member called allreduce, member 3 called scan", func(g *group, h *coll.Header) {
			s := g.shape(3)
			s.Kind = coll.Scan
			h.Signature = coll.Sign(s, g.algorithm, 1, 2)
		}},
	} {
		for _, algorithm := range coll.Algorithms(coll.Allreduce) {
			for _, mode := range modes {
				g := good
				g.algorithm = algorithm
				n := colltest.NewNetwork(g.Size, mode)
				members := g.members(t, n, nil)
				headers := g.headers(7)
				c.change(&g, &headers[3])
				for rank, err := range n.Drive(runs(members), headers, nil) {
					var e *coll.MismatchError
					require.ErrorAs(t, err, &e, "%v by %v: member %d", mode, algorithm, rank)
					if rank == 3 { // to itself, the others are wrong
						require.NotEqual(t, 3, e.Via)
						continue
					}
					require.Equal(t, 3, e.From, "%v: member %d: %v", &g, rank, err)
					require.Regexp(t, c.says+`|this member called allreduce, member 3 another( \(|$)`, err)
				}
				for _, m := range members {
					require.ErrorIs(t, m.run.Start(headers[0]), coll.ErrBroken)
					require.NoError(t, m.run.Close())
					require.NoError(t, m.run.Close())
				}
			}
		}
	}
}

// TestLengthMismatch: one member has another length, so its messages do too; it may even run
// another algorithm. At least one member detects it, and a member without an error has a result
// that does not depend on that member.
func TestLengthMismatch(t *testing.T) {
	t.Parallel()
	for _, algorithm := range coll.Algorithms(coll.Allreduce) {
		for _, mode := range modes {
			g := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: 5, Count: 20}, algorithm: algorithm}
			other := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: 5, Count: 21}, algorithm: algorithm}
			n := colltest.NewNetwork(g.Size, mode)
			members := g.members(t, n, nil)
			s, err := coll.Build(algorithm, other.shape(2))
			require.NoError(t, err)
			members[2] = other.join(t, n, 2, s)
			headers := g.headers(1)
			headers[2] = other.header(2, 1)
			for rank, err := range n.Drive(runs(members), headers, nil) {
				require.Error(t, err, "%v: member %d", g, rank)
				require.NotErrorIs(t, err, colltest.ErrStalled, "%v: member %d", g, rank)
			}
		}
	}
}

// TestCutOff: the carrier's error reaches the caller with its peer, and every other member gets an
// error too.
func TestCutOff(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	for _, mode := range modes {
		for _, algorithm := range []coll.Algorithm{coll.Linear, coll.RecursiveDoubling, coll.Ring} {
			g := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: 4, Count: 9}, algorithm: algorithm}
			n := colltest.NewNetwork(g.Size, mode)
			members := g.members(t, n, nil)
			n.Cut(1, 0, gone)
			n.Cut(1, 2, gone)
			errs := n.Drive(runs(members), g.headers(1), nil)
			var e *coll.PeerError
			require.ErrorAs(t, errs[1], &e)
			require.ErrorIs(t, errs[1], gone)
			require.Equal(t, coll.Send, e.Op)
			require.Contains(t, []int{0, 2}, e.Peer)
			for rank, err := range errs {
				require.Error(t, err, "%v: member %d", g, rank)
				require.NotErrorIs(t, err, colltest.ErrStalled, "%v: member %d", g, rank)
			}
		}
	}
}

// TestRunErrors: what cannot be is an error before anything is declared.
func TestRunErrors(t *testing.T) {
	t.Parallel()
	g := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: 2, Count: 4}, algorithm: coll.RecursiveDoubling}
	n := colltest.NewNetwork(2, colltest.Eager)
	s, err := coll.Build(g.algorithm, g.shape(0))
	require.NoError(t, err)
	vector, scratch := make([]byte, 4*elem), make([]byte, coll.ScratchSize(s))
	for says, make := range map[string]func() (*coll.Run, error){
		"bytes of scratch, need": func() (*coll.Run, error) {
			return coll.NewRun(n.Carrier(0), s, vector, vector, scratch[1:], colltest.Sum)
		},
		"bytes 0 to 32 of in, which has 31": func() (*coll.Run, error) {
			return coll.NewRun(n.Carrier(0), s, vector[1:], vector, scratch, colltest.Sum)
		},
		"of out, which has 31": func() (*coll.Run, error) {
			return coll.NewRun(n.Carrier(0), s, vector, vector[1:], scratch, colltest.Sum)
		},
		"no function to combine with": func() (*coll.Run, error) {
			return coll.NewRun(n.Carrier(0), s, vector, vector, scratch, nil)
		},
	} {
		r, err := make()
		require.Nil(t, r)
		require.ErrorIs(t, err, coll.ErrShape)
		require.ErrorContains(t, err, says)
	}
	_, err = coll.NewRun(colltest.NewNetwork(1, colltest.Eager).Carrier(0), s, vector, vector, scratch, colltest.Sum)
	var e *coll.PeerError
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Peer)

	r, err := coll.NewRun(n.Carrier(0), s, vector, vector, scratch, colltest.Sum)
	require.NoError(t, err)
	done, err := r.Step()
	require.True(t, done, "a run that was not started is over")
	require.NoError(t, err)
	require.NoError(t, r.Start(coll.Header{}))
	require.ErrorIs(t, r.Start(coll.Header{}), coll.ErrActive)
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Start(coll.Header{}), coll.ErrBroken)
}

// pass starts all runs and steps them until they are over.
func pass(members []*member, headers []coll.Header) {
	left := len(members)
	for i, m := range members {
		if m.run.Start(headers[i]) != nil {
			panic("start")
		}
	}
	done := make([]bool, len(members))
	for left > 0 {
		for i, m := range members {
			if !done[i] {
				if over, err := m.run.Step(); err != nil {
					panic(err)
				} else if over {
					done[i] = true
					left--
				}
			}
		}
	}
}

// TestAllocs: a start and all its steps do not allocate.
func TestAllocs(t *testing.T) {
	for _, mode := range modes {
		each(5, func(g *group) {
			if g.Count != 6 {
				return
			}
			n := colltest.NewNetwork(g.Size, mode)
			members := g.members(t, n, nil)
			headers := g.headers(1)
			require.LessOrEqual(t, testing.AllocsPerRun(20, func() { pass(members, headers) }), 1.0, g) // done, in pass
		})
	}
}

func BenchmarkRun(b *testing.B) {
	for _, algorithm := range coll.Algorithms(coll.Allreduce) {
		for _, size := range []int{2, 8, 64} {
			b.Run(fmt.Sprintf("allreduce/%v/%d", algorithm, size), func(b *testing.B) {
				g := &group{Reference: colltest.Reference{Kind: coll.Allreduce, Size: size, Count: 1}, algorithm: algorithm}
				members := g.members(b, colltest.NewNetwork(size, colltest.Eager), nil)
				headers := g.headers(1)
				b.ReportAllocs()
				for b.Loop() {
					pass(members, headers)
				}
			})
		}
	}
}
