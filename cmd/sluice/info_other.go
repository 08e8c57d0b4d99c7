//go:build !linux

package main

// Without RDMA none of this is shown.

func kernelRelease() string        { return "" }
func memlock() (now, most *int64)  { return nil, nil }
func hugePages() []hugePageEntry   { return nil }
func sharedHuge() string           { return "" }
func accessible(path string) error { return nil }
