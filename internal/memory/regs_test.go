package memory

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake is a registration.
type fake struct {
	open *int // bytes
	size int
	fail error
}

func (f *fake) Close() error {
	if f.fail == nil {
		*f.open -= f.size
	}
	return f.fail
}

// TestSpare: against a model. What is idle is closed in the order of its last use, and no more of it than is needed.
func TestSpare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	const count, devices = 40, 3
	var open [devices]int
	regs := make([]*Regs[int, *fake], count)
	busy := make([]bool, count)
	var order []int // by last use
	there := [devices]map[int]bool{{}, {}, {}}
	for i := range regs {
		regs[i] = &Regs[int, *fake]{Size: 1 + r.IntN(5)}
		if i%10 != 0 { // else it stays
			regs[i].Idle = func() bool { return !busy[i] }
		}
	}
	use := func(i int) {
		order = append(slices.DeleteFunc(order, func(o int) bool { return o == i }), i)
	}
	for range 5000 {
		i, d := r.IntN(count), r.IntN(devices)
		switch r.IntN(4) {
		case 0:
			_, err := regs[i].Add(d, func() (*fake, error) {
				require.False(t, there[d][i])
				open[d] += regs[i].Size
				return &fake{&open[d], regs[i].Size, nil}, nil
			})
			require.NoError(t, err)
			there[d][i] = true
			use(i)
		case 1:
			_, ok := regs[i].On(d)
			require.Equal(t, there[d][i], ok)
			use(i)
		case 2:
			busy[i] = !busy[i]
		default:
			want, got := r.IntN(12), 0
			for _, o := range order {
				if got < want && there[d][o] && !busy[o] && o%10 != 0 {
					got += regs[o].Size
					delete(there[d], o)
				}
			}
			had, err := Spare(d, want, slices.Values(regs))
			require.NoError(t, err)
			require.Equal(t, got, had)
		}
		for d := range devices {
			sum := 0
			for i := range there[d] {
				sum += regs[i].Size
			}
			require.Equal(t, sum, open[d])
		}
	}
	for _, g := range regs {
		require.NoError(t, g.Close())
		require.Zero(t, g.Len())
	}
	require.Equal(t, [devices]int{}, open)
}

// TestRegsStay: what cannot be registered is not there; what cannot be closed stays.
func TestRegsStay(t *testing.T) {
	cause := errors.New("no")
	open := 8
	g := &Regs[int, *fake]{Size: 8, Idle: func() bool { return true }}
	_, err := g.Add(1, func() (*fake, error) { return nil, cause })
	require.ErrorIs(t, err, cause)
	require.Zero(t, g.Len())
	f := &fake{&open, 8, cause}
	_, err = g.Add(1, func() (*fake, error) { return f, nil })
	require.NoError(t, err)
	got, err := Spare(1, 1, slices.Values([]*Regs[int, *fake]{g}))
	require.ErrorIs(t, err, cause)
	require.Zero(t, got)
	require.ErrorIs(t, g.Close(), cause)
	require.Equal(t, 1, g.Len())
	f.fail = nil
	require.NoError(t, g.Close())
	require.Zero(t, open)
}

// flag is a registration that says whether it is open.
type flag struct{ closed atomic.Bool }

func (f *flag) Close() error {
	f.closed.Store(true)
	return nil
}

// TestSpareMeanwhile: what has become busy before it is looked for is not closed while it is.
func TestSpareMeanwhile(t *testing.T) {
	const count, rounds = 4, 3000
	var busy [count]atomic.Int32
	var regs [count]Regs[int, *flag]
	for i := range regs {
		regs[i].Size, regs[i].Idle = 1, func() bool { return busy[i].Load() == 0 }
	}
	all := func(yield func(*Regs[int, *flag]) bool) {
		for i := range regs {
			if !yield(&regs[i]) {
				return
			}
		}
	}
	var wg sync.WaitGroup
	var broken atomic.Int64
	for seed := range uint64(2) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 2))
			for range rounds {
				i := r.IntN(count)
				busy[i].Add(1)
				f, ok := regs[i].On(7)
				if !ok {
					f, _ = regs[i].Add(7, func() (*flag, error) { return new(flag), nil })
				}
				if f.closed.Load() {
					broken.Add(1)
				}
				busy[i].Add(-1)
			}
		})
	}
	for range rounds {
		_, err := Spare(7, 1, all)
		require.NoError(t, err)
	}
	wg.Wait()
	require.Zero(t, broken.Load())
}
