package qmp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// give is what a node gives: small integers, so that sums in any order are the same.
func give(node, k int) int { return (node*7+k*3)%11 - 4 }

// serial folds what the nodes give.
func serial(nodes, k int, f func(a, b int) int) int {
	v := give(0, k)
	for i := 1; i < nodes; i++ {
		v = f(v, give(i, k))
	}
	return v
}

func add(a, b int) int { return a + b }

// want is an error unless two values are the same.
func want[T comparable](what string, got, expected T) error {
	if got != expected {
		return fmt.Errorf("%s: %v in place of %v", what, got, expected)
	}
	return nil
}

// number is what values of one node are compared as.
type number interface {
	int | int64 | uint64 | float32 | float64
}

// one checks a reduction of a single value against the serial one.
func one[T number](c *Comm, what string, call func(*Comm, *T) error, f func(a, b int) int) error {
	for k := range 3 {
		x := T(give(c.NodeNumber(), k))
		if err := call(c, &x); err != nil {
			return err
		}
		if err := want(what, x, T(serial(c.NumberOfNodes(), k, f))); err != nil {
			return err
		}
	}
	return nil
}

// many checks a sum of a slice against the serial one.
func many[T number](c *Comm, what string, call func(*Comm, []T) error) error {
	for _, n := range []int{0, 1, 7, 1000} {
		x := make([]T, n)
		for k := range x {
			x[k] = T(give(c.NodeNumber(), k))
		}
		if err := call(c, x); err != nil {
			return err
		}
		for k := range x {
			if err := want(fmt.Sprintf("%s, element %d of %d", what, k, n), x[k], T(serial(c.NumberOfNodes(), k, add))); err != nil {
				return err
			}
		}
	}
	return nil
}

// complexes checks sums of complex numbers, alone and in slices.
func complexes(c *Comm) error {
	n := c.NumberOfNodes()
	re, im := serial(n, 0, add), serial(n, 1, add)
	x, y := complex(float32(give(c.NodeNumber(), 0)), float32(give(c.NodeNumber(), 1))), complex(float64(give(c.NodeNumber(), 0)), float64(give(c.NodeNumber(), 1)))
	xs, ys := []complex64{x, 2 * x}, []complex128{y, 2 * y}
	if err := errors.Join(c.SumComplex64(&x), c.SumComplex128(&y), c.SumComplex64Array(xs), c.SumComplex128Array(ys)); err != nil {
		return err
	}
	z := complex(float64(re), float64(im))
	return errors.Join(want("complex64", complex128(x), z), want("complex128", y, z), want("array", complex128(xs[1]), 2*z), want("array", ys[1], 2*z))
}

// moves checks broadcast and alltoall.
func moves(c *Comm) error {
	n, me := c.NumberOfNodes(), c.NodeNumber()
	buf := []float64{float64(me), 1}
	if err := c.Broadcast(Bytes(buf)); err != nil {
		return err
	}
	send, recv := make([]uint16, 3*n), make([]uint16, 3*n)
	for i := range send {
		send[i] = uint16(1000*me + i)
	}
	if err := c.Alltoall(Bytes(recv), Bytes(send)); err != nil {
		return err
	}
	for i, v := range recv {
		if err := want("alltoall", v, uint16(1000*(i/3)+3*me+i%3)); err != nil {
			return err
		}
	}
	return want("broadcast", buf[0], 0)
}

// fold checks a function that is neither commutative nor associative.
func fold(c *Comm) error {
	b := make([]byte, 16)
	binary.NativeEndian.PutUint64(b, uint64(c.NodeNumber()+1))
	binary.NativeEndian.PutUint64(b[8:], 100)
	err := c.BinaryReduction(b, func(inout, in []byte) {
		binary.NativeEndian.PutUint64(inout, 3*binary.NativeEndian.Uint64(inout)-binary.NativeEndian.Uint64(in))
		binary.NativeEndian.PutUint64(inout[8:], binary.NativeEndian.Uint64(inout[8:])+1)
	})
	if err != nil {
		return err
	}
	v := uint64(1)
	for i := 1; i < c.NumberOfNodes(); i++ {
		v = 3*v - uint64(i+1)
	}
	return errors.Join(want("fold", binary.NativeEndian.Uint64(b), v), want("calls", binary.NativeEndian.Uint64(b[8:]), uint64(100+c.NumberOfNodes()-1)))
}

