//go:build cgo

package ibv

import (
	"fmt"
	"os"
	"strings"
)

// What the kernel tells of a port's GIDs beyond their bytes
// (Documentation/ABI/stable/sysfs-class-infiniband).
func gidAttr(device string, port int, what string, index int) string {
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/gid_attrs/%s/%d", device, port, what, index))
	if err != nil {
		return "" // an index without a GID
	}
	return strings.TrimSpace(string(b))
}

// netdev is the network interface of a port, as its first GID has it.
func netdev(device string, port int) string { return gidAttr(device, port, "ndevs", 0) }

// rocev2 says whether a GID is used for RoCE over UDP.
func rocev2(device string, port, index int) bool {
	return gidAttr(device, port, "types", index) == "RoCE v2"
}
