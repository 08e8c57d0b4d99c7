package channel

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory allocated by [Node.Alloc].
type Memory struct {
	node   *Node
	buf    []byte
	mr     *verbs.MR    // of node.memory; nil without that
	free   func() error // nil if mr frees it, and for memory of the heap
	users  atomic.Int32 // handles declared over it, and messages used once; memoryClosed or less after forget
	closed atomic.Bool  // set under node.mu

	mu   sync.Mutex
	regs map[*device]*verbs.MR // of networks
}

// Alloc returns size zeroed, page-aligned bytes of memory that every provider in use
// can move without an intermediate copy: messages whose layouts lie in it go straight
// from one process's memory into the other's.
//
// The caller owns the Memory and must close it. Closing the node closes it too.
//
// All pages are allocated at once, so that later use cannot run out of memory.
//
// Errors: [ErrInvalid], [ErrClosed], and verbs.ErrNoMemory with the limit that is reached, of
// the cgroups of this process or of the machine; some MiB stay free under each. Ranks that allocate
// at the same time do not exceed it together.
func (n *Node) Alloc(size int) (*Memory, error) {
	if size <= 0 {
		return nil, nodeError("allocate", fmt.Errorf("%w: %d bytes: want more than 0", ErrInvalid, size))
	}
	if err := n.call(); err != nil {
		return nil, nodeError("allocate", err)
	}
	defer n.calls.Done()
	m := &Memory{node: n, regs: map[*device]*verbs.MR{}}
	if n.memory != nil {
		mr, err := n.memory.pd.AllocMR(size, verbs.AccessAll)
		if err != nil {
			return nil, nodeError("allocate", err)
		}
		m.mr, m.buf = mr, mr.Bytes()
	} else {
		var err error
		if m.buf, m.free, err = retire.Alloc(size); err != nil {
			return nil, nodeError("allocate", fmt.Errorf("%w: %w", verbs.ErrNoMemory, err))
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.memories.Add(m.buf, m)
	return m, nil
}

// pageSize is the alignment of Alloc memory.
var pageSize = os.Getpagesize()

func (m *Memory) start() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.buf))) }

// memoryClosed is added to the users of memory that is closed.
const memoryClosed = math.MinInt32 / 2

// use counts a user, until users.Add(-1); false if the memory has been closed.
func (m *Memory) use() bool {
	if m.users.Add(1) > 0 {
		return true
	}
	m.users.Add(-1)
	return false
}

// allocated returns the Memory that b lies in, nil if it is not Alloc memory. It returns false if b lies in
// Alloc memory that has been closed. It takes no lock unless b is near memory that has been closed.
func (n *Node) allocated(b []byte) (*Memory, bool) {
	if m := n.memories.Find(b); m != nil {
		return m, true
	}
	return nil, !n.memories.Stale(b)
}

// holds says whether the memory contains s.
func (m *Memory) holds(s span.Span) bool {
	return s.From-m.start() < uintptr(len(m.buf)) && s.To-m.start() <= uintptr(len(m.buf))
}

// Bytes returns the memory, or nil after Close of the memory or the node. Do not use a slice of it
// after Close: another Memory of the node may occupy the bytes. After the node is closed, the slice
// refers to private memory of this process, zeroed at first and used for nothing else. Memory that no
// provider has made (of a single rank, or over tcp alone) keeps its bytes instead: on Linux if it has
// 1 MiB or less, elsewhere always.
//
// For this the addresses that were closed last stay reserved: at most 1 TiB in 1024 pieces, including
// what nodes had mapped for themselves. Only pages that are written to take memory. Where ulimit -v or -d is
// set, at most a sixteenth of it is kept; where vm.overcommit_memory is 2, nothing; where addresses
// have run short, less. Accessing an older slice crashes the process, or reaches what has the
// addresses then, which may be the memory of another node.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.buf
}

// Close frees the memory for later Allocs. If it is larger than 1 MiB and the provider
// mapped it separately, its pages are returned to the system. While a handle is
// declared over the memory, Close does nothing and returns [ErrBusy].
func (m *Memory) Close() error {
	n := m.node
	if n.call() != nil {
		return nil // closing the node closes it
	}
	defer n.calls.Done()
	if m.users.Load() > 0 {
		n.reap()
	}
	if done, err := m.forget(); done || err != nil {
		return err
	}
	var errs []error
	for _, mr := range m.regs {
		errs = append(errs, mr.Close())
	}
	if m.mr != nil {
		errs = append(errs, m.mr.Close())
	}
	err := errors.Join(errs...)
	if err == nil && m.free != nil {
		err = m.free()
	}
	if err != nil {
		return nodeError("close memory", err)
	}
	return nil
}

// forget removes the memory from those over which handles can be declared. It says whether it
// already had been.
func (m *Memory) forget() (done bool, err error) {
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case m.closed.Load():
		return true, nil
	case !m.users.CompareAndSwap(0, memoryClosed):
		return false, nodeError("close memory", fmt.Errorf("%w: handles declared over it: %d; close them first", ErrBusy, m.users.Load()))
	}
	m.closed.Store(true)
	n.memories.Remove(m.buf, m.mr != nil || m.free != nil) // slices keep heap memory alive
	return false, nil
}

// on returns the memory's registration with a network, making it if needed.
func (m *Memory) on(d *device) (*verbs.MR, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mr := m.regs[d]; mr != nil {
		return mr, nil
	}
	mr, err := d.pd.RegMR(m.buf, verbs.AccessAll)
	if err == nil {
		m.regs[d] = mr
	}
	return mr, err
}
