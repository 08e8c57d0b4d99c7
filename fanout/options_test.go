package fanout

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Options that contradict each other, or have no effect together with others, are refused in any
// order, before anything is sent. An option may be given twice.
func TestContradictions(t *testing.T) {
	jobs := jobsOf(t, "packets", 3)
	other := jobsOf(t, "here", 1)[0]
	w := jobs[0].World()
	acknowledge := func(uint64) error { return nil }

	refused := func(what string, err error) {
		t.Helper()
		require.ErrorIs(t, err, ErrInvalid, what)
	}
	for what, opts := range map[string][]Option{
		"two that acknowledge":           {Redeliver(), Collected()},
		"two that acknowledge, by ranks": {Redeliver(), Collected(1), Unacknowledged(3)},
		"a collector twice":              {Collected(1, 1)},
		"no request acknowledges":        {OneAtATime(), Queue(1)},
		"a collector acknowledges":       {OneAtATime(), Collected()},
		"nothing is unacknowledged":      {Unacknowledged(10), Queue(5)},
	} {
		for range opts {
			_, err := NewSupplier(w, opts...)
			refused(what, err)
			opts = append(opts[1:], opts[0])
		}
	}
	for what, opts := range map[string][]ClientOption{
		"two windows":           {From(1), Window(4), AdaptiveWindow(4)},
		"two bounds":            {From(1), MaxChunk(100), Longest(100)},
		"no room beside header": {From(1), MaxChunk(recordHeader), Numbered()},
		"no bound":              {From(1), Longest(0)},
		"a bound below 0":       {From(1), Longest(-1)},
		"of another job":        {From(1), LeasesOf(other)},
	} {
		for range opts {
			_, err := NewClient(w, opts...)
			refused(what, err)
			opts = append(opts[1:], opts[0])
		}
	}
	for what, opts := range map[string][]CollectorOption{
		"two that acknowledge": {AcknowledgeBy(acknowledge), AcknowledgeTo(w, 1)},
		"to itself":            {AcknowledgeTo(w, 0)},
		"no bound":             {LongestResult(0)},
	} {
		for range opts {
			_, err := NewCollector(w, opts...)
			refused(what, err)
			opts = append(opts[1:], opts[0])
		}
	}

	for _, opts := range [][]Option{
		{Redeliver(), Redeliver(), Unacknowledged(3), Unacknowledged(5)},
		{Collected(1), Collected(2)},
		{Redeliver(), OneAtATime(), Queue(3), Batch(100), Timed()},
		{Collected(1), Workers(1, 2), Queue(3), Unacknowledged(1)},
		{Batch(100)},
	} {
		s := newSupplier(t, w, opts...)
		require.NoError(t, s.Close())
	}
	for _, opts := range [][]ClientOption{
		{From(1), Window(3), Window(4), Numbered(), MaxChunk(recordHeader + 1), LeasesOf(jobs[0])},
		{From(1, 2), AdaptiveWindow(3), Longest(1)},
		{From(1), MaxChunk(1)},
	} {
		c := newClient(t, w, opts...)
		require.NoError(t, c.Close())
	}
	newCollector(t, w, AcknowledgeTo(w, 1), Reorder(0), LongestResult(1), ResultsOf(1))
}