// exactly checks sums that lose everything where they round.
func exactly(c *Comm) error {
	n, me := c.NumberOfNodes(), c.NodeNumber()
	terms := make([]float64, n)
	random := rand.New(rand.NewPCG(11, uint64(n)))
	for i := range terms {
		terms[i] = math.Ldexp(random.Float64()-0.5, random.IntN(200)-100)
	}
	expected := exact.Sum(terms)
	x := terms[me]
	xs := make([]float64, exactAtOnce+3)
	for k := range xs {
		xs[k] = math.Ldexp(terms[me], k%50)
	}
	var a exact.Accumulator
	for i := me; i < n; i += n { // the same for any division of the terms
		a.Add(terms[i])
	}
	if err := errors.Join(c.SumDoubleExtended(&x), c.SumDoubleExtendedArray(xs), c.SumExact(&a)); err != nil {
		return err
	}
	for k := range xs {
		if err := want("element", math.Float64bits(xs[k]), math.Float64bits(math.Ldexp(expected, k%50))); err != nil {
			return err
		}
	}
	return errors.Join(want("one", math.Float64bits(x), math.Float64bits(expected)), want("accumulator", math.Float64bits(a.Round()), math.Float64bits(expected)))
}

// TestGlobal: every global operation against the serial one.
func TestGlobal(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		for _, size := range []int{1, 2, 3, 5} {
			if provider == "ibv" && size > 3 {
				continue
			}
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				each(t, over(t, provider, size), func(c *Comm) error {
					largest := func(a, b int) int { return max(a, b) }
					least := func(a, b int) int { return min(a, b) }
					xor := func(a, b int) int { return a ^ b }
					return errors.Join(
						one(c, "sum int", (*Comm).SumInt, add), one(c, "sum int64", (*Comm).SumInt64, add), one(c, "sum uint64", (*Comm).SumUint64, add),
						one(c, "sum float", (*Comm).SumFloat, add), one(c, "sum double", (*Comm).SumDouble, add), one(c, "extended", (*Comm).SumDoubleExtended, add),
						one(c, "max int", (*Comm).MaxInt, largest), one(c, "max float", (*Comm).MaxFloat, largest), one(c, "max double", (*Comm).MaxDouble, largest),
						one(c, "min int", (*Comm).MinInt, least), one(c, "min float", (*Comm).MinFloat, least), one(c, "min double", (*Comm).MinDouble, least),
						one(c, "xor int", (*Comm).XorInt, xor), one(c, "xor uint64", (*Comm).XorUint64, xor),
						many(c, "int", (*Comm).SumIntArray), many(c, "int64", (*Comm).SumInt64Array), many(c, "uint64", (*Comm).SumUint64Array),
						many(c, "float", (*Comm).SumFloatArray), many(c, "double", (*Comm).SumDoubleArray), many(c, "extended", (*Comm).SumDoubleExtendedArray),
						complexes(c), moves(c), fold(c), exactly(c), c.Barrier(), c.WaitForBarrier(time.Minute),
					)
				})
			})
		}
	})
}

