package channel

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory allocated by [Node.Alloc].
type Memory struct {
	node   *Node
	buf    []byte
	mr     *verbs.MR     // of node.memory; nil without that
	free   func() error  // nil if mr frees it, and for memory of the heap
	users  atomic.Int32  // handles declared over it, and messages used once; memoryClosed or less after forget
	closed atomic.Bool   // set under node.mu
	shared *memory.Block // with the rest of the process
	others bool          // it is not of this node: it has been joined
	stuck  error         // why it must not be freed; under node.joining

	regs memory.Regs[*device, *verbs.MR] // of networks
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
	m := &Memory{node: n}
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
	m.track()
	n.mu.Lock()
	defer n.mu.Unlock()
	m.shared = memory.Share(m.buf, memory.Kind{Mapped: m.mr != nil, Freed: m.mr != nil || m.free != nil})
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
	m := n.memories.Find(b)
	if m != nil && !(m.others && m.closed.Load()) {
		return m, true
	}
	if k := memory.Shared(b); k != nil {
		return n.join(k)
	}
	return m, m != nil || !n.memories.Stale(b)
}

// track lets registrations be given up while the memory has no user.
func (m *Memory) track() {
	m.regs.Size, m.regs.Idle = len(m.buf), func() bool { return m.users.Load() == 0 }
}

// join makes Alloc memory of others in the process memory of the node. It returns nil for memory that
// must be treated as any other, and false if it is being closed.
func (n *Node) join(k *memory.Block) (*Memory, bool) {
	if n.call() != nil {
		return nil, true // the caller finds out
	}
	defer n.calls.Done()
	n.joining.Lock()
	defer n.joining.Unlock()
	if m := n.memories.Find(k.Bytes); m != nil && m.shared == k {
		return m, true
	}
	if !k.Open() {
		return nil, !k.Freed
	}
	m := &Memory{node: n, buf: k.Bytes, shared: k, others: true}
	if k.Mapped && n.memory != nil {
		mr, err := n.memory.pd.RegMR(k.Bytes, verbs.AccessAll)
		if err != nil { // handles over it count all the same: its owner must not free it under them
			n.log.Debug("channel: memory cannot be registered; it is copied", "bytes", len(k.Bytes), "error", err)
		} else {
			m.mr = mr
		}
	}
	m.track()
	n.memories.Add(m.buf, m)
	return m, true
}

// user is a node as a user of memory of others in the process.
type user struct{ n *Node }

// LetGo removes the memory from that over which handles can be declared, and deregisters it.
func (u user) LetGo(k *memory.Block, wait bool) (busy bool, err error) {
	n := u.n
	n.joining.Lock() // join has seen that the block is closing, or is through
	m := n.joined(k)
	n.joining.Unlock()
	if m == nil {
		return false, nil
	}
	if m.users.Load() > 0 {
		n.reap()
	}
	switch ending := n.call(); {
	case ending == nil:
		defer n.calls.Done()
	case !wait:
		return true, nil // it is about to part
	default:
		<-n.parted
	}
	n.joining.Lock()
	defer n.joining.Unlock()
	if m = n.joined(k); m == nil {
		return false, nil
	}
	if !m.users.CompareAndSwap(0, memoryClosed) && m.stuck == nil {
		return true, nil
	}
	return false, n.part(m)
}

// joined returns the memory of a block of others; nil for none. What is found at the addresses of the block may
// be memory that an owner which has ended had there. The caller holds joining.
func (n *Node) joined(k *memory.Block) *Memory {
	if m := n.memories.Find(k.Bytes); m != nil && m.others && m.shared == k {
		return m
	}
	return nil
}

// keep has memory never be freed, because a peer may go on accessing it.
func (n *Node) keep(m *Memory, why error) {
	if m == nil {
		return
	}
	n.joining.Lock()
	defer n.joining.Unlock()
	if m.stuck == nil {
		m.stuck = why
	}
}

