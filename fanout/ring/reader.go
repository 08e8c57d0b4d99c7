package ring

import (
	"errors"
	"fmt"
	"io"
)

// bufferLen is what a Reader reads at once and a Writer writes at once, in bytes: enough
// that system calls do not count, little enough to stay in a core's cache.
const bufferLen = 256 << 10

// sniffLen is how many bytes of a file are looked at, at the least, before its first item is
// called damaged: they may be of another format.
const sniffLen = 8 << 10

// emptyReads is how often in a row a Read may return nothing and no error, as in bufio.
const emptyReads = 100

// Reader reads the items of an event file. Its memory is a buffer of 256 KiB, or of the
// largest item that it has met, at most the limit and as much again; a size that is
// damaged costs no more than what the file has.
type Reader struct {
	r      io.Reader
	limit  int64
	buf    []byte
	lo, hi int   // buf[lo:hi] was read and not yet given out
	offset int64 // of buf[lo] in the file
	err    error // of r, for what is behind buf[hi]
	broken error // what Next returns from now on
}

// NewReader returns a Reader of what r has from here on, for items of at most limit
// bytes (0: DefaultLimit). It does not close r.
func NewReader(r io.Reader, limit int64) *Reader {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Reader{r: r, limit: limit, buf: make([]byte, bufferLen)}
}

// Offset returns how many bytes the items had that Next has returned: where the next one
// begins.
func (r *Reader) Offset() int64 { return r.offset }

// Next reads the next item into it, and returns its bytes. Both are valid until the next
// call; nothing is allocated, unless an item is larger than all before. Behind the last
// item the error is [io.EOF]. Damage is a [*DamageError] with the offset in the file,
// counted from where the Reader began; a file of another version or byte order is a
// [*FormatError] in place of its first item. Another error is the file's, with the offset
// around it. An error stays.
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

// fill reads until n bytes are there, or the file ends, which is no error.
func (r *Reader) fill(n int) error {
	for r.hi-r.lo < n && r.err == nil {
		if r.lo > 0 && r.lo+n > len(r.buf) {
			r.hi = copy(r.buf, r.buf[r.lo:r.hi])
			r.lo = 0
		}
		// The buffer grows with what comes, not with what an item says of itself.
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

// read reads once what there is and there is room for.
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
