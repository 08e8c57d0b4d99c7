package fanout

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// chunkLen returns the length of a test chunk: around the lengths at which messages change their
// path.
func chunkLen(seq int) int {
	return []int{1, 64, 240, 241, 4096, 65536, 65537, 200_000}[seq%8]
}

// Each chunk reaches one worker, and all workers get their end: in every dialect, on each path of
// messages, with fewer and with more chunks than workers.
func TestDelivery(t *testing.T) {
	type dialect struct {
		name     string
		supplier []Option
		client   []ClientOption
	}
	dialects := []dialect{
		{"plain", nil, nil},
		{"window", nil, []ClientOption{Window(4)}},
		{"posted", nil, []ClientOption{Window(3), MaxChunk(200_000)}},
		{"adaptive", nil, []ClientOption{AdaptiveWindow(8)}},
		{"queue", []Option{Queue(8), Timed()}, []ClientOption{Window(2)}},
		{"numbered", nil, []ClientOption{Numbered()}},
		{"batch", []Option{Queue(64), Batch(1000)}, []ClientOption{Numbered(), Window(3)}},
		{"batch posted", []Option{Queue(64), Batch(1000)}, []ClientOption{Numbered(), Window(3), MaxChunk(200_016)}},
		{"redeliver", []Option{Redeliver(), Unacknowledged(16)}, []ClientOption{Numbered(), Window(2)}},
		{"redeliver, plain", []Option{Redeliver(), Queue(4)}, nil},
	}
	deliver := func(t *testing.T, place string) {
		needPlace(t, place)
		if place == "ibv" {
			need.Long(t)
		}
		sizes, counts, dialects := []int{2, 3, 5}, []int{0, 1, 24}, dialects
		switch {
		case need.WantLong():
			sizes = append(sizes, 17)
		case seldom(place): // shm has the others
			dialects = slices.DeleteFunc(slices.Clone(dialects), func(d dialect) bool {
				return !slices.Contains([]string{"plain", "batch posted", "redeliver"}, d.name)
			})
			fallthrough
		case testing.Short(), place == "packets":
			sizes, counts = sizes[1:2], counts[2:]
		}
		for _, size := range sizes {
			w := comms(t, place, size)
			for _, d := range dialects {
				if size != 3 && d.name != "plain" && d.name != "batch" {
					continue // it is not about their number
				}
				for _, count := range counts {
					t.Run(fmt.Sprintf("%d/%s/%d", size, d.name, count), func(t *testing.T) {
						ctx := ranks.Within(t)
						w := dup(t, w)
						var mu sync.Mutex
						got := map[int]int{}
						sides := []func() error{func() error {
							s := newSupplier(t, w[0], d.supplier...)
							for i := range count {
								b := pattern(i, chunkLen(i))
								cut := i % (len(b) + 1)
								if err := s.Send(ctx, b[:cut], b[cut:]); err != nil {
									return err
								}
								clear(b) // it is ours again
							}
							return s.End(ctx)
						}}
						for _, c := range w[1:] {
							sides = append(sides, func() error {
								c := newClient(t, c, d.client...)
								for {
									k, err := c.Receive(ctx)
									if err == io.EOF {
										return c.Close()
									}
									if err != nil {
										return err
									}
									i := seqOf(k.Bytes())
									if i >= count || !bytes.Equal(k.Bytes(), pattern(i, chunkLen(i))) || d.name == "numbered" && k.Seq() != uint64(i) {
										return fmt.Errorf("a chunk of %d bytes, number %d, was never sent", len(k.Bytes()), k.Seq())
									}
									k.Release()
									k.Release()
									mu.Lock()
									got[i]++
									mu.Unlock()
								}
							})
						}
						noErrors(t, together(sides...))
						require.Len(t, got, count)
						for i, n := range got {
							require.Equal(t, 1, n, "chunk %d", i)
						}
					})
				}
			}
		}
	}
	for _, place := range places() {
		t.Run(place, func(t *testing.T) { deliver(t, place) })
	}
}
