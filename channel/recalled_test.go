package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecalled: calls that are made again are planned once, as long as few others are made in between; each does
// what it says, whatever has been called before; and no large memory is kept for them.
func TestRecalled(t *testing.T) {
	groups := worlds(t, 2, WithProviders("shm"))
	const long = 2*recalledMost/8 + 1
	user := UserReduction(8, true, func(dst, a, b []byte) {
		for i := 0; i < len(dst); i += 8 {
			x, y := math.Float64frombits(binary.NativeEndian.Uint64(a[i:])), math.Float64frombits(binary.NativeEndian.Uint64(b[i:]))
			binary.NativeEndian.PutUint64(dst[i:], math.Float64bits(x+y))
		}
	})
	each(t, 2, func(me int) error {
		g, ctx := groups[me], within(t)
		dst, src, counts := make([]float64, 2*long), make([]float64, 2*long), make([]int, 2)
		// call makes a call, by which each rank gives values from v on, and v+1000 on at rank 1.
		call := func(i int, v float64) error {
			n := 1 + i%8
			switch i {
			case 8, 9:
				n = 2
			case 11:
				n = long
			}
			for k := range src[:n] {
				src[k] = v + float64(1000*me+k)
			}
			if i == 13 { // the same call, but for its counts, which change
				n, counts[me], counts[1-me] = 4, 1+2*(int(v)%2), 3-2*(int(v)%2)
			}
			var o Operation
			want := func(k int) float64 { return 2*(v+float64(k)) + 1000 }
			switch d, s := dst[:n], src[:n]; {
			case i < 8 || i == 11:
				o = Allreduce(Sum, d, s)
			case i < 10: // of the same memory
				copy(d, s)
				o = Broadcast(d, i-8)
				want = func(k int) float64 { return v + float64(1000*(i-8)+k) }
			case i == 10:
				o = AllreduceBytes(user, bytesOf(d), bytesOf(s))
			case i == 12:
				o = Allgatherv(dst[:2*n], []int{n, n}, s)
				want = func(k int) float64 { return v + float64(k) }
			default:
				o = Alltoallv(d, counts, s, counts)
				want = func(k int) float64 {
					switch from := min(k/counts[0], 1); {
					case from == me:
						return v + float64(1000*from+k)
					case from == 0: // what it has for rank 1 comes after what it has for itself
						return v + float64(counts[1]+k)
					default:
						return v + float64(1000+k-counts[0])
					}
				}
			}
			if err := g.Run(ctx, o); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
			for k := range n {
				if dst[k] != want(k) {
					return fmt.Errorf("call %d: element %d is %v, want %v", i, k, dst[k], want(k))
				}
			}
			return nil
		}
		r := rand.New(rand.NewPCG(41, 42))
		for step := range 500 {
			if err := call(r.IntN(14), float64(step)); err != nil {
				return err
			}
		}
		for i, c := range g.recalled.calls[1:] {
			if len(c.op.Dst)+len(c.op.Src) > recalledMost {
				return fmt.Errorf("call %d is kept with %d bytes", i, len(c.op.Dst)+len(c.op.Src))
			}
		}
		var planned int
		const settled = 8 // rounds, in each of which at least one call that is not made any more is replaced
		for round := range settled + 3 {
			for i := range len(g.recalled.calls) - 3 {
				if err := errors.Join(call(i, 7), call(11, 8), call(10, 9), call(12, 5), call(13, 6)); err != nil {
					return err
				}
			}
			if round > settled && g.recalled.next != planned {
				return fmt.Errorf("round %d has planned again", round)
			}
			planned = g.recalled.next
		}
		return nil
	})
	require.Nil(t, groups[0].fault.Load())
}