// TestSumInDouble: floats are summed in double precision: 1e8 + 7 is not 1e8, however the
// terms are divided.
func TestSumInDouble(t *testing.T) {
	each(t, over(t, "shm", 8), func(c *Comm) error {
		x := float32(1)
		if c.NodeNumber() == 0 {
			x = 1e8
		}
		y, xs, ys := complex(x, -x), []float32{x, -x}, []complex64{complex(-x, x)}
		if err := errors.Join(c.SumFloat(&x), c.SumComplex64(&y), c.SumFloatArray(xs), c.SumComplex64Array(ys)); err != nil {
			return err
		}
		const sum = float32(1e8 + 7)
		return errors.Join(want("float", x, sum), want("complex", y, complex(sum, -sum)), want("array", xs[0], sum), want("array", xs[1], -sum), want("complex array", ys[0], complex(-sum, sum)))
	})
}

// TestExactDivision: a sum of terms has the same bits for any number of nodes and any
// division of the terms among them, unlike that which rounds.
func TestExactDivision(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	terms := make([]float64, 1000)
	for i := range terms {
		terms[i] = math.Ldexp(random.NormFloat64(), random.IntN(60))
	}
	expected := math.Float64bits(exact.Sum(terms))
	for _, size := range []int{1, 2, 3, 4} {
		order := random.Perm(len(terms))
		each(t, over(t, "shm", size), func(c *Comm) error {
			var a exact.Accumulator
			for i := c.NodeNumber(); i < len(order); i += size {
				a.Add(terms[order[i]])
			}
			if err := c.SumExact(&a); err != nil {
				return err
			}
			return want("sum", math.Float64bits(a.Round()), expected)
		})
	}
}

// TestBarrier: a barrier whose timeout passes goes on; to come again is not to come
// twice.
func TestBarrier(t *testing.T) {
	list := over(t, "shm", 3)
	late := list[2].DefaultComm()
	for range 3 {
		for _, m := range list[:2] {
			for range 3 {
				err := status(t, StatusTimeout, m.DefaultComm().WaitForBarrier(time.Millisecond))
				require.ErrorContains(t, err, "qmp: wait for barrier: communication time out: ")
			}
			status(t, StatusTimeout, m.DefaultComm().WaitForBarrier(-1))
		}
		ranks.Each(t, 3, func(i int) error {
			if i == 2 {
				return late.Barrier()
			}
			return list[i].DefaultComm().WaitForBarrier(time.Minute)
		})
	}
	each(t, list, func(c *Comm) error { return c.Barrier() })
}

// TestMismatch: nodes that do not call the same are told, and by name.
func TestMismatch(t *testing.T) {
	list := over(t, "shm", 2)
	errs := make([]error, 2)
	ranks.Each(t, 2, func(i int) error {
		if i == 0 {
			errs[i] = list[i].DefaultComm().SumDoubleArray(make([]float64, 4))
		} else {
			errs[i] = list[i].DefaultComm().SumDoubleArray(make([]float64, 5))
		}
		return nil
	})
	status(t, StatusBadMessage, errs[0])
	status(t, StatusBadMessage, errs[1])
	status(t, StatusBadMessage, list[0].DefaultComm().Barrier())
}

// TestBusy: of two goroutines in a global operation of one communicator one is told so.
func TestBusy(t *testing.T) {
	list := over(t, "shm", 2)
	c := list[0].DefaultComm()
	inside, left := make(chan bool), make(chan error)
	go func() {
		b := []byte{0}
		left <- c.BinaryReduction(b, func(inout, in []byte) { inside <- true; <-inside })
	}()
	go func() {
		left <- list[1].DefaultComm().BinaryReduction([]byte{0}, func(inout, in []byte) {})
	}()
	<-inside
	x := 1.0
	status(t, StatusSvcBusy, c.SumDouble(&x))
	status(t, StatusSvcBusy, c.Barrier())
	require.Equal(t, 1.0, x)
	inside <- true
	require.NoError(t, <-left)
	require.NoError(t, <-left)
	status(t, StatusInvalidArg, c.BinaryReduction(nil, nil))
}

