// Package filter has chunks of data transformed by other programs: filters, which read
// chunks on standard input and write what is left of each on standard output.
//
// A [Process] lives for many chunks. As standard input and output have no boundaries,
// each chunk is a frame, both ways:
//
//	0  length of what follows, in bytes; little-endian, 32 bits
//	4  so many bytes
//
// A filter answers each frame with one frame, in order; one of length 0 says that
// nothing of the chunk is kept. End of file on its standard input tells it to end. In Go
// [Serve] is all that this takes.
//
// [Once] starts a process for one chunk, which begins and ends with its standard input
// and output: any program that reads to the end of file will do.
//
// A filter that ends before it has answered, or whose frames are wrong, has done nothing
// with its chunk: the [*Error] tells its user to give it to another one.
package filter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
)

// FrameHeader is the size of the length before the bytes of a frame, in bytes.
const FrameHeader = 4

// DefaultLimit is how long an answer may be unless something else is said, in bytes.
const DefaultLimit = 64 << 20

// EnvLimit is the variable of the environment by which a filter is told how long a chunk and an
// answer may be, in bytes, where that is not DefaultLimit.
const EnvLimit = "SLUICE_FILTER_LIMIT"

// ErrFrame is the error of a frame that is longer than the limit.
var ErrFrame = errors.New("frame is longer than the limit")

// AppendFrame appends a frame with the bytes of chunk to b and returns it. A chunk of
// 4 GiB and more panics.
func AppendFrame(b, chunk []byte) []byte {
	if len(chunk) > math.MaxUint32 {
		panic("filter: a frame of 4 GiB and more")
	}
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(chunk))), chunk...)
}

// ReadFrame reads a frame of at most limit bytes (0: DefaultLimit) from r, appends its
// bytes to b and returns it. Memory grows with what comes, not with what the length says.
// Where r ends before the frame begins, the error is [io.EOF]; where it ends inside,
// [io.ErrUnexpectedEOF]. [ErrFrame]: it is too long, and the rest of r is of no use.
func ReadFrame(r io.Reader, b []byte, limit int) ([]byte, error) {
	at := len(b)
	b = slices.Grow(b, FrameHeader)[:at+FrameHeader]
	if _, err := io.ReadFull(r, b[at:]); err != nil {
		return b[:at], err
	}
	n := int64(binary.LittleEndian.Uint32(b[at:]))
	b = b[:at]
	if n > int64(orDefault(limit)) {
		return b, fmt.Errorf("%w: %d bytes of %d", ErrFrame, n, orDefault(limit))
	}
	for n > 0 {
		b = slices.Grow(b, int(min(n, piece)))
		part := b[len(b) : len(b)+int(min(n, int64(cap(b)-len(b))))]
		got, err := io.ReadFull(r, part)
		b = b[:len(b)+got]
		n -= int64(got)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return b[:at], err
		}
	}
	return b, nil
}

// piece is how much memory ReadFrame asks for at once, in bytes.
const piece = 64 << 10

func orDefault(limit int) int {
	if limit <= 0 {
		return DefaultLimit
	}
	return limit
}

// Serve is the filter's side: it answers the frames that come from r, each of at most
// limit bytes (0: what [EnvLimit] says, else DefaultLimit), on w, until r ends. transform
// appends what is kept of a chunk to out and returns it; its error ends Serve with it, and the
// chunk goes unanswered. Both slices are valid during the call only.
func Serve(r io.Reader, w io.Writer, limit int, transform func(chunk, out []byte) ([]byte, error)) error {
	if limit <= 0 {
		limit, _ = strconv.Atoi(os.Getenv(EnvLimit)) // else 0
	}
	var chunk, answer []byte
	for {
		var err error
		if chunk, err = ReadFrame(r, chunk[:0], limit); err != nil {
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("filter: %w", err)
		}
		answer = append(answer[:0], make([]byte, FrameHeader)...)
		if answer, err = transform(chunk, answer); err != nil {
			return err
		}
		if len(answer)-FrameHeader > math.MaxUint32 {
			return fmt.Errorf("filter: answer: %w: %d bytes", ErrFrame, len(answer)-FrameHeader)
		}
		binary.LittleEndian.PutUint32(answer, uint32(len(answer)-FrameHeader))
		if _, err := w.Write(answer); err != nil {
			return err
		}
	}
}
