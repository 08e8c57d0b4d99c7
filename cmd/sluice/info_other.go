//go:build !linux

package main

// Nothing of this is asked for where there is no RDMA.

func kernelRelease() string        { return "" }
func memlock() (now, most *int64)  { return nil, nil }
func hugePages() []hugePageEntry   { return nil }
func accessible(path string) error { return nil }
