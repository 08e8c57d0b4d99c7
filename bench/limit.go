package main

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// What this machine can do at best: what the others are shown beside.
const (
	patternLine = "line" // a cache line handed to another core
	patternCopy = "copy" // by one core
	patternPeek = "peek" // one copy out of another process, by the kernel
)

// needsSHM: ranks must share memory.
func needsSHM(ctx context.Context, s *session, w work) ([]work, error) {
	why, err := s.cannot(ctx, providerSHM)
	w.missing = why
	return []work{w}, err
}

// line is a cache line for each way, which two ranks hand to and fro with nothing else: memory
// of one is mapped by the other. It is verified by being waited for.
type line struct {
	*pair
	ours, theirs *uint64
	number       uint64 // of the message
}

func declareLine(ctx context.Context, b *bed, m *measurement) (series, error) {
	b.device = providerSHM
	p, err := connect(ctx, b, m, 1, 1)
	if err != nil {
		return nil, err
	}
	mapped, err := p.qp.Map(p.remote.RecvRKey, p.remote.RecvAddr, lineBytes)
	if err != nil {
		return nil, err
	}
	clear(p.recv.Bytes())
	word := func(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
	return &line{pair: p, ours: word(p.recv.Bytes()), theirs: word(mapped)}, barrier(ctx, b, nil)
}

func (l *line) run(n int, samples []int64) error { return pingpong(l, l.rank == 0, n, samples) }
func (l *line) prepare()                         {}
func (l *line) check() error                     { return nil }

func (l *line) send() {
	if l.rank == 0 {
		l.number++
	}
	atomic.StoreUint64(l.theirs, l.number)
}

func (l *line) receive() {
	if l.rank != 0 {
		l.number++
	}
	for looks := 1; atomic.LoadUint64(l.ours) != l.number; looks++ {
		if looks%spinLooks == 0 {
			wait.Yield()
		}
	}
}

// copying copies memory of the heap at rank 0, from where read takes it; others wait.
type copying struct {
	from, into []byte
	seed       uint64
	works      bool // this rank copies
	read       func(into []byte) error
}

func newCopying(b *bed, m *measurement) (*copying, error) {
	from, into, err := b.memory(&m.spec, m.bytes, m.bytes+guard)
	return &copying{from: from, into: into, works: b.Rank() == 0, seed: seedFor(0, m.bytes, m.name)}, err
}

func declareCopy(_ context.Context, b *bed, m *measurement) (series, error) {
	s, err := newCopying(b, m)
	s.read = func(into []byte) error {
		copy(into, s.from)
		return nil
	}
	return s, err
}

func (s *copying) run(n int, samples []int64) error {
	if !s.works {
		return nil
	}
	t := startLaps(samples)
	for i := range n {
		if err := s.read(s.into[:len(s.from)]); err != nil {
			return err
		}
		t.lap(i)
	}
	return nil
}

func (s *copying) prepare() {
	fillPattern(s.from, s.seed)
	fillGuard(s.into)
}

func (s *copying) check() error {
	if !s.works {
		return nil
	}
	return checkPattern("copy", s.into, len(s.from), s.seed)
}

func (s *copying) close() error { return nil }
