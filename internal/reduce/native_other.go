//go:build !amd64

package reduce

// native would be kernels in assembly.
var native *kernels
