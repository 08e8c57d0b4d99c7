// Package filter transforms chunks of data with other programs, called filters.
//
//	p, err := filter.Start(filter.Command{Args: []string{"./keep"}})
//	out, err = p.Do(ctx, chunk, out)                // a chunk, and then the next
//	err = p.Close()
//	out, err = filter.Once(ctx, command, chunk, out) // a process for this chunk alone
//	err := filter.Serve(os.Stdin, os.Stdout, limit, f) // in a filter written in Go
//
// A filter reads chunks on standard input and writes what it keeps of each to standard output.
//
// A [Process] lives for many chunks. As standard input and output have no boundaries, each
// chunk is a frame, in both directions:
//
//	0  length of what follows, in bytes; little-endian, 32 bits
//	4  the bytes
//
// A filter answers each frame with one frame, in order; a frame of length 0 says that nothing
// of the chunk is kept. End of file on its standard input tells it to end. [Serve] implements
// this in Go.
//
// [Once] starts a process for one chunk, which is all of its standard input; all of its output
// is the answer. Any program that reads to the end of file will do.
//
// If a filter ends before it has answered, or its frames are invalid, its chunk has not been
// processed: after the [*Error], give the chunk to another filter.
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

// DefaultLimit is how long an answer may be by default, in bytes.
const DefaultLimit = 64 << 20

// EnvLimit is the environment variable that tells a filter how long a chunk and an answer may
// be, in bytes, if that is not DefaultLimit.
const EnvLimit = "SLUICE_FILTER_LIMIT"

// ErrFrame is the error of a frame that is longer than the limit.
var ErrFrame = errors.New("frame is longer than the limit")

// AppendFrame appends a frame with the bytes of chunk to b and returns the result. It panics
// if the chunk has 4 GiB or more.
func AppendFrame(b, chunk []byte) []byte {
	if len(chunk) > math.MaxUint32 {
		panic("filter: a frame of 4 GiB or more")
	}
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(chunk))), chunk...)
}

// ReadFrame reads a frame of at most limit bytes (0: DefaultLimit) from r, appends its bytes
// to b and returns the result. Memory grows with the bytes that arrive, not with the announced
// length. The error is [io.EOF] if r ends before the frame, and [io.ErrUnexpectedEOF] if it
// ends inside. It is [ErrFrame] if the frame is too long; the rest of r cannot be parsed then.
func ReadFrame(r io.Reader, b []byte, limit int) ([]byte, error) {
	at := len(b)
	b = slices.Grow(b, FrameHeader)[:at+FrameHeader]
	if _, err := io.ReadFull(r, b[at:]); err != nil {
		return b[:at], err
	}
	n := int64(binary.LittleEndian.Uint32(b[at:]))
	b = b[:at]
	if n > int64(orDefault(limit)) {
		return b, fmt.Errorf("%w: %d bytes, but at most %d are allowed", ErrFrame, n, orDefault(limit))
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

// Serve is the filter's side. It reads frames from r, each of at most limit bytes (0: what
// [EnvLimit] says, else DefaultLimit), and answers each on w, until r ends. transform appends
// what it keeps of a chunk to out and returns the result; if it fails, Serve returns its error
// and does not answer the chunk. Both slices are valid only during the call.
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
