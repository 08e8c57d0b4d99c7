//go:build !amd64

package rounding

// SetEnvironment is nil: only kernels of amd64 depend on the environment.
var SetEnvironment func(uint32) uint32
