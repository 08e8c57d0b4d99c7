package ring

import (
	"encoding/binary"
	"iter"
)

// StampLen is the size of the timestamp before each item of a chunk, in bytes.
const StampLen = 8

// Clock gives the items of a file the timestamps that they have in chunks. The zero
// value is ready, and stands at 0.
type Clock struct{ last uint64 }

// NewClock returns a Clock that stands at a timestamp.
func NewClock(timestamp uint64) Clock { return Clock{timestamp} }

// Stamp returns the timestamp of the next item: that of its body header. An item without
// one, or with NullTimestamp, has the last one that there was. A [RingFormat] item, with
// which a run begins, sets the clock to 0.
func (c *Clock) Stamp(it *Item) uint64 {
	switch {
	case it.Type == RingFormat:
		c.last = 0
	case it.HasHeader && it.Header.Timestamp != NullTimestamp:
		c.last = it.Header.Timestamp
	}
	return c.last
}

// AppendStamped appends a timestamp and the bytes of an item to the chunk b and returns
// it.
func AppendStamped(b []byte, timestamp uint64, item []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, timestamp), item...)
}

// ParseStamped reads the timestamp and the item that a chunk begins with, the item as
// [Parse] does, and returns how many bytes both have. It does not allocate unless it
// fails. The only error is a [*DamageError]; its offset is that of the item, or where
// the timestamp is cut off 0.
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

// Entries goes through the items of a chunk, each of at most limit bytes (0:
// DefaultLimit). Damage, a [*DamageError] with its offset in the chunk, ends it. The
// Entry is the same one every time.
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

// Check goes through a chunk, as Entries does, and returns how many items it has.
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

// AppendStripped appends the items of a chunk to b, without their timestamps, and
// returns it. After an error, as of Entries, b has the items before the damage.
func AppendStripped(b, chunk []byte, limit int64) ([]byte, error) {
	for e, err := range Entries(chunk, limit) {
		if err != nil {
			return b, err
		}
		b = append(b, e.Bytes...)
	}
	return b, nil
}

// AppendAll appends items that follow each other in b to a chunk, with the timestamps
// that the clock gives them, and returns it with their number. After an error, a
// [*DamageError] with its offset in items, the chunk has those before the damage.
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
