package qmp

import (
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

// MsgMem is message memory: it describes which bytes a message consists of, and in which order
// (QMP_msgmem_t; class MessageMemory). It owns no memory. A handle keeps the description with which
// it was declared. The zero value is empty and may be filled in by [MsgMem.Init].
type MsgMem struct {
	layout channel.Layout
	again  relayout // the same layout over other memory
	bases  int      // number of slices that again takes
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
// (QMP_declare_msgmem). Like all functions that declare memory, it panics if the type has pointers.
func DeclareMsgMem[E any](buffer []E) (*MsgMem, error) {
	return newMsgMem("declare msgmem", func(b [][]byte) channel.Layout { return channel.Contiguous(b[0]) }, channel.Bytes(buffer))
}

// DeclareStridedMsgMem declares equally spaced blocks, the first at the start of base
// (QMP_declare_strided_msgmem). Sizes and strides are in bytes; a stride is the distance between
// the starts of successive blocks. With a negative stride the last block is at the start of base,
// and the others follow upwards (like vectors in the BLAS).
//
// Errors: [StatusBadMemory] if a block does not lie in base.
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

// Strided is an element of a strided array: equally spaced blocks, in bytes. The stride may be
// negative as long as every block lies in Base.
type Strided = channel.Vector

// DeclareStridedArrayMsgMem declares several strided memories, one after the other, each with its
// own base (QMP_declare_strided_array_msgmem).
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

// DeclareIndexedMsgMem declares blocks anywhere in base: block i has lengths[i] elements and starts
// at element indices[i] (QMP_declare_indexed_msgmem). An element has elemSize bytes; 0 means the
// size of E.
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

// Init sets mm to what [DeclareStridedMsgMem] declares (MessageMemory::Init). With one block the
// stride is ignored.
func (mm *MsgMem) Init(base []byte, blockSize, blocks, stride int) error {
	made, err := newMsgMem("message memory init", strided(blockSize, blocks, stride), base)
	if err != nil {
		return err
	}
	*mm = *made
	return nil
}

// Len returns the number of bytes of a message.
func (mm *MsgMem) Len() int { return mm.layout.Len() }

// Free ends message memory: nothing more can be declared with it (QMP_free_msgmem). Handles already
// declared are not affected. The bytes still belong to the caller.
func (mm *MsgMem) Free() {
	if mm != nil {
		*mm = MsgMem{freed: true}
	}
}

// usable returns the error of a call if handles cannot be declared with mm.
func (mm *MsgMem) usable(op string) error {
	if mm == nil || mm.freed {
		return invalid(op, StatusBadMemory, "the message memory has not been declared, or has been freed")
	}
	return nil
}
