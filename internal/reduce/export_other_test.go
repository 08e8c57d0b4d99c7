//go:build !amd64

package reduce

func runnable() map[string]*kernels { return nil }
