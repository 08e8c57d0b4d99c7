//go:build cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
)

// source is a descriptor of libibverbs that events are read from, waited for by
// Go's poller.
type source struct {
	file *os.File // of a duplicate: libibverbs closes its own
	conn syscall.RawConn
	turn chan struct{} // capacity 1: who reads holds it
	shut atomic.Bool
}

func newSource(fd int, name string) (*source, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dup), name)
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &source{file: file, conn: conn, turn: make(chan struct{}, 1)}, nil
}

var past = time.Unix(1, 0)

// wait calls take whenever there may be an event, until it returns true, ctx ends,
// or the source is closed: then the error wraps os.ErrClosed. nudge has it look
// once more.
func (s *source) wait(ctx context.Context, take func() bool) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.file.SetReadDeadline(past)
		close(fired)
	})
	defer func() {
		if !stop() {
			<-fired
		}
	}()
	for {
		s.file.SetReadDeadline(time.Time{})
		if err := ctx.Err(); err != nil {
			return err
		}
		got := false
		err := s.conn.Read(func(uintptr) bool {
			got = take()
			return got
		})
		switch {
		case got:
			return nil
		case s.shut.Load(): // whatever the poller calls it
			return os.ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// nudge has who waits look, though there is no event.
func (s *source) nudge() { s.file.SetReadDeadline(past) }

func (s *source) close() error {
	s.shut.Store(true)
	return s.file.Close()
}

// closedErr is what a wait returns as the error of op.
func closedErr(device, op string, err error) error {
	if errors.Is(err, os.ErrClosed) {
		return verbs.Errorf(device, op, verbs.ErrClosed, "")
	}
	return err
}
