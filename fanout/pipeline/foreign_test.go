package pipeline_test

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// TestGoldenForeign: worker number, then timestamp and item.
func TestGoldenForeign(t *testing.T) {
	item := (&ring.Item{Type: ring.EndRun}).Append(nil, ring.V12)
	message := pipeline.AppendForeign(nil, 0x0102, ring.AppendStamped(nil, 3, item))
	require.Equal(t, "02010000"+"0300000000000000"+"0c0000000200000004000000", hex.EncodeToString(message))
	require.Equal(t, "02010000", hex.EncodeToString(pipeline.AppendForeignEnd(nil, 0x0102)))
	worker, chunk, err := pipeline.ParseForeign(message)
	require.NoError(t, err)
	require.EqualValues(t, 0x0102, worker)
	require.Equal(t, message[4:], chunk)
	for _, bad := range []string{"", "000000", "00000000"} {
		b, err := hex.DecodeString(bad)
		require.NoError(t, err)
		_, _, err = pipeline.ParseForeign(b)
		require.ErrorIs(t, err, pipeline.ErrForeign)
	}
	require.Panics(t, func() { pipeline.AppendForeign(nil, 1, nil) })
}

// TestForeignSorter lets workers send whenever there is room: what comes out is the naive
// merge of chunks by their first timestamps, and there is always a worker to go on with.
func TestForeignSorter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		workers, window := 1+r.IntN(5), 1+r.IntN(4)
		s := pipeline.NewForeignSorter(workers, window, 0)
		left := make([][]entry, workers) // a chunk as an entry: its first timestamp, its bytes
		for i := range left {
			for range r.IntN(30) {
				chunk := ring.AppendStamped(nil, r.Uint64N(50), (&ring.Item{Type: ring.FirstUserItem + ring.Type(r.Uint32N(1000))}).Append(nil, ring.V12))
				left[i] = append(left[i], entry{uint64(chunk[0]), string(chunk)})
			}
		}
		want := merged(append([][]entry(nil), left...))
		var got []entry
		for !s.Done() {
			if chunk, ok := s.Next(nil); ok {
				got = append(got, entry{uint64(chunk[0]), string(chunk)})
				continue
			}
			var able []int
			for i := range left {
				if s.Room(uint32(i + 1)) {
					able = append(able, i)
				}
			}
			require.NotEmpty(t, able)
			i := able[r.IntN(len(able))]
			if len(left[i]) == 0 {
				require.NoError(t, s.Put(pipeline.AppendForeignEnd(nil, uint32(i+1))))
				continue
			}
			require.NoError(t, s.Put(pipeline.AppendForeign(nil, uint32(i+1), []byte(left[i][0].item))))
			left[i] = left[i][1:]
		}
		require.Equal(t, want, got)
		_, ok := s.Next(nil)
		require.False(t, ok)
	}
}

func TestForeignErrors(t *testing.T) {
	chunk := ring.AppendStamped(nil, 1, (&ring.Item{}).Append(nil, ring.V12))
	s := pipeline.NewForeignSorter(2, 1, 0)
	require.False(t, s.Room(0))
	require.False(t, s.Room(3))
	require.ErrorIs(t, s.Put(nil), pipeline.ErrForeign)
	require.ErrorContains(t, s.Put(pipeline.AppendForeign(nil, 3, chunk)), "worker 3 of 2")
	require.ErrorContains(t, s.Put(pipeline.AppendForeign(nil, 1, chunk[:9])), "worker 1: ring: byte 8: ")
	require.NoError(t, s.Put(pipeline.AppendForeign(nil, 1, chunk)))
	require.ErrorContains(t, s.Put(pipeline.AppendForeign(nil, 1, chunk)), "worker 1 has no room: 1 of its chunks")
	require.NoError(t, s.Put(pipeline.AppendForeignEnd(nil, 2)))
	require.ErrorContains(t, s.Put(pipeline.AppendForeignEnd(nil, 2)), "worker 2 has already ended")
}

// FuzzForeign: a sorter accepts every message for which Room reports room.
func FuzzForeign(f *testing.F) {
	chunk := ring.AppendStamped(nil, 1, (&ring.Item{}).Append(nil, ring.V12))
	f.Add(pipeline.AppendForeign(nil, 1, chunk))
	f.Add(pipeline.AppendForeignEnd(nil, 1))
	f.Add([]byte{2, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, message []byte) {
		s := pipeline.NewForeignSorter(1, 1, 1<<10)
		err := s.Put(message)
		worker, chunk, parseErr := pipeline.ParseForeign(message)
		_, checkErr := ring.Check(chunk, 1<<10)
		if parseErr != nil || worker != 1 || checkErr != nil {
			require.ErrorIs(t, err, pipeline.ErrForeign)
			require.True(t, s.Room(1))
			return
		}
		require.NoError(t, err)
		got, ok := s.Next(nil)
		require.Equal(t, len(chunk) > 0, ok)
		require.Equal(t, string(chunk), string(got))
		require.Equal(t, len(chunk) == 0, s.Done())
	})
}
