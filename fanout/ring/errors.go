package ring

import (
	"errors"
	"fmt"
)

// What can be wrong with an item. A [*DamageError] wraps one of these.
var (
	// ErrTruncated: the bytes end before the item does.
	ErrTruncated = errors.New("item cut off")
	// ErrTooSmall: the size of the item is smaller than its headers.
	ErrTooSmall = errors.New("item smaller than its headers")
	// ErrTooLarge: the size of the item is larger than the limit.
	ErrTooLarge = errors.New("item larger than the limit")
	// ErrBodyHeader: the size of the body header is invalid: not 0, not 4, and less than
	// HeaderLen.
	ErrBodyHeader = errors.New("item with a body header of invalid size")
)

// DamageError reports bytes that are not a valid ring item.
type DamageError struct {
	Offset int64 // of the item's first byte, from the beginning of the file or slice
	Size   int64 // bytes, from the item's size field; 0 if that is cut off
	Have   int64 // for ErrTruncated: how many bytes of the item are there
	Limit  int64 // for ErrTooLarge: the limit, bytes
	Err    error // one of the errors of this package
}

func (e *DamageError) Error() string {
	switch {
	case e.Err == ErrTruncated && e.Size == 0:
		return fmt.Sprintf("ring: byte %d: %v after %d bytes", e.Offset, e.Err, e.Have)
	case e.Err == ErrTruncated:
		return fmt.Sprintf("ring: byte %d: %v after %d of %d bytes", e.Offset, e.Err, e.Have, e.Size)
	case e.Err == ErrTooLarge:
		return fmt.Sprintf("ring: byte %d: %v: %d bytes, at most %d", e.Offset, e.Err, e.Size, e.Limit)
	}
	return fmt.Sprintf("ring: byte %d: %v: %d bytes", e.Offset, e.Err, e.Size)
}

// Unwrap returns Err.
func (e *DamageError) Unwrap() error { return e.Err }
