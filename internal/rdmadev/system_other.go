//go:build !linux

package rdmadev

// CharDevices lists the files through which a process reaches a device: none, here.
func CharDevices(string) []string { return nil }

// OfNetdev returns the RDMA device that a network interface is of: none, here.
func OfNetdev(string) string { return "" }

// CPUs lists the CPUs that the calling thread may run on: not known, here.
func CPUs() []int { return nil }
