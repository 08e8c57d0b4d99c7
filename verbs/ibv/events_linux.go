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

// source is a descriptor of libibverbs from which events are read. Go's poller waits for it.
type source struct {
	file *os.File // a duplicate: libibverbs closes its own descriptor
	conn syscall.RawConn
	turn chan struct{} // capacity 1: held by the reader
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

// wait calls take whenever there may be an event, until take returns true, ctx ends, or the
// source is closed: then the error wraps os.ErrClosed. nudge makes it call take once more.
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
		case s.shut.Load(): // whatever error the poller returns
			return os.ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// nudge makes a running wait call take, although there is no event.
func (s *source) nudge() { s.file.SetReadDeadline(past) }

func (s *source) close() error {
	s.shut.Store(true)
	return s.file.Close()
}

// closedErr turns the error of a wait into that of op.
func closedErr(device, op string, err error) error {
	if errors.Is(err, os.ErrClosed) {
		return verbs.Errorf(device, op, verbs.ErrClosed, "")
	}
	return err
}
