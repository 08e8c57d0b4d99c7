package ring

import (
	"bufio"
	"io"
)

// Writer writes the items of an event file.
type Writer struct {
	w       *bufio.Writer
	version Version
	item    []byte // the item that is being encoded
	offset  int64
}

// NewWriter returns a Writer that writes items of version v to w. It does not close w. It
// panics if the version is invalid.
func NewWriter(w io.Writer, v Version) *Writer {
	if !v.Valid() {
		panic("ring: no version " + v.String())
	}
	return &Writer{w: bufio.NewWriterSize(w, bufferLen), version: v}
}

// Write writes an item. The error is that of the underlying writer; after an error, every call
// returns it.
func (w *Writer) Write(it *Item) error {
	w.item = it.Append(w.item[:0], w.version)
	return w.WriteRaw(w.item)
}

// WriteRaw writes the bytes of items that are already encoded, in any version.
func (w *Writer) WriteRaw(items []byte) error {
	n, err := w.w.Write(items)
	w.offset += int64(n)
	return err
}

// Offset returns how many bytes have been written, including those that wait for Flush.
func (w *Writer) Offset() int64 { return w.offset }

// Flush writes all buffered bytes to the underlying writer.
func (w *Writer) Flush() error { return w.w.Flush() }
