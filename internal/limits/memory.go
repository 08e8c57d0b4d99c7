package limits

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// reserve is the memory in bytes that stays free under each bound, for what all processes take
	// without asking; under a small bound, its reservePart.
	reserve     = 16 << 20
	reservePart = 16
	// sharers is how many processes may look at the same moment without exceeding the room
	// together: a piece is such a part of it.
	sharers = 64
	// mostPiece is the largest piece in bytes: a look takes 0.3 ms, the kernel 10 ms to zero this.
	mostPiece = 32 << 20
	// leastPiece is the smallest; sharers of them are the reserve.
	leastPiece = reserve / sharers
	// largePiece is one of which whole huge pages can be made.
	largePiece = 2 << 20
	// pieceLife is how long what has been looked at is taken to be so.
	pieceLife = 100 * time.Millisecond
)

// ErrRoom begins the errors that say how much memory was asked for, and what it exceeds.
var ErrRoom = errors.New("there is no room for")

// piece is what this process may still take of what its last look has found.
var piece struct {
	sync.Mutex
	bytes uint64
	seen  time.Time
}

// Charge allocates size bytes by calls of allocate, for a piece of them at a time, whose pages must
// be there and count as this process's when it returns. Before each piece it makes sure that the
// system has room for all that are left. If not, the error says what they exceed: the kernel would
// end a process, not return an error. Processes that do this at the same time do not exceed the
// room together, because a piece is a small part of it. Small allocations share a piece: most cost
// no look at the system.
func Charge(size int, allocate func(from, to int) error) error {
	for from := 0; from < size; {
		n, err := take(uint64(size - from))
		if err != nil {
			return err
		}
		if err := allocate(from, from+int(n)); err != nil {
			return err
		}
		from += int(n)
	}
	return nil
}

// take returns how many of so many bytes may be allocated now.
func take(size uint64) (uint64, error) {
	piece.Lock()
	defer piece.Unlock()
	if size > piece.bytes || time.Since(piece.seen) > pieceLife {
		n, err := look(size)
		if err != nil {
			return 0, err
		}
		piece.bytes, piece.seen = n, time.Now()
	}
	n := min(size, piece.bytes)
	piece.bytes -= n
	return n, nil
}

// Fits returns nil if this process may have so many more bytes of memory, as far as the system
// says, and otherwise what they exceed.
func Fits(size uint64) error {
	_, err := look(size)
	return err
}

func look(size uint64) (uint64, error) {
	h := Host{os.DirFS("/")}
	if f, err := h.Open("proc/meminfo"); err == nil {
		f.Close()
	} else if errors.Is(err, ErrFiles) { // nothing can be looked at
		return 0, Files(err)
	}
	n, err := h.piece(size)
	if err != nil {
		debug.FreeOSMemory() // what the heap does not need counts as this process's
		n, err = h.piece(size)
	}
	return n, err
}

// piece returns how many bytes may be allocated before the next look, provided that so many fit.
func (h Host) piece(size uint64) (uint64, error) {
	n := uint64(mostPiece)
	for _, r := range h.rooms(size + reserve) {
		left, keep := r.Left+r.Swap, min(reserve, r.Most/reservePart)
		if left < size+keep {
			return 0, fmt.Errorf("%w %d MiB: %d MiB are available (%s): allocate less on each rank",
				ErrRoom, (size+1<<20-1)>>20, (left-min(keep, left))>>20, r.Bound)
		}
		n = min(n, left/sharers)
	}
	if n >= largePiece {
		return n &^ (largePiece - 1), nil
	}
	return max(n&^(leastPiece-1), leastPiece), nil
}

// Left is how many more bytes of memory this process may have, as far as the system says, or enough
// if there are as many. It reads files of the kernel.
func Left(enough uint64) uint64 { return Host{os.DirFS("/")}.left(enough) }

func (h Host) left(enough uint64) uint64 {
	for _, r := range h.rooms(enough) {
		enough = min(enough, r.Left)
	}
	return enough
}
