//go:build !amd64

package reduce

// native is nil: there are no assembly kernels for this architecture.
var native *kernels