// TestSplit: communicators by color and key, and what they say of themselves; their
// messages do not meet.
func TestSplit(t *testing.T) {
	list := over(t, "shm", 6)
	each(t, list, func(c *Comm) error {
		me := c.NodeNumber()
		rows := splitOf(t, c, me/2, -me)
		err := errors.Join(want("nodes", rows.NumberOfNodes(), 2), want("node", rows.NodeNumber(), 1-me%2), want("colors", rows.NumberOfColors(), 3),
			want("color", rows.Color(), me/2), want("key", rows.Key(), -me), want("primary", rows.IsPrimaryNode(), me%2 == 1),
			want("colors of the first", c.NumberOfColors(), 1), want("color of the first", c.Color(), 0), want("key of the first", c.Key(), 0))
		if err != nil {
			return err
		}
		some := splitOf(t, c, me%2-1, 0) // even ones get none
		if me%2 == 0 {
			if some != nil {
				return errors.New("a communicator for a negative color")
			}
		} else if err := errors.Join(want("nodes", some.NumberOfNodes(), 3), want("colors", some.NumberOfColors(), 1), some.Barrier(), some.Free()); err != nil {
			return err
		}
		x := 1 << me
		if err := rows.SumInt(&x); err != nil {
			return err
		}
		if err := want("sum", x, 3<<(me/2*2)); err != nil {
			return err
		}
		if err := rows.DeclareLogicalTopology([]int{2}); err != nil {
			return err
		}
		if err := want("topology of the first", c.LogicalTopologyIsDeclared(), false); err != nil {
			return err
		}
		b, err := newBlock(rows, []int{4})
		if err != nil {
			return err
		}
		if err := b.round(1); err != nil {
			return err
		}
		m := c.Machine()
		if err := m.SetDefaultComm(rows); err != nil {
			return err
		}
		if err := errors.Join(rows.Free(), want("default", m.DefaultComm() == m.JobComm(), true)); err != nil {
			return err
		}
		for _, err := range []error{rows.Barrier(), rows.Free(), c.Free()} {
			if !errors.Is(err, StatusInvalidOp) {
				return fmt.Errorf("freed: %v", err)
			}
		}
		if err := m.SetDefaultComm(rows); !errors.Is(err, StatusInvalidArg) {
			return fmt.Errorf("set: %v", err)
		}
		return b.all.CloseAll()
	})
}

// TestSetComm: the three communicators of a machine can be replaced.
func TestSetComm(t *testing.T) {
	list := over(t, "shm", 2)
	each(t, list, func(c *Comm) error {
		m := c.Machine()
		s := splitOf(t, c, 0, 0)
		return errors.Join(m.SetAllocatedComm(s), m.SetJobComm(s), m.SetDefaultComm(s),
			want("allocated", m.AllocatedComm(), s), want("job", m.JobComm(), s), want("default", m.DefaultComm(), s), m.DefaultComm().Barrier())
	})
	status(t, StatusInvalidArg, list[0].SetJobComm(list[1].JobComm()))
	status(t, StatusInvalidArg, list[0].SetAllocatedComm(nil))
}

// TestSplitRace: communicators that are split at the same time by different goroutines
// do not get each other's streams.
func TestSplitRace(t *testing.T) {
	list := over(t, "shm", 4)
	blocks := make([][]int, 4)
	each(t, list, func(c *Comm) error {
		me := c.NodeNumber()
		a := splitOf(t, c, me/2, 0)
		b := splitOf(t, c, me%2, 0)
		var made [2][]int
		errs := make(chan error, 2)
		for i, s := range []*Comm{a, b} {
			go func() {
				for range 5 {
					n, err := s.Split(0, 0)
					if err != nil {
						errs <- err
						return
					}
					made[i] = append(made[i], n.block)
				}
				errs <- nil
			}()
		}
		err := errors.Join(<-errs, <-errs)
		blocks[me] = slices.Concat(made[0], made[1], []int{a.block, b.block, c.block})
		return err
	})
	for _, b := range blocks {
		slices.Sort(b)
		require.Len(t, slices.Compact(slices.Clone(b)), 13, "%v", b)
	}
}

