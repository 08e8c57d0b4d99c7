package channel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// setTo has a variable of the package hold another value until the test is over. It
// comes before the nodes are made, so that they are closed by then.
func setTo[V any](t *testing.T, variable *V, value V) {
	before := *variable
	*variable = value
	t.Cleanup(func() { *variable = before })
}

// pass has a message go from s to r, whose memory is contiguous.
func pass(t *testing.T, s, r *Handle, first *Handle) {
	t.Helper()
	second := s
	if first == s {
		second = r
	}
	startAll(t, first, second)
	arrives(t, s, r)
}

// TestLongDescription: a layout of more blocks than the peer can be told moves all
// the same, before the wire-up and after it, from both sides and with either side
// first.
func TestLongDescription(t *testing.T) {
	for k, c := range []struct {
		name   string
		packed int // below this size of blocks
	}{{"shm", 0}, {"tcp", crossoversTCP.pack}, {"tcp", 0}, {"ibv", crossoversRDMA.pack}, {"ibv", 0}} {
		t.Run(fmt.Sprintf("%s, %d", c.name, c.packed), func(t *testing.T) {
			need.Provider(t, c.name)
			if c.name == "ibv" {
				need.Long(t) // half a million blocks
			}
			need.Full(t)
			setTo(t, &crossoversTCP.pack, c.packed)
			setTo(t, &crossoversRDMA.pack, c.packed)
			nodes := join(t, 2, WithProviders(c.name))
			const blocks, elem = 470_000, 8
			lengths, indices := make([]int, blocks), make([]int, blocks)
			for i := range indices {
				lengths[i], indices[i] = 1, i*3+i%2
			}
			irregular := func(b []byte) Layout { return Indexed(b, elem, lengths, indices) }
			require.Greater(t, layoutLen(1, blocks), maxBody)
			r := rand.New(rand.NewPCG(1, 2))
			times := need.InLong(1, 2)
			for range times {
				for i, n := range nodes {
					if i != k%2 && !need.WantLong() {
						continue // in another case
					}
					other := nodes[1-i]
					src, dst := allocate(t, n, blocks*3*elem, true), allocate(t, other, blocks*3*elem, true)
					random(r, src)
					s, d := declareBoth(t, n, other, irregular(src), irregular(dst))
					firsts := []*Handle{s, d}
					if !need.WantLong() {
						firsts = firsts[k%2:][:1]
					}
					for _, first := range firsts {
						clear(dst)
						pass(t, s, d, first)
						for k, at := range indices {
							if !bytes.Equal(src[at*elem:][:elem], dst[at*elem:][:elem]) {
								require.Fail(t, "not what was sent", "block %d", k)
							}
						}
					}
					require.NoError(t, s.Close())
					require.NoError(t, d.Close())
				}
			}
		})
	}
}

// TestManyHandles: a peer takes a number of handles whose layouts are told; beyond it messages go another
// way, or cannot be declared, and the connection stays. What is closed makes room.
func TestManyHandles(t *testing.T) {
	const known, size = 4, 20_000
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			setTo(t, &maxLayouts, known)
			nodes := join(t, p.size, WithProviders(p.name))
			a, b := nodes[0], nodes[p.size-1]
			halves := func(b []byte) Layout { return Strided(b, 0, size/2, 2, size/2+8) }
			var handles []*Handle
			for range 3 {
				var first []byte
				for i := range 2 * known {
					out, in := allocate(t, a, size+8, true), allocate(t, b, size+8, true)
					s := declareSend(t, a, halves(out), b.Rank())
					r, err := b.DeclareReceive(halves(in), a.Rank())
					if i == 0 {
						first = in
					}
					if slices.Contains(queueProviders, p.name) && i >= known {
						require.ErrorIs(t, err, ErrInvalid)
						require.ErrorContains(t, err, fmt.Sprint(known))
						r, in = handles[1], first
					} else {
						require.NoError(t, err)
					}
					handles = append(handles, s, r)
					for k, before := range []*Handle{s, r} {
						out[0], out[size+7] = byte(i), byte(k)
						pass(t, s, r, before)
						require.Equal(t, out, in)
					}
				}
				for _, h := range handles {
					require.NoError(t, h.Close())
				}
				handles = nil
			}
		})
	}
}
