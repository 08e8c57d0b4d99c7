package span

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestSet: against a set of addresses.
func TestSet(t *testing.T) {
	need.Full(t)
	r := rand.New(rand.NewPCG(1, 2))
	const top = 60
	var l Set
	var in [top]bool
	for range 20_000 {
		from := r.UintN(top)
		s := Span{uintptr(from), uintptr(from + 1 + r.UintN(top-from))}
		with := r.IntN(2) == 0
		if with {
			l.Add(s)
		} else {
			l.Remove(s)
		}
		for p := s.From; p < s.To; p++ {
			in[p] = with
		}
		for i, s := range l {
			require.Less(t, s.From, s.To)
			require.True(t, i == 0 || l[i-1].To < s.From)
		}
		for p := range uintptr(top) {
			require.Equal(t, in[p], l.Meets(Span{p, p + 1}))
		}
		probe := Span{s.From / 2, s.To}
		require.Equal(t, slices.Contains(in[probe.From:probe.To], true), l.Meets(probe))
	}
}

// TestPages: to the end of the last page, and no further.
func TestPages(t *testing.T) {
	for _, c := range []struct{ s, want Span }{
		{Span{4096, 4097}, Span{4096, 8192}},
		{Span{4096, 8192}, Span{4096, 8192}},
		{Span{4100, 8193}, Span{4100, 12288}},
	} {
		require.Equal(t, c.want, c.s.Pages(4096))
	}
	b := make([]byte, 10)
	require.EqualValues(t, 10, Of(b).To-Of(b).From)
	require.Equal(t, Of(b).From+3, Of(b[3:]).From)
}
