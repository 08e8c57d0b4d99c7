package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

const (
	// DefaultClump is how many items a chunk of a file has.
	DefaultClump = 256
	// DefaultChunkBytes is from which size on a chunk of a file is full, in bytes.
	DefaultChunkBytes = 1 << 20
)

// FileOptions are those of [File].
type FileOptions struct {
	Name       string // for errors; empty: none
	Clump      int    // items of a chunk; 0: DefaultClump
	ChunkBytes int    // size from which on it is full, whatever Clump says; 0: DefaultChunkBytes
	ItemLimit  int64  // bytes of an item; 0: ring.DefaultLimit
}

// EventFile makes chunks of an event file. Its Next is a [Source].
type EventFile struct {
	o      FileOptions
	r      *ring.Reader
	clock  ring.Clock
	offset atomic.Int64
}

// File returns the chunks of the items that r has from here on. It does not close r.
func File(r io.Reader, o FileOptions) *EventFile {
	o.Clump = cmp.Or(max(o.Clump, 0), DefaultClump)
	o.ChunkBytes = cmp.Or(max(o.ChunkBytes, 0), DefaultChunkBytes)
	return &EventFile{o: o, r: ring.NewReader(r, o.ItemLimit)}
}

// Next is a [Source]. Damage is a [*ring.DamageError] with the offset in the file, and
// comes with the items of its chunk before it. The context is asked between items: for
// more it is up to r to come back.
func (f *EventFile) Next(ctx context.Context, chunk []byte) ([]byte, error) {
	var it ring.Item
	for n := 0; n < f.o.Clump && len(chunk) < f.o.ChunkBytes; n++ {
		if err := ctx.Err(); err != nil {
			return chunk, err
		}
		raw, err := f.r.Next(&it)
		if err != nil {
			if err != io.EOF && f.o.Name != "" {
				err = fmt.Errorf("%s: %w", f.o.Name, err)
			}
			return chunk, err
		}
		chunk = ring.AppendStamped(chunk, f.clock.Stamp(&it), raw)
		f.offset.Store(f.r.Offset())
	}
	return chunk, nil
}

// Offset returns how many bytes of the file the chunks have until now. It may be called
// at any time.
func (f *EventFile) Offset() int64 { return f.offset.Load() }
