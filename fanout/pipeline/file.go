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
	// DefaultClump is how many items a chunk of a file has at most.
	DefaultClump = 256
	// DefaultChunkBytes is the size in bytes from which on a chunk of a file is full.
	DefaultChunkBytes = 1 << 20
)

// FileOptions are the options of [File].
type FileOptions struct {
	Name       string // for errors; empty: none
	Clump      int    // maximum of items in a chunk; 0: DefaultClump
	ChunkBytes int    // size from which on a chunk is full, whatever Clump is; 0: DefaultChunkBytes
	ItemLimit  int64  // maximum size of an item in bytes; 0: ring.DefaultLimit
}

// EventFile makes chunks from an event file. Its Next is a [Source].
type EventFile struct {
	o      FileOptions
	r      *ring.Reader
	clock  ring.Clock
	offset atomic.Int64
}

// File returns an EventFile of the items that r yields from now on. It does not close r.
func File(r io.Reader, o FileOptions) *EventFile {
	o.Clump = cmp.Or(max(o.Clump, 0), DefaultClump)
	o.ChunkBytes = cmp.Or(max(o.ChunkBytes, 0), DefaultChunkBytes)
	return &EventFile{o: o, r: ring.NewReader(r, o.ItemLimit)}
}

// Next is a [Source]. For a damaged item it returns a [*ring.DamageError] with the offset in
// the file, together with the items before it in its chunk. It checks the context between
// items: it does not interrupt a Read of r.
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

// Offset returns how many bytes of the file the chunks contain so far. Any goroutine may call
// it at any time.
func (f *EventFile) Offset() int64 { return f.offset.Load() }
