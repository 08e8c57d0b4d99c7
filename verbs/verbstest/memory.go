//go:build !race || !unix

package verbstest

// userMemory is memory to register, and what to do when it no longer is.
func userMemory(size int) (buf []byte, free func() error, err error) {
	return make([]byte, size), func() error { return nil }, nil
}
