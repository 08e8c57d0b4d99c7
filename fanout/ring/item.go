package ring

import (
	"encoding/binary"
	"math"
)

// NullTimestamp is the timestamp of an item that has a body header but no timestamp.
const NullTimestamp = math.MaxUint64

const (
	// HeaderLen is the size of a body header without extension, in bytes.
	HeaderLen = 20
	// MinItem is the size of the smallest item: no body header, no body.
	MinItem = 12
	// DefaultLimit is how large an item may be by default, in bytes.
	DefaultLimit = 16 << 20

	offSize      = 0
	offType      = 4
	offBody      = 8
	offTimestamp = 12
	offSource    = 20
	offBarrier   = 24

	noHeader11 = 0 // in the place of the body header's size
	noHeader12 = 4
)

// Header is the body header of an item.
type Header struct {
	Timestamp uint64 // ticks of the experiment's clock, or NullTimestamp
	SourceID  uint32 // of the part of the experiment that the item is from
	Barrier   uint32 // type of barrier; 0: none
	Extension []byte // the rest of the body header; its meaning is up to the writer
}

// Item is a ring item.
type Item struct {
	Type      Type
	HasHeader bool   // whether there is a body header
	Header    Header // if there is one
	Body      []byte
}

// Size returns how many bytes Append appends. It is the same in both versions.
func (it *Item) Size() int64 {
	n := int64(MinItem) + int64(len(it.Body))
	if it.HasHeader {
		n += HeaderLen - 4 + int64(len(it.Header.Extension))
	}
	return n
}

// Append appends the item to b in version v and returns the result. It panics if the size does
// not fit into 32 bits, or if the version is invalid.
func (it *Item) Append(b []byte, v Version) []byte {
	size := it.Size()
	if size > math.MaxUint32 {
		panic("ring: an item of 4 GiB or more")
	}
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, uint32(it.Type))
	switch {
	case it.HasHeader:
		h := &it.Header
		b = le.AppendUint32(b, uint32(HeaderLen+len(h.Extension)))
		b = le.AppendUint64(b, h.Timestamp)
		b = le.AppendUint32(b, h.SourceID)
		b = le.AppendUint32(b, h.Barrier)
		b = append(b, h.Extension...)
	case v == V11:
		b = le.AppendUint32(b, noHeader11)
	case v == V12:
		b = le.AppendUint32(b, noHeader12)
	default:
		panic("ring: no version " + v.String())
	}
	return append(b, it.Body...)
}

// Parse parses the item at the beginning of b, of either version and at most limit bytes (0:
// DefaultLimit), into it, and returns its size. Body and Extension are parts of b. Parse does
// not allocate unless it fails. The only error is a [*DamageError] with offset 0; the item it
// points to is unchanged then.
func Parse(it *Item, b []byte, limit int64) (n int, err error) {
	size, body, err := check(b, limit)
	if err != nil {
		return 0, err
	}
	if size > int64(len(b)) {
		return 0, &DamageError{Size: size, Have: int64(len(b)), Err: ErrTruncated}
	}
	it.take(b[:size], body)
	return int(size), nil
}

// check reads the sizes of the item at the beginning of b: its own, and where its body begins.
// The two are consistent, but the item may be longer than b.
func check(b []byte, limit int64) (size int64, body int, err error) {
	if limit <= 0 {
		limit = DefaultLimit
	}
	if len(b) < offType {
		return 0, 0, &DamageError{Have: int64(len(b)), Err: ErrTruncated}
	}
	le := binary.LittleEndian
	size = int64(le.Uint32(b[offSize:]))
	switch {
	case size < MinItem:
		return 0, 0, &DamageError{Size: size, Err: ErrTooSmall}
	case size > limit:
		return 0, 0, &DamageError{Size: size, Limit: limit, Err: ErrTooLarge}
	case len(b) < MinItem:
		return 0, 0, &DamageError{Size: size, Have: int64(len(b)), Err: ErrTruncated}
	}
	header := int64(le.Uint32(b[offBody:]))
	switch {
	case header == noHeader11 || header == noHeader12:
		return size, MinItem, nil
	case header < HeaderLen:
		return 0, 0, &DamageError{Size: size, Err: ErrBodyHeader}
	case offBody+header > size:
		return 0, 0, &DamageError{Size: size, Err: ErrTooSmall}
	}
	return size, int(offBody + header), nil
}

// take sets it to the item whose bytes are b and whose body begins at body.
func (it *Item) take(b []byte, body int) {
	le := binary.LittleEndian
	it.Type = Type(le.Uint32(b[offType:]))
	it.Body = b[body:]
	it.Header = Header{}
	it.HasHeader = body > MinItem
	if it.HasHeader {
		it.Header = Header{
			Timestamp: le.Uint64(b[offTimestamp:]),
			SourceID:  le.Uint32(b[offSource:]),
			Barrier:   le.Uint32(b[offBarrier:]),
			Extension: b[offBody+HeaderLen : body : body],
		}
	}
}
