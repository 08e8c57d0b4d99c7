//go:build !linux

package retire

// Alloc returns size bytes of zeroed, page-aligned memory, and nil: they live as long as a slice of
// them.
func Alloc(size int) (b []byte, free func() error, err error) {
	b, err = heap(size)
	return b, nil, err
}
