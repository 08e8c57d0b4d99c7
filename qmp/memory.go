package qmp

import (
	"math/bits"
	"unsafe"

	"github.com/sluice-hpc/sluice/channel"
)

// MemFlags says what memory is for (the flags of QMP_allocate_aligned_memory). All are
// wishes, which the memory that there is fulfils as it is.
type MemFlags int

// The flags, with the numbers of the C API.
const (
	MemNonCache MemFlags = 0x01 // not to be cached
	MemComms    MemFlags = 0x02 // for messages
	MemFast     MemFlags = 0x04 // the fastest
	MemDefault           = MemComms | MemFast
)

// Alignments for [AllocateAlignedMemory], in bytes.
const (
	AlignAny     = 0
	AlignDefault = 64
)

// Memory is memory of [AllocateMemory]: messages in it move without a copy in between.
type Memory struct {
	mem *channel.Memory
	buf []byte
}

// AllocateMemory returns so many bytes of zeroes, aligned to [AlignDefault]
// (QMP_allocate_memory). The memory belongs to the caller, who closes it, at the latest
// by [Finalize].
func (m *Machine) AllocateMemory(nbytes int) (*Memory, error) {
	return m.AllocateAlignedMemory(nbytes, AlignDefault, MemDefault)
}

// AllocateAlignedMemory is [Machine.AllocateMemory] with an alignment, which is a power
// of two, or AlignAny (QMP_allocate_aligned_memory).
//
// Errors: [StatusInvalidArg]; [StatusNoMemErr]; [StatusNotInited].
func (m *Machine) AllocateAlignedMemory(nbytes, alignment int, flags MemFlags) (*Memory, error) {
	const op = "allocate aligned memory"
	switch {
	case m == nil || m.finalized.Load():
		return nil, fail(op, StatusNotInited, nil)
	case nbytes < 0:
		return nil, invalid(op, StatusInvalidArg, "%d bytes", nbytes)
	case alignment < 0 || bits.OnesCount(uint(alignment)) > 1:
		return nil, invalid(op, StatusInvalidArg, "an alignment of %d is no power of two", alignment)
	case flags&^(MemNonCache|MemComms|MemFast) != 0:
		return nil, invalid(op, StatusInvalidArg, "flags %#x", int(flags))
	}
	room := max(nbytes, 1)
	if alignment > pageSize {
		if room > 1<<62-alignment {
			return nil, invalid(op, StatusNoMemErr, "%d bytes", nbytes)
		}
		room += alignment - pageSize
	}
	mem, err := m.node.Alloc(room)
	if err != nil {
		s := StatusOf(err)
		if s == StatusError {
			s = StatusNoMemErr
		}
		return nil, fail(op, s, err)
	}
	b := mem.Bytes()
	if alignment > 1 {
		b = b[-int(uintptr(unsafe.Pointer(unsafe.SliceData(b))))&(alignment-1):]
	}
	succeed()
	return &Memory{mem, b[:nbytes:nbytes]}, nil
}

// pageSize is what channel.Node.Alloc aligns to at least, everywhere.
const pageSize = 4096

// Bytes is the memory (QMP_get_memory_pointer); nil when it has been closed.
func (m *Memory) Bytes() []byte {
	if m == nil || m.mem.Bytes() == nil {
		return nil
	}
	return m.buf
}

// Close frees the memory (QMP_free_memory). While handles are declared over it, that is
// [StatusMemUsedErr], and nothing has happened.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	return failed("free memory", m.mem.Close())
}

// View is memory as a slice of a type without pointers: as many elements as fit. It
// panics where the type has pointers, or must be aligned more than the memory is.
func View[E any](m *Memory) []E {
	var zero E
	b := m.Bytes()
	channel.Bytes([]E(nil)) // panics for pointers
	size := int(unsafe.Sizeof(zero))
	if size == 0 || len(b) < size {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		panic("qmp: View of memory that is not aligned for the type")
	}
	return unsafe.Slice((*E)(p), len(b)/size)
}

// sizeOf is the size of an element in bytes.
func sizeOf[E any]() int {
	var zero E
	return int(unsafe.Sizeof(zero))
}
