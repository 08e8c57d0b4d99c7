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
)

// CheckFormat checks the beginning of a file, of any length. It returns a [*FormatError] if the
// items are of a version or byte order that this package does not read. nil means that they may
// be readable, or that they are no ring items at all. limit is as in [Parse].
func CheckFormat(b []byte, limit int64) error {
	if limit <= 0 {
		limit = DefaultLimit
	}
	if len(b) < MinItem {
		return nil
	}
	le := binary.LittleEndian
	size := le.Uint32(b[offSize:])
	short := Type(le.Uint32(b[offType:])) == BeginRun && size >= beginRun10 && size < beginRun10+4
	if n, _ := walk(b, limit, FormatError{Version: V11}); n > 0 && !short {
		return nil // an error in a later item is damage
	}
	for _, f := range []FormatError{{V11, true}, {version10, false}, {version10, true}} {
		// A single item of version 10 might be a newer one with a damaged body header.
		if n, ok := walk(b, limit, f); ok && (n > 1 || f.Version != version10 || short) {
			return &f
		}
	}
	return nil
}

// walk reports whether b could be items of that format, as far as it goes, and how many begin
// in it.
func walk(b []byte, limit int64, f FormatError) (items int, ok bool) {
	var order binary.ByteOrder = binary.LittleEndian
	if f.BigEndian {
		order = binary.BigEndian
	}
	for len(b) >= MinItem {
		size, least := int64(order.Uint32(b[offSize:])), int64(MinItem)
		t := Type(order.Uint32(b[offType:]))
		if f.Version == version10 {
			if least = minItem10; t == RingFormat {
				return items, false
			}
		} else {
			switch header := int64(order.Uint32(b[offBody:])); {
			case header == noHeader11 || header == noHeader12:
			case header < HeaderLen || offBody+header > size:
				return items, false
			}
		}
		if _, known := typeNames[t]; size < least || size > limit || !known && t < FirstUserItem {
			return items, false
		}
		items++
		b = b[min(size, int64(len(b))):]
	}
	return items, items > 0
}
