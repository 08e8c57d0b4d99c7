// Package rdmadev tells what Linux says of RDMA devices outside of libibverbs: the
// network interface of a port, the type of a GID, the files through which a process
// reaches a device, and which CPUs it is near to.
//
// What is not known is empty, nil or -1, never an error: other systems than Linux,
// kernels without RDMA and devices of software have little of it. A device is called
// as libibverbs calls it ("mlx5_0", "rxe0"), ports are counted from 1. Everything may
// be called from several goroutines at once.
package rdmadev

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sysfs is where sysfs is mounted. Only tests change it, before they call anything
// else. [CharDevices] and [OfNetdev] do not heed it.
var Sysfs = "/sys"

// class is the folder of RDMA devices in sysfs
// (Documentation/ABI/stable/sysfs-class-infiniband).
func class() string { return filepath.Join(Sysfs, "class/infiniband") }

// Devices lists the RDMA devices that the kernel has, by name, whether or not a
// provider can open them.
func Devices() []string { return folder(class()) }

// Netdev returns the network interface of a port: of RoCE and iWARP the one that its
// GIDs are of, of InfiniBand the one that carries IP over it. It is empty where there
// is none.
func Netdev(device string, port int) string {
	indices := folder(gidAttributes(device, port, "ndevs"))
	slices.SortFunc(indices, func(a, b string) int { return number(a) - number(b) })
	for _, i := range indices {
		if name := GIDNetdev(device, port, number(i)); name != "" {
			return name
		}
	}
	of := filepath.Join(class(), device, "device/net")
	for _, name := range folder(of) {
		if number(attribute(of, name, "type")) == arphrdInfiniband && number(attribute(of, name, "dev_port")) == port-1 {
			return name
		}
	}
	return ""
}

// arphrdInfiniband is ARPHRD_INFINIBAND (linux/if_arp.h).
const arphrdInfiniband = 32

// Ports lists the numbers of a device's ports, in order.
func Ports(device string) []int {
	var list []int
	for _, name := range folder(filepath.Join(class(), device, "ports")) {
		if i := number(name); i > 0 {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	return list
}

// IWARP says whether a device speaks iWARP: its connections are TCP's, which the
// RDMA connection manager makes.
func IWARP(device string) bool {
	return strings.HasSuffix(attribute(class(), device, "node_type"), "RNIC")
}

// Driver returns the name of the kernel's driver of a device, "mlx5_core"; empty for one
// of software, and where it is not known.
func Driver(device string) string {
	target, err := os.Readlink(filepath.Join(class(), device, "device/driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Software says whether a device is one of software: soft-RoCE, or soft-iWARP.
func Software(device string) bool {
	target, err := os.Readlink(filepath.Join(class(), device))
	return err == nil && strings.Contains(filepath.ToSlash(target), "/devices/virtual/")
}

// GIDType returns the type of an entry of a port's GID table as the kernel writes it,
// "IB/RoCE v1" or "RoCE v2"; empty for an entry that is not used.
func GIDType(device string, port, index int) string {
	return attribute(gidAttributes(device, port, "types"), strconv.Itoa(index))
}

// GIDNetdev returns the network interface that an entry of a port's GID table is of;
// empty for an entry that is not used, and on InfiniBand.
func GIDNetdev(device string, port, index int) string {
	return attribute(gidAttributes(device, port, "ndevs"), strconv.Itoa(index))
}

func gidAttributes(device string, port int, of string) string {
	return filepath.Join(class(), device, "ports", strconv.Itoa(port), "gid_attrs", of)
}

// attribute returns what a file says, without the line's end; nothing if it cannot be
// read, as those of GIDs that are not used cannot (EINVAL).
func attribute(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// folder lists the names in a folder.
func folder(path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// number is a decimal number, -1 for anything else.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
