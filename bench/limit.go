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
func needsSHM(ctx context.Context, s *session, w work) []work {
	w.missing = s.cannot(ctx, providerSHM)
	return []work{w}
}

// line is a cache line for each way, which two ranks hand to and fro with nothing else: memory
// of one is mapped by the other. It is verified by being waited for.
type line struct {
	*pair
	ours, theirs *uint64
	number       uint64 // of the message
}

func declareLine(ctx context.Context, b *bed, m *measurement) series {
	b.device = providerSHM
	p := connect(ctx, b, m, 1, 1)
	mapped := must1(p.qp.Map(p.remote.RecvRKey, p.remote.RecvAddr, lineBytes))
	clear(p.recv.Bytes())
	word := func(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
	barrier(ctx, b, nil)
	return &line{pair: p, ours: word(p.recv.Bytes()), theirs: word(mapped)}
}

func (l *line) run(n int, samples []int64) { pingpong(l, l.rank == 0, n, samples) }
func (l *line) prepare()                   {}
func (l *line) check()                     {}

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
	read       func(into []byte)
}

func newCopying(b *bed, m *measurement) *copying {
	from, into := b.memory(&m.spec, m.bytes, m.bytes+guard)
	return &copying{from: from, into: into, works: b.Rank() == 0, seed: seedFor(0, m.bytes, m.name)}
}

func declareCopy(_ context.Context, b *bed, m *measurement) series {
	s := newCopying(b, m)
	s.read = func(into []byte) { copy(into, s.from) }
	return s
}

func (s *copying) run(n int, samples []int64) {
	if s.works {
		repeat(n, samples, func() { s.read(s.into[:len(s.from)]) })
	}
}

func (s *copying) prepare() {
	fillPattern(s.from, s.seed)
	fillGuard(s.into)
}

func (s *copying) check() {
	if s.works {
		must(checkPattern("copy", s.into, len(s.from), s.seed))
	}
}

func (s *copying) close() {}
