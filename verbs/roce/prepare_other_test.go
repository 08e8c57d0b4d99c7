//go:build !linux

package roce

func prepare() {}
