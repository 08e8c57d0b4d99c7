package qmp

import (
	"math/bits"
	"unsafe"

	"github.com/sluice-hpc/sluice/channel"
)

// MemFlags says what memory is for (the flags of QMP_allocate_aligned_memory). All flags are hints,
// which the available memory satisfies as it is.
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

// Memory is memory from [AllocateMemory]: messages in it are not copied through an intermediate
// buffer.
type Memory struct {
	mem *channel.Memory
	buf []byte
}

// AllocateMemory returns nbytes of zeroed memory, aligned to [AlignDefault] (QMP_allocate_memory).
// The memory belongs to the caller, which closes it; [Finalize] closes it at the latest.
func (m *Machine) AllocateMemory(nbytes int) (*Memory, error) {
	return m.AllocateAlignedMemory(nbytes, AlignDefault, MemDefault)
}

// AllocateAlignedMemory is [Machine.AllocateMemory] with an alignment, which must be a power of two
// or AlignAny (QMP_allocate_aligned_memory).
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

// pageSize is the least alignment of channel.Node.Alloc on any system.
const pageSize = 4096

// Bytes returns the memory (QMP_get_memory_pointer); nil after Close.
func (m *Memory) Bytes() []byte {
	if m == nil || m.mem.Bytes() == nil {
		return nil
	}
	return m.buf
}

// Close frees the memory (QMP_free_memory). While handles declared over it exist, it returns
// [StatusMemUsedErr] and has no effect.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	return failed("free memory", m.mem.Close())
}

// View returns the memory as a slice of a type without pointers: as many elements as fit; see
// [channel.View].
func View[E any](m *Memory) []E { return channel.View[E](m) }

// sizeOf is the size of an element in bytes.
func sizeOf[E any]() int {
	var zero E
	return int(unsafe.Sizeof(zero))
}
