package qmp

import (
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

// MsgMem is message memory: which bytes a message consists of, and in which order
// (QMP_msgmem_t; class MessageMemory). It describes memory and owns none; a handle
// that is declared with it remembers what it said then. The zero value is empty, and
// may be filled by [MsgMem.Init].
type MsgMem struct {
	layout channel.Layout
	again  relayout // the same layout over other memory
	bases  int      // that again takes
	freed  bool
}

// relayout makes a layout over other slices.
type relayout func(bases [][]byte) channel.Layout

// newMsgMem makes message memory over slices.
func newMsgMem(op string, again relayout, bases ...[]byte) (*MsgMem, error) {
	l := again(bases)
	if err := l.Err(); err != nil {
		return nil, fail(op, StatusBadMemory, err)
	}
	succeed()
	return &MsgMem{layout: l, again: again, bases: len(bases)}, nil
}

// DeclareMsgMem declares all of a slice of a type without pointers, wherever it lies
// (QMP_declare_msgmem). It panics where the type has pointers, as all that declare
// memory do.
func DeclareMsgMem[E any](buffer []E) (*MsgMem, error) {
	return newMsgMem("declare msgmem", func(b [][]byte) channel.Layout { return channel.Contiguous(b[0]) }, channel.Bytes(buffer))
}

// DeclareStridedMsgMem declares blocks equally far apart, the first at the start of base
// (QMP_declare_strided_msgmem). Sizes and strides are bytes; a stride is from the start
// of a block to the start of the next. With a negative stride the last block is at the
// start of base, and the others follow upwards (as vectors do in the BLAS).
//
// Errors: [StatusBadMemory] where a block does not lie in base.
func DeclareStridedMsgMem[E any](base []E, blockSize, blocks, stride int) (*MsgMem, error) {
	return newMsgMem("declare strided msgmem", strided(blockSize, blocks, stride), channel.Bytes(base))
}

func strided(blockSize, blocks, stride int) relayout {
	return func(b [][]byte) channel.Layout {
		offset := 0
		if stride < 0 && blocks > 1 {
			if offset = -stride * (blocks - 1); offset/(blocks-1) != -stride {
				offset = -1 // it overflows
			}
		}
		return channel.Strided(b[0], offset, blockSize, blocks, stride)
	}
}

// Strided is an element of a strided array: blocks equally far apart, all in bytes. A
// stride may be negative as long as every block lies in Base.
type Strided = channel.Vector

// DeclareStridedArrayMsgMem declares several strided memories, one after the other, each
// with a base of its own (QMP_declare_strided_array_msgmem).
func DeclareStridedArrayMsgMem(array []Strided) (*MsgMem, error) {
	array = slices.Clone(array)
	bases := make([][]byte, len(array))
	for i := range array {
		bases[i] = array[i].Base
	}
	return newMsgMem("declare strided array msgmem", func(b [][]byte) channel.Layout {
		list := slices.Clone(array)
		for i := range list {
			list[i].Base = b[i]
		}
		return channel.StridedArray(list...)
	}, bases...)
}

// DeclareIndexedMsgMem declares blocks anywhere in base: block i is lengths[i] elements
// from element indices[i] (QMP_declare_indexed_msgmem). Both count elements of elemSize
// bytes; 0: of E.
func DeclareIndexedMsgMem[E any](base []E, lengths, indices []int, elemSize int) (*MsgMem, error) {
	b := channel.Bytes(base)
	if elemSize == 0 {
		elemSize = sizeOf[E]()
	}
	lengths, indices = slices.Clone(lengths), slices.Clone(indices)
	return newMsgMem("declare indexed msgmem", func(b [][]byte) channel.Layout {
		return channel.Indexed(b[0], elemSize, lengths, indices)
	}, b)
}

// Init makes mm what [DeclareStridedMsgMem] declares (MessageMemory::Init). With one
// block the stride does not count.
func (mm *MsgMem) Init(base []byte, blockSize, blocks, stride int) error {
	made, err := newMsgMem("message memory init", strided(blockSize, blocks, stride), base)
	if err != nil {
		return err
	}
	*mm = *made
	return nil
}

// Len is the number of bytes of a message.
func (mm *MsgMem) Len() int { return mm.layout.Len() }

// Free ends message memory: nothing more can be declared with it (QMP_free_msgmem).
// Handles that have been are not affected. The bytes are the caller's as before.
func (mm *MsgMem) Free() {
	if mm != nil {
		*mm = MsgMem{freed: true}
	}
}

// usable says whether handles can be declared with mm.
func (mm *MsgMem) usable(op string) error {
	if mm == nil || mm.freed {
		return invalid(op, StatusBadMemory, "the message memory has not been declared, or has been freed")
	}
	return nil
}