// kept says why memory must not be freed; nil if it may be.
func (n *Node) kept(m *Memory) error {
	n.joining.Lock()
	defer n.joining.Unlock()
	return m.stuck
}

// part deregisters memory of others. If that fails, nothing can be declared over it, here and by its owner.
// The caller holds joining.
func (n *Node) part(m *Memory) error {
	if m.closed.Store(true); m.stuck == nil {
		if m.stuck = m.deregister(); m.stuck == nil {
			n.memories.Remove(m.buf, m.shared.Freed)
		}
	}
	return m.stuck
}

// partAll ends the use of all memory of others, in a node that nothing uses any more.
func (n *Node) partAll() (err error) {
	n.joining.Lock()
	defer n.joining.Unlock()
	for m := range n.memories.All() {
		if m.others {
			err = errors.Join(err, n.part(m))
		}
	}
	close(n.parted)
	return err
}

// unmapped says that peers of this host cannot map memory of the layout: m is nil, or not of a kind that they map.
func unmapped(m *Memory) bool { return m == nil || m.mr == nil }

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
// mapped it separately, its pages are returned to the system. While a handle is declared over the
// memory, of this node or of another one of the process, or a request of a job of package impi uses it,
// Close does nothing and returns [ErrBusy]. So it does for ever if a peer was in the middle of copying when
// the peer timeout had passed after the end of a collective or of the other node.
func (m *Memory) Close() error {
	const op = "close memory"
	n := m.node
	if n.call() != nil {
		return nil // closing the node closes it
	}
	defer n.calls.Done()
	if m.users.Load() > 0 {
		n.reap()
	}
	if err := n.kept(m); err != nil {
		return nodeError(op, err)
	}
	done := false
	stuck, err := m.shared.Close(func() (err error) {
		done, err = m.forget()
		return err
	})
	switch {
	case errors.Is(err, memory.ErrUsed):
		return nodeError(op, fmt.Errorf("%w: %w", ErrBusy, err))
	case done || err != nil:
		return err
	case stuck != nil:
		return nodeError(op, fmt.Errorf("%w: the memory is never used again: %w", ErrBusy, stuck))
	}
	err = m.deregister()
	if err == nil && m.free != nil {
		err = m.free()
	}
	if err != nil {
		return nodeError(op, err)
	}
	return nil
}

// deregister closes the memory's registrations.
func (m *Memory) deregister() error {
	err := m.regs.Close()
	if m.mr != nil {
		err = errors.Join(err, m.mr.Close())
	}
	return err
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
	n.memories.Remove(m.buf, m.shared.Freed) // slices keep heap memory alive
	return false, nil
}

// on returns the memory's registration with a network, making it if needed. The memory has a user.
func (m *Memory) on(d *device) (*verbs.MR, error) {
	if mr, ok := m.regs.On(d); ok {
		return mr, nil
	}
	return d.sparing(len(m.buf), func() (*verbs.MR, error) {
		return m.regs.Add(d, func() (*verbs.MR, error) { return d.pd.RegMR(m.buf, verbs.AccessAll) })
	})
}

// sparing registers size bytes. If the device has no room, it closes registrations of Alloc memory that no
// handle is declared over, the least recently used first, and tries again.
func (d *device) sparing(size int, register func() (*verbs.MR, error)) (*verbs.MR, error) {
	mr, err := register()
	if !errors.Is(err, verbs.ErrNoMemory) {
		return mr, err
	}
	got, failed := memory.Spare(d, size, func(yield func(*memory.Regs[*device, *verbs.MR]) bool) {
		for m := range d.node.memories.All() {
			if !yield(&m.regs) {
				return
			}
		}
	})
	if failed != nil {
		d.node.log.Warn("channel: cannot deregister memory", "device", d.ctx.Device().Name(), "error", failed)
	}
	if got > 0 {
		mr, err = register()
	}
	return mr, err
}
