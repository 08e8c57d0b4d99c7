package exact_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestAllocs says what allocates nothing: everything, once the tables are there.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	r := rand.New(rand.NewPCG(19, 20))
	x, y := draw(r, 10_000, finite), draw(r, 10_000, finite)
	var a exact.Accumulator
	b := filled()
	var w [exact.Words]int64
	buf := make([]byte, 0, exact.MaxEncoded)
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"Add", func() { a.Add(1) }},
		{"AddSlice", func() { a.AddSlice(x) }},
		{"AddSlice, short", func() { a.AddSlice(x[:20]) }},
		{"AddProduct", func() { a.AddProduct(3, 4) }},
		{"AddProducts", func() { a.AddProducts(x, y) }},
		{"AddProducts, short", func() { a.AddProducts(x[:20], y[:20]) }},
		{"Merge", func() { a.Merge(b) }},
		{"Round", func() { a.Add(1); sink = a.Round() }},
		{"Words", func() { a.Words(&w) }},
		{"SetWords", func() { _ = a.SetWords(&w) }},
		{"AppendBinary", func() { buf, _ = a.AppendBinary(buf[:0]) }},
		{"UnmarshalBinary", func() { _ = a.UnmarshalBinary(buf) }},
		{"Sum", func() { sink = exact.Sum(x) }},
		{"Dot", func() { sink = exact.Dot(x, y) }},
	} {
		// One collection during the runs may empty the pool; its table is less than one
		// allocation a run.
		require.Zero(t, testing.AllocsPerRun(100, c.do), c.name)
	}
}
