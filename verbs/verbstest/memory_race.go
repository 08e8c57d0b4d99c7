//go:build race && unix

package verbstest

import (
	"golang.org/x/sys/unix"
)

// userMemory returns memory to register, and a function to call once it no longer is. A peer writes it
// behind the program's back; a completion orders that with the program, and may come through memory
// that the race detector does not see. So under the race detector user memory is such memory, too.
func userMemory(size int) (buf []byte, free func() error, err error) {
	buf, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return buf, func() error { return unix.Munmap(buf) }, err
}
