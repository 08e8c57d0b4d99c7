//go:build !amd64

package exact

func runnable() []kernels { return nil }
