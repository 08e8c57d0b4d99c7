package ring

import (
	"bufio"
	"io"
)

// Writer writes the items of an event file.
type Writer struct {
	w       *bufio.Writer
	version Version
	item    []byte // that is being encoded
	offset  int64
}

// NewWriter returns a Writer that writes items of version v to w. It does not close w.
func NewWriter(w io.Writer, v Version) *Writer {
	if !v.Valid() {
		panic("ring: no version " + v.String())
	}
	return &Writer{w: bufio.NewWriterSize(w, bufferLen), version: v}
}

// Write writes an item. The error is that of what is beneath; it stays.
func (w *Writer) Write(it *Item) error {
	w.item = it.Append(w.item[:0], w.version)
	return w.WriteRaw(w.item)
}

// WriteRaw writes the bytes of items that are there already, in whatever version.
func (w *Writer) WriteRaw(items []byte) error {
	n, err := w.w.Write(items)
	w.offset += int64(n)
	return err
}

// Offset returns how many bytes were written, those included that wait for Flush.
func (w *Writer) Offset() int64 { return w.offset }

// Flush hands all that was written to what is beneath.
func (w *Writer) Flush() error { return w.w.Flush() }
