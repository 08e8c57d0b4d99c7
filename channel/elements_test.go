package channel

import "unsafe"

// viewElements is b as elements.
func viewElements(b []byte) []element {
	return unsafe.Slice((*element)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/len(element{}))
}
