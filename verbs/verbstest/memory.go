//go:build !race || !unix

package verbstest

// userMemory returns memory to register, and a function to call once it no longer is.
func userMemory(size int) (buf []byte, free func() error, err error) {
	return make([]byte, size), func() error { return nil }, nil
}
