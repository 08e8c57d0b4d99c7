package ring

import (
	"encoding/binary"
	"iter"
)

// StampLen is the size of the timestamp before each item of a chunk, in bytes.
const StampLen = 8

// Clock gives the items of a file their timestamps in chunks. The zero value is ready to use,
// and stands at 0.
type Clock struct{ last uint64 }

// NewClock returns a Clock that stands at a timestamp.
func NewClock(timestamp uint64) Clock { return Clock{timestamp} }

// Stamp returns the timestamp of the next item: that of its body header. An item without body
// header, or with NullTimestamp, gets the previous timestamp. A [RingFormat] item, which begins
// a run, sets the clock to 0.
func (c *Clock) Stamp(it *Item) uint64 {
	switch {
	case it.Type == RingFormat:
		c.last = 0
	case it.HasHeader && it.Header.Timestamp != NullTimestamp:
		c.last = it.Header.Timestamp
	}
	return c.last
}

// AppendStamped appends a timestamp and the bytes of an item to the chunk b and returns the
// result.
func AppendStamped(b []byte, timestamp uint64, item []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, timestamp), item...)
}

// ParseStamped parses the timestamp and the item at the beginning of a chunk, the item as
// [Parse] does, and returns how many bytes both have. It does not allocate unless it fails.
// The only error is a [*DamageError] with the offset of the item, or 0 if the timestamp is cut
// off.
func ParseStamped(it *Item, b []byte, limit int64) (timestamp uint64, n int, err error) {
	if len(b) < StampLen {
		return 0, 0, &DamageError{Have: int64(len(b)), Err: ErrTruncated}
	}
	n, err = Parse(it, b[StampLen:], limit)
	if err != nil {
		err.(*DamageError).Offset = StampLen
		return 0, 0, err
	}
	return binary.LittleEndian.Uint64(b), StampLen + n, nil
}

// Entry is an item of a chunk.
type Entry struct {
	Timestamp uint64
	Bytes     []byte // of the item, without the timestamp; a part of the chunk
	Item      Item   // the same, parsed
}

// Entries iterates over the items of a chunk, each of at most limit bytes (0: DefaultLimit). A
// damaged item yields a [*DamageError] with its offset in the chunk, and ends the iteration.
// Every step yields the same Entry, overwritten.
func Entries(chunk []byte, limit int64) iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		var e Entry
		for at := 0; at < len(chunk); {
			t, n, err := ParseStamped(&e.Item, chunk[at:], limit)
			if err != nil {
				err.(*DamageError).Offset += int64(at)
				yield(nil, err)
				return
			}
			e.Timestamp, e.Bytes = t, chunk[at+StampLen:at+n]
			at += n
			if !yield(&e, nil) {
				return
			}
		}
	}
}

// Check checks a chunk, as Entries does, and returns how many items it has.
func Check(chunk []byte, limit int64) (items int, err error) {
	var it Item
	for at := 0; at < len(chunk); items++ {
		_, n, err := ParseStamped(&it, chunk[at:], limit)
		if err != nil {
			err.(*DamageError).Offset += int64(at)
			return items, err
		}
		at += n
	}
	return items, nil
}

// AppendStripped appends the items of a chunk to b, without their timestamps, and returns the
// result. After an error, as in Entries, it has the items before the damage.
func AppendStripped(b, chunk []byte, limit int64) ([]byte, error) {
	for e, err := range Entries(chunk, limit) {
		if err != nil {
			return b, err
		}
		b = append(b, e.Bytes...)
	}
	return b, nil
}

// AppendAll appends consecutive items to a chunk, with the timestamps that the clock gives
// them, and returns the chunk and the number of items. The error is a [*DamageError] with its
// offset in items; the chunk then has the items before the damage.
func AppendAll(chunk, items []byte, c *Clock, limit int64) (_ []byte, n int, err error) {
	var it Item
	for at := 0; at < len(items); n++ {
		size, err := Parse(&it, items[at:], limit)
		if err != nil {
			err.(*DamageError).Offset = int64(at)
			return chunk, n, err
		}
		chunk = AppendStamped(chunk, c.Stamp(&it), items[at:at+size])
		at += size
	}
	return chunk, n, nil
}
