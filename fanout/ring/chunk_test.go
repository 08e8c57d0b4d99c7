package ring_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// TestClock has the rules of timestamps, one after the other.
func TestClock(t *testing.T) {
	with := func(typ ring.Type, timestamp uint64) ring.Item {
		return ring.Item{Type: typ, HasHeader: true, Header: ring.Header{Timestamp: timestamp}}
	}
	var c ring.Clock
	for i, step := range []struct {
		item ring.Item
		want uint64
	}{
		{ring.Item{Type: ring.PhysicsEvent}, 0},
		{with(ring.PhysicsEvent, 7), 7},
		{ring.Item{Type: ring.PeriodicScalers}, 7},
		{with(ring.PhysicsEvent, ring.NullTimestamp), 7},
		{with(ring.PhysicsEvent, 5), 5},
		{with(ring.PhysicsEvent, 1<<63), 1 << 63},
		{ring.Item{Type: ring.RingFormat}, 0},
		{ring.Item{Type: ring.BeginRun}, 0},
		{with(ring.BeginRun, 3), 3},
		{with(ring.RingFormat, 9), 0},
		{with(ring.EndRun, ring.NullTimestamp), 0},
	} {
		require.Equal(t, step.want, c.Stamp(&step.item), "step %d", i)
	}
	c = ring.NewClock(11)
	require.EqualValues(t, 11, c.Stamp(&ring.Item{}))
}

// TestGoldenChunk: timestamp, item, timestamp, item.
func TestGoldenChunk(t *testing.T) {
	event := ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Header: ring.Header{Timestamp: 258, SourceID: 2}, Body: []byte{0xaa}}
	scaler := ring.Item{Type: ring.PeriodicScalers}
	items := scaler.Append(event.Append(nil, ring.V12), ring.V12)
	var c ring.Clock
	chunk, n, err := ring.AppendAll([]byte{1, 2, 3}, items, &c, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, unhex(t, `010203
		0201000000000000  1d000000 1e000000 14000000 0201000000000000 02000000 00000000 aa
		0201000000000000  0c000000 14000000 04000000`), chunk)
	n, err = ring.Check(chunk[3:], 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	stripped, err := ring.AppendStripped([]byte{9}, chunk[3:], 0)
	require.NoError(t, err)
	require.Equal(t, append([]byte{9}, items...), stripped)
}

// TestChunkProperty: stamping and stripping reproduce the file, the timestamps are those of the
// clock, and every truncation is found at its offset.
func TestChunkProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 100 {
		items, starts := file(t, r, r.IntN(8), 20)
		var c, again ring.Clock
		chunk, n, err := ring.AppendAll(nil, items, &c, 0)
		require.NoError(t, err)
		require.Equal(t, len(starts), n)
		i := 0
		for e, err := range ring.Entries(chunk, 0) {
			require.NoError(t, err)
			require.Equal(t, again.Stamp(&e.Item), e.Timestamp)
			var it ring.Item
			_, err = ring.Parse(&it, items[starts[i]:], 0)
			require.NoError(t, err)
			require.Equal(t, it, e.Item)
			i++
		}
		require.Equal(t, n, i)
		stripped, err := ring.AppendStripped(nil, chunk, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(items, stripped))
		if len(chunk) == 0 {
			continue
		}

		cut := r.IntN(len(chunk))
		whole := 0 // items before the cut
		for whole+1 < n && int(starts[whole+1])+(whole+1)*ring.StampLen <= cut {
			whole++
		}
		begin := int(starts[whole]) + whole*ring.StampLen
		if cut == begin {
			continue // between two items
		}
		got, err := ring.Check(chunk[:cut], 0)
		require.ErrorIs(t, err, ring.ErrTruncated)
		require.Equal(t, whole, got)
		at := begin
		if cut-begin >= ring.StampLen {
			at += ring.StampLen
		}
		require.EqualValues(t, at, err.(*ring.DamageError).Offset)
		part, err := ring.AppendStripped(nil, chunk[:cut], 0)
		require.ErrorIs(t, err, ring.ErrTruncated)
		require.True(t, bytes.Equal(items[:starts[whole]], part))
	}
}

func TestAppendAllDamage(t *testing.T) {
	items, starts := file(t, rand.New(rand.NewPCG(15, 16)), 4, 20)
	items[starts[2]] = 2
	copy(items[starts[2]+1:], []byte{0, 0, 0})
	var c ring.Clock
	chunk, n, err := ring.AppendAll(nil, items, &c, 0)
	require.Equal(t, 2, n)
	require.Equal(t, &ring.DamageError{Offset: starts[2], Size: 2, Err: ring.ErrTooSmall}, err)
	stripped, err := ring.AppendStripped(nil, chunk, 0)
	require.NoError(t, err)
	require.Equal(t, items[:starts[2]], stripped)
}

// An iteration may be left at any item.
func TestEntriesBreak(t *testing.T) {
	items, _ := file(t, rand.New(rand.NewPCG(17, 18)), 4, 20)
	var c ring.Clock
	chunk, _, err := ring.AppendAll(nil, items, &c, 0)
	require.NoError(t, err)
	n := 0
	for range ring.Entries(chunk, 0) {
		if n++; n == 2 {
			break
		}
	}
	require.Equal(t, 2, n)
}

// FuzzChunk: the three ways to read a chunk agree.
func FuzzChunk(f *testing.F) {
	items, _ := file(f, rand.New(rand.NewPCG(19, 20)), 4, 12)
	var c ring.Clock
	chunk, _, err := ring.AppendAll(nil, items, &c, 0)
	require.NoError(f, err)
	f.Add(chunk)
	f.Add(chunk[:len(chunk)-1])
	f.Add(chunk[:5])
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 9
		n, err := ring.Check(b, limit)
		var again, want []byte
		got := 0
		for e, entryErr := range ring.Entries(b, limit) {
			if entryErr != nil {
				require.Equal(t, err, entryErr)
				break
			}
			again = ring.AppendStamped(again, e.Timestamp, e.Bytes)
			want = append(want, e.Bytes...)
			got++
		}
		require.Equal(t, n, got)
		require.True(t, bytes.HasPrefix(b, again))
		require.Equal(t, err == nil, len(again) == len(b))
		stripped, stripErr := ring.AppendStripped(nil, b, limit)
		require.Equal(t, err, stripErr)
		require.Equal(t, want, stripped)
	})
}
