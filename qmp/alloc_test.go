package qmp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestAllocs: nothing is allocated for a message or a global operation.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	for _, size := range []int{1, 500, 40_000} { // in the slot, eager, and straight
		c, s, r, _, _ := toSelf(t, size)
		both := must(DeclareMultiple(s, r))
		x, list := 1.0, make([]float64, size)
		for what, call := range map[string]func(){
			"one by one": func() {
				if r.Start() != nil || s.Start() != nil || r.Wait() != nil || s.Wait() != nil {
					t.Error("not sent")
				}
			},
			"multiple": func() {
				if both.Start() != nil || both.Wait() != nil {
					t.Error("not sent")
				}
			},
			"complete": func() {
				if both.Start() != nil {
					t.Error("not sent")
				}
				for done := false; !done; {
					done, _ = both.IsComplete()
				}
			},
			"sum": func() {
				y := x
				if c.SumDouble(&y) != nil || c.SumDoubleArray(list) != nil || c.Barrier() != nil {
					t.Error("not summed")
				}
			},
		} {
			call()
			require.Zero(t, testing.AllocsPerRun(200, call), "%s, %d words", what, size)
		}
	}
}

// TestWaitAllocs: a wait that has to wait allocates nothing either.
func TestWaitAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	list := over(t, "shm", 2)
	b := [2][]uint64{make([]uint64, 1), make([]uint64, 1)}
	var s, r [2]*Handle
	for i, m := range list {
		c := m.DefaultComm()
		s[i] = must(c.DeclareSendTo(must(DeclareMsgMem(b[i])), 1-i, 0))
		r[i] = must(c.DeclareReceiveFrom(must(DeclareMsgMem(make([]uint64, 1))), 1-i, 0))
	}
	echo := func(i int) bool {
		return r[i].Start() == nil && r[i].Wait() == nil && s[i].Start() == nil && s[i].Wait() == nil
	}
	const rounds = 300
	send := func() {
		if s[0].Start() != nil || s[0].Wait() != nil || r[0].Start() != nil || r[0].Wait() != nil {
			t.Error("no answer")
		}
	}
	count := func() float64 {
		done := make(chan bool)
		go func() {
			ok := true
			for range rounds + 12 {
				ok = ok && echo(1)
			}
			done <- ok
		}()
		for range 11 {
			send()
		}
		n := testing.AllocsPerRun(rounds, send)
		require.True(t, <-done)
		return n
	}
	// Where a call takes long, what goes on beside it adds to a count.
	allocs := count()
	for i := 0; i < 10 && allocs > 0; i++ {
		allocs = min(allocs, count())
	}
	require.Zero(t, allocs)
}
