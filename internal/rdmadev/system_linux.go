package rdmadev

import (
	"slices"

	"github.com/Mellanox/rdmamap"
	"golang.org/x/sys/unix"
)

// CharDevices lists the files through which a process reaches a device: one of each
// kind that the kernel has, /dev/infiniband/uverbs0, umad0, issm0 and rdma_cm. The
// first three may be missing, or forbidden, in a container: the kernel says which
// they are, not that they are there.
func CharDevices(device string) []string {
	if !slices.Contains(rdmamap.GetRdmaDeviceList(), device) {
		return nil // rdma_cm belongs to none
	}
	return rdmamap.GetRdmaCharDevices(device)
}

// OfNetdev returns the RDMA device that a network interface of this network name
// space is of, one of them where there are several; empty where there is none.
func OfNetdev(netdev string) string {
	device, err := rdmamap.GetRdmaDeviceForNetdevice(netdev)
	if err != nil {
		return ""
	}
	return device
}

// CPUs lists the CPUs that the calling thread may run on, in order; nil where that is
// not known.
func CPUs() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}
