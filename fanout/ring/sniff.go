package ring

import (
	"encoding/binary"
	"fmt"
)

// FormatError says that a file has ring items that this package does not read: of version 10,
// or in the other byte order. Nothing of it has been returned.
type FormatError struct {
	Version   Version // 10: there are no body headers
	BigEndian bool
}

// Error names the version and the byte order, and what to do.
func (e *FormatError) Error() string {
	order, version := "little-endian", "11 or 12"
	if e.BigEndian {
		order = "big-endian"
	}
	if e.Version == version10 {
		version = "10"
	}
	return fmt.Sprintf("ring: these are ring items of NSCLDAQ %s, %s; what is read is 11 and 12, little-endian: convert the file first", version, order)
}

const (
	version10 Version = 10
	// minItem10 is the size of the smallest item of version 10: size and type.
	minItem10 = 8
	// beginRun10 is the size of its BEGIN_RUN, which a writer may have filled up to whole
	// words: one of version 11 has a divisor and the size of a body header more. So the number
	// of the run is not taken for a body header.
	beginRun10 = minItem10 + 3*4 + TitleLen + 1
	// nonincrScalers10 is a type that only version 10 has: TIMESTAMPED_NONINCR_SCALERS.
	nonincrScalers10 Type = 21
	// typeLimit is beyond all types: DataFormat.h has the upper 16 bits zero.
	typeLimit Type = 1 << 16
)

// CheckFormat looks at the beginning of a file, as many bytes of it as there are, and says with
// a [*FormatError] if it is of a version or a byte order that is not read. nil: it may be, or it
// is no ring items at all. limit is as in [Parse].
//
// A BEGIN_RUN of 101 to 104 bytes is one of version 10, though Parse takes some of that size.
// Version 10 without BEGIN_RUN, as the later segments of a run are, is told by its bodies: not
// where half of them or more begin with a number that the size of a body header could be (0, 4,
// or 20 and more that fits), nor by one item alone.
func CheckFormat(b []byte, limit int64) error {
	if limit <= 0 {
		limit = DefaultLimit
	}
	if len(b) < MinItem {
		return nil
	}
	if v := sniff(b, limit, binary.LittleEndian); v == version10 {
		return &FormatError{v, false}
	}
	if v := sniff(b, limit, binary.BigEndian); v != 0 {
		return &FormatError{v, true}
	}
	return nil
}

// sniff says of which version the items are that b begins with: V11 for V12, too; 0 where
// something in b is no item, or nothing tells.
func sniff(b []byte, limit int64, order binary.ByteOrder) Version {
	items, odd := 0, 0 // odd: without what version 11 has for a body header
	for len(b) >= MinItem {
		size, t, header := int64(order.Uint32(b[offSize:])), Type(order.Uint32(b[offType:])), int64(order.Uint32(b[offBody:]))
		_, known := typeNames[t]
		switch {
		case size < minItem10 || size > limit || !known && t != nonincrScalers10 && (t < FirstUserItem || t >= typeLimit):
			return 0
		case t == RingFormat:
			return V11
		case t == BeginRun && size >= beginRun10 && size < beginRun10+4:
			return version10
		case size < MinItem || header != noHeader11 && header != noHeader12 && (header < HeaderLen || offBody+header > size):
			odd++
		}
		items++
		b = b[min(size, int64(len(b))):]
	}
	switch {
	case 2*odd <= items:
		return V11
	case items > 1: // of one alone the body might be a body header that is damaged
		return version10
	}
	return 0
}