// TestLastComm: there is an end to communicators, and what has been freed is there again.
func TestLastComm(t *testing.T) {
	list := over(t, "shm", 2)
	require.Equal(t, 2048, maxComms)
	require.GreaterOrEqual(t, blockStreams, 1+2*MaxDimensions)
	require.Equal(t, 1, bits.OnesCount(blockStreams))
	for _, m := range list {
		for i := 1; i < maxComms-1; i++ {
			m.blocks.flip(i)
		}
	}
	each(t, list, func(c *Comm) error {
		for range 3 {
			s := splitOf(t, c, 0, 0)
			if _, err := c.Split(0, 0); !errors.Is(err, StatusNoPorts) {
				return fmt.Errorf("one more: %v", err)
			}
			in, out := make([]byte, 1), []byte{1}
			if err := s.DeclareLogicalTopology(append([]int{2}, slices.Repeat([]int{1}, MaxDimensions-1)...)); err != nil {
				return err
			}
			r := must(s.DeclareReceiveRelative(must(DeclareMsgMem(in)), MaxDimensions-1, Plus, 0))
			o := must(s.DeclareSendRelative(must(DeclareMsgMem(out)), MaxDimensions-1, Minus, 0))
			err := errors.Join(r.Start(), o.Start(), WaitAll(r, o), r.Close(), o.Close())
			if err := errors.Join(err, want("block", s.block, maxComms-1), want("message", in[0], 1), s.Free(), c.Barrier()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSplitAgain: communicators that are freed serve again, more than there are at a time,
// with their messages.
func TestSplitAgain(t *testing.T) {
	rounds := need.InLong(300, 3*maxComms)
	each(t, over(t, "shm", 3), func(c *Comm) error {
		blocks := map[int]bool{}
		for i := range rounds {
			s, err := c.Split(0, 0)
			if err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
			blocks[s.block] = true
			err = s.DeclareLogicalTopology([]int{3})
			if err != nil {
				return err
			}
			b, err := newBlock(s, []int{3})
			if err != nil {
				return err
			}
			if i%2 == 0 { // the handles outlive the communicator
				err = s.Free()
			}
			if err = errors.Join(err, b.round(i)); err == nil && i%3 == 0 {
				err = b.round(i)
			}
			if err = errors.Join(err, b.all.CloseAll()); err == nil && i%2 != 0 {
				err = s.Free()
			}
			if err = errors.Join(err, c.Barrier()); err != nil {
				return err
			}
		}
		return want("blocks", len(blocks), 1)
	})
}

// TestSplitAfterUnreceived: a message that has not been received does not come to a
// communicator that is made later.
func TestSplitAfterUnreceived(t *testing.T) {
	each(t, over(t, "shm", 2), func(c *Comm) error {
		first := splitOf(t, c, 0, 0)
		me := first.NodeNumber()
		if me == 0 {
			h, err := first.DeclareSendTo(must(DeclareMsgMem([]byte{1})), 1, 0)
			if err = errors.Join(err, h.Start(), h.Wait(), h.Close()); err != nil {
				return err
			}
		}
		second, err := c.Split(0, 0) // while the first is there
		if err = errors.Join(err, first.Free(), second.Free(), c.Barrier()); err != nil {
			return err
		}
		third := splitOf(t, c, 0, 0)
		if err := want("block", third.block, second.block); err != nil {
			return err
		}
		b := []byte{byte(2 + me)}
		declare := third.DeclareSendTo
		if me == 1 {
			declare = third.DeclareReceiveFrom
		}
		h, err := declare(must(DeclareMsgMem(b)), 1-me, 0)
		if err = errors.Join(err, h.Start(), h.Wait()); err != nil {
			return err
		}
		return errors.Join(want("message", b[0], 2), h.Close(), third.Free())
	})
}
