package ring

import (
	"errors"
	"fmt"
	"io"
)

// bufferLen is how many bytes a Reader reads and a Writer writes at once: enough to make system
// calls cheap, few enough to stay in a core's cache.
const bufferLen = 256 << 10

// sniffLen is how many bytes of a file are looked at, at the least, before its first item is
// called damaged: they may be of another format.
const sniffLen = 8 << 10

// emptyReads is how often in a row a Read may return nothing and no error, as in bufio.
const emptyReads = 100

// Reader reads the items of an event file. Its buffer has 256 KiB, or grows to the largest item
// so far, at most to the limit; while it grows, the old buffer takes as much again. A damaged
// size costs no more memory than the file has bytes.
type Reader struct {
	r      io.Reader
	limit  int64
	buf    []byte
	lo, hi int   // buf[lo:hi] was read and not yet returned
	offset int64 // of buf[lo] in the file
	err    error // of r, after buf[hi]
	broken error // what Next returns from now on
}

// NewReader returns a Reader of the items that r yields from now on, each of at most limit
// bytes (0: DefaultLimit). It does not close r.
func NewReader(r io.Reader, limit int64) *Reader {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Reader{r: r, limit: limit, buf: make([]byte, bufferLen)}
}

// Offset returns where the next item begins: the size of all items that Next has returned.
func (r *Reader) Offset() int64 { return r.offset }

// Next reads the next item into it, and returns its bytes. Both are valid until the next call.
// It allocates only for an item that is larger than all before.
//
// The error after the last item is [io.EOF]. For a damaged item it is a [*DamageError] with the
// offset in the file, counted from where the Reader began; for the first item of a file of
// another version or byte order, a [*FormatError]. Any other error is that of the file, wrapped
// with the offset. After an error, every call returns it.
func (r *Reader) Next(it *Item) ([]byte, error) {
	if r.broken != nil {
		return nil, r.broken
	}
	b, err := r.next(it)
	if err != nil {
		var damage *DamageError
		switch {
		case errors.As(err, &damage):
			damage.Offset = r.offset
		case err != io.EOF && !errors.As(err, new(*FormatError)):
			err = fmt.Errorf("ring: byte %d: %w", r.offset, err)
		}
		r.broken = err
	}
	return b, err
}

func (r *Reader) next(it *Item) ([]byte, error) {
	if err := r.fill(MinItem); err != nil {
		return nil, err
	}
	if r.lo == r.hi {
		return nil, io.EOF
	}
	size, body, err := check(r.buf[r.lo:r.hi], r.limit)
	if r.offset == 0 {
		if err != nil {
			r.fill(sniffLen) // what there is of it will do
		}
		if err := CheckFormat(r.buf[r.lo:r.hi], r.limit); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if err := r.fill(int(size)); err != nil {
		return nil, err
	}
	if int64(r.hi-r.lo) < size {
		return nil, &DamageError{Size: size, Have: int64(r.hi - r.lo), Err: ErrTruncated}
	}
	b := r.buf[r.lo : r.lo+int(size) : r.lo+int(size)]
	r.lo += int(size)
	r.offset += size
	it.take(b, body)
	return b, nil
}

// fill reads until n bytes are there. It is no error if the file ends before.
func (r *Reader) fill(n int) error {
	for r.hi-r.lo < n && r.err == nil {
		if r.lo > 0 && r.lo+n > len(r.buf) {
			r.hi = copy(r.buf, r.buf[r.lo:r.hi])
			r.lo = 0
		}
		// The buffer grows with the bytes that arrive, not with the size that an item claims.
		if r.hi == len(r.buf) {
			grown := make([]byte, min(n, 2*len(r.buf)))
			r.hi = copy(grown, r.buf[r.lo:r.hi])
			r.lo, r.buf = 0, grown
		}
		r.read()
	}
	if r.hi-r.lo < n && r.err != io.EOF {
		return r.err
	}
	return nil
}

// read reads once, as much as is there and fits.
func (r *Reader) read() {
	for range emptyReads {
		var n int
		n, r.err = r.r.Read(r.buf[r.hi:])
		r.hi += n
		if n > 0 || r.err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}
