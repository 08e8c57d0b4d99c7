package pipeline

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Part is the suffix of the name of an [Output] that is not complete.
const Part = ".part"

// Output writes an event file. Until the file is complete its name ends in [Part]: a crash
// leaves no incomplete file under the final name, and keeps an older file. Its Sink is a
// [Sink]. It belongs to one goroutine at a time.
type Output struct {
	path    string // empty: it is written in place
	file    *os.File
	w       *bufio.Writer
	written atomic.Int64
}

// Create begins an event file. A path that exists and is not a regular file, such as a pipe or
// a device, is written to directly. The error is that of package os.
func Create(path string) (*Output, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		return newOutput("", file), nil
	}
	file, err := os.Create(path + Part)
	if err != nil {
		return nil, err
	}
	return newOutput(path, file), nil
}

// To begins an event file in an open file, such as a pipe or standard output. Commit and
// Discard close it.
func To(file *os.File) *Output { return newOutput("", file) }

func newOutput(path string, file *os.File) *Output {
	return &Output{path: path, file: file, w: bufio.NewWriterSize(file, 256<<10)}
}

// Sink writes the items of a chunk, which it does not check, without their timestamps.
func (o *Output) Sink(_ context.Context, items []byte) error {
	le := binary.LittleEndian
	for len(items) > 0 {
		n := ring.StampLen + int(le.Uint32(items[ring.StampLen:]))
		if _, err := o.Write(items[ring.StampLen:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// Write writes bytes of items as they are. It implements [io.Writer].
func (o *Output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	o.written.Add(int64(n))
	return n, err
}

// Bytes returns how many bytes have been written to the file so far, including buffered ones.
// Any goroutine may call it at any time.
func (o *Output) Bytes() int64 { return o.written.Load() }

// Commit completes the file: it writes the file to disk, closes it, and renames it to its final
// name. After an error the file is gone, as after Discard.
func (o *Output) Commit() error {
	err := o.w.Flush()
	if err == nil && o.path != "" {
		err = o.file.Sync()
	}
	if err != nil {
		return errors.Join(err, o.Discard())
	}
	if err := o.file.Close(); err != nil || o.path == "" {
		return err
	}
	if err := os.Rename(o.path+Part, o.path); err != nil {
		return errors.Join(err, os.Remove(o.path+Part))
	}
	return syncDir(filepath.Dir(o.path))
}

// Discard closes and removes the file. A file that was written directly is only closed.
func (o *Output) Discard() error {
	err := o.file.Close()
	if o.path != "" {
		err = errors.Join(err, os.Remove(o.path+Part))
	}
	return err
}

// syncDir writes a directory to disk, where directories can be synced.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Some file systems, and Windows, cannot sync a directory.
	dir.Sync()
	return nil
}

// Strip returns a [Sink] that writes the items of chunks to w without their timestamps.
func Strip(w io.Writer) Sink {
	var b []byte
	return func(_ context.Context, items []byte) (err error) {
		// Their sizes have been checked: none is larger than all of them.
		if b, err = ring.AppendStripped(b[:0], items, int64(len(items))+1); err == nil {
			_, err = w.Write(b)
		}
		return err
	}
}
