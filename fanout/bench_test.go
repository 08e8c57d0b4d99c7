package fanout

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkChunk measures the time of a chunk from a supplier to one worker, in each dialect,
// within this process: over shm, with two jobs.
func BenchmarkChunk(b *testing.B) {
	for _, c := range []struct {
		name     string
		supplier []Option
		client   []ClientOption
		each     int // chunks at a time
	}{
		{"plain", nil, []ClientOption{MaxChunk(64)}, 0},
		{"window", nil, []ClientOption{MaxChunk(64), Window(8)}, 0},
		{"numbered", nil, []ClientOption{MaxChunk(64 + recordHeader), Numbered()}, 0},
		{"numbered window", nil, []ClientOption{MaxChunk(64 + recordHeader), Numbered(), Window(8)}, 0},
		{"each", []Option{Batch(4096)}, []ClientOption{MaxChunk(4096), Numbered(), Window(8)}, 64},
		{"queue", []Option{Queue(256), Batch(4096)}, []ClientOption{MaxChunk(4096), Numbered(), Window(2)}, 0},
		{"redeliver", []Option{Redeliver()}, []ClientOption{MaxChunk(64 + recordHeader), Numbered(), Window(8)}, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := comms(b, "shm", 2)
			s := newSupplier(b, w[0], c.supplier...)
			worker := releaseAll(w[1], c.client...)
			chunk := make([]byte, 64)
			chunks := slices.Repeat([][]byte{chunk}, c.each)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				var err error
				if c.each == 0 {
					err = s.Send(b.Context(), chunk)
				} else if n%c.each == 0 {
					_, err = s.SendEach(b.Context(), chunks...)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, s.End(context.Background()))
			require.NoError(b, <-worker)
		})
	}
}
