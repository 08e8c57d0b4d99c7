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
)

// CheckFormat looks at the beginning of a file, as many bytes of it as there are, and says with
// a [*FormatError] if it is of a version or a byte order that is not read. nil: it may be, or it
// is no ring items at all. limit is as in [Parse].
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
		return nil // what is wrong with a later item is damage
	}
	for _, f := range []FormatError{{V11, true}, {version10, false}, {version10, true}} {
		// Of one item of version 10 alone its body might be a body header that is damaged.
		if n, ok := walk(b, limit, f); ok && (n > 1 || f.Version != version10 || short) {
			return &f
		}
	}
	return nil
}

// walk says whether b could be items of that format, as far as it goes, and how many begin in
// it.
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
