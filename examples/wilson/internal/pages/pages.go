// Package pages makes slices that lie in huge pages where the system has such: a site's neighbours
// are far apart, and the processor translates few addresses of small pages without a walk through
// their tables.
package pages

import "unsafe"

// Make returns a slice of n zero elements of the Go heap.
func Make[T any](n int) []T {
	s := make([]T, n)
	advise(unsafe.Pointer(unsafe.SliceData(s)), uintptr(n)*unsafe.Sizeof(*new(T)))
	return s
}
