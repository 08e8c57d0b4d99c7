package ring

import (
	"encoding/binary"
	"fmt"
)

// FormatError says that a file has ring items that this package does not read: of version 10,
// or big-endian. No item of it has been returned.
type FormatError struct {
	Version   Version // 10: there are no body headers
	BigEndian bool
}

// Error returns the version and the byte order of the file, and what to do.
func (e *FormatError) Error() string {
	order, version := "little-endian", "11 or 12"
	if e.BigEndian {
		order = "big-endian"
	}
	if e.Version == version10 {
		version = "10"
	}
	return fmt.Sprintf("ring: the file has ring items of NSCLDAQ %s, %s; only 11 and 12, little-endian, can be read: convert the file first", version, order)
}

const (
	version10 Version = 10
	// minItem10 is the size of the smallest item of version 10: size and type.
	minItem10 = 8
	// beginRun10 is the size of BEGIN_RUN in version 10, which a writer may have padded to
	// whole words. In version 11 it also has a divisor and a body header size. The difference
	// keeps the run number from being taken for a body header size.
	beginRun10 = minItem10 + 3*4 + TitleLen + 1
	// nonincrScalers10 is a type that only version 10 has: TIMESTAMPED_NONINCR_SCALERS.
	nonincrScalers10 Type = 21
	// typeLimit is beyond all types: DataFormat.h has the upper 16 bits zero.
	typeLimit Type = 1 << 16
)

// CheckFormat checks the beginning of a file, of any length. It returns a [*FormatError] if the
// items are of a version or byte order that this package does not read. nil means that they may
// be readable, or that they are no ring items at all. limit is as in [Parse].
//
// A BEGIN_RUN of 101 to 104 bytes counts as version 10, though Parse accepts some of that size.
// Version 10 without BEGIN_RUN, such as a later segment of a run, is recognised by its bodies: not
// if half of them or more begin with a number that could be the size of a body header (0, 4, or
// 20 and more that fits), nor by a single item.
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

// sniff returns the version of the items that b begins with: V11 also for V12; 0 if something
// in b is not an item, or the version cannot be told.
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
