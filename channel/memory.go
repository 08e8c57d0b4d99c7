package channel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory of [Node.Alloc].
type Memory struct {
	node   *Node
	buf    []byte
	mr     *verbs.MR // of node.memory; nil without that
	users  atomic.Int32
	closed atomic.Bool // set under node.mu

	mu   sync.Mutex
	regs map[*device]*verbs.MR // of networks
}

// Alloc returns n bytes of zeroes, page-aligned, of the kind that every provider
// in use moves without a copy: messages whose layouts lie in it go straight from
// one process's memory into the other's.
//
// The Memory belongs to the caller, who must Close it, at the latest by closing
// the node.
func (n *Node) Alloc(size int) (*Memory, error) {
	if size <= 0 {
		return nil, nodeError("allocate", fmt.Errorf("%w: %d bytes", ErrInvalid, size))
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
		b := make([]byte, size+pageSize)
		skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
		m.buf = b[skip : skip+size : skip+size]
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i, _ := n.searchMemory(m.start())
	n.memories = slices.Insert(n.memories, i, m)
	n.stale.Remove(m.span())
	return m, nil
}

// pageSize is the alignment of Alloc's memory.
var pageSize = os.Getpagesize()

func (m *Memory) start() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.buf))) }

// span is the addresses of the memory, to the end of its last page.
func (m *Memory) span() span.Span { return span.Of(m.buf).Pages(pageSize) }

// searchMemory returns where memory that begins at p is, or would be. The caller
// holds mu.
func (n *Node) searchMemory(p uintptr) (int, bool) {
	return slices.BinarySearchFunc(n.memories, p, func(m *Memory, p uintptr) int {
		switch s := m.start(); {
		case s < p:
			return -1
		case s > p:
			return 1
		}
		return 0
	})
}

// findMemory returns the memory that b lies in, nil if it is no memory of Alloc.
// The caller holds mu.
func (n *Node) findMemory(b []byte) *Memory {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	i, exact := n.searchMemory(p)
	if !exact {
		i--
	}
	if i < 0 {
		return nil
	}
	if m := n.memories[i]; p >= m.start() && p-m.start() < uintptr(len(m.buf)) && uintptr(len(b)) <= uintptr(len(m.buf))-(p-m.start()) {
		return m
	}
	return nil
}

// Bytes is the memory; nil after Close, also of the node. A slice of it must not be
// used then: another Memory of the node may have the bytes. When the node is closed it is
// private memory of this process, of zeroes at first, which is used for nothing else; memory
// that no provider has made (of one rank, or over tcp alone) keeps its bytes. Addresses
// are kept for that, the last 1 TiB of them in 1024 pieces, and memory only where they are written to.
// What nodes have mapped for themselves counts, too. Where ulimit -v or -d is set, at most a
// sixteenth of it is kept; where vm.overcommit_memory is 2, nothing; where addresses have run
// short, less. Slices that are older end the process, or reach what has the addresses then: it
// may be the memory of another node.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.buf
}

// Close frees the memory, for the next Alloc; of more than 1 MiB the pages go back to
// the system, where the provider's memory was made for it alone. While handles are declared over it, that is [ErrBusy],
// and nothing has happened.
func (m *Memory) Close() error {
	n := m.node
	if n.call() != nil {
		return nil // the node does it
	}
	defer n.calls.Done()
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
	if err := errors.Join(errs...); err != nil {
		return nodeError("close memory", err)
	}
	return nil
}

// forget takes the memory off those that handles can be declared over. It says
// whether that had been done.
func (m *Memory) forget() (done bool, err error) {
	n := m.node
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case m.closed.Load():
		return true, nil
	case m.users.Load() > 0:
		return false, nodeError("close memory", fmt.Errorf("%w: %d handles are declared over it", ErrBusy, m.users.Load()))
	}
	m.closed.Store(true)
	i, _ := n.searchMemory(m.start())
	n.memories = slices.Delete(n.memories, i, i+1)
	if m.mr != nil { // what is of the heap is kept by those who hold a slice of it
		n.stale.Add(m.span())
	}
	return false, nil
}

// on returns the memory's registration with a network, made if need be.
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
