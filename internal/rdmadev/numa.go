package rdmadev

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NUMANode returns the number of the NUMA node that a device is attached to, -1 where
// that is not known: of devices of software, and of most virtual machines.
func NUMANode(device string) int {
	return max(-1, number(attribute(class(), device, "device/numa_node")))
}

// LocalCPUs returns the numbers of the CPUs that are nearest to a device, in order;
// nil where that is not known.
func LocalCPUs(device string) []int {
	return parseList(attribute(class(), device, "device/local_cpulist"))
}

// Nearest returns devices ordered by how far they are from the NUMA nodes that cpus
// are of, on average, nearest first: where a process that may run on these CPUs
// ([CPUs]) should look for a device first. Devices of equal distance stay in their
// order, and those whose distance is not known come last.
func Nearest(devices []string, cpus []int) []string {
	nodes := readNodes()
	far := map[string]int{}
	for _, d := range devices {
		far[d] = nodes.distance(cpus, NUMANode(d))
	}
	ordered := slices.Clone(devices)
	slices.SortStableFunc(ordered, func(a, b string) int { return cmp.Compare(far[a], far[b]) })
	return ordered
}

// node is a NUMA node.
type node struct {
	number   int
	cpus     []int
	distance []int // to each node that is online, in their order
}

type nodes []node

// readNodes lists the nodes that are online, by number
// (Documentation/ABI/stable/sysfs-devices-node).
func readNodes() nodes {
	root := filepath.Join(Sysfs, "devices/system/node")
	var all nodes
	for _, i := range parseList(attribute(root, "online")) {
		n := node{number: i}
		at := fmt.Sprint("node", i)
		n.cpus = parseList(attribute(root, at, "cpulist"))
		for _, d := range strings.Fields(attribute(root, at, "distance")) {
			n.distance = append(n.distance, number(d))
		}
		all = append(all, n)
	}
	return all
}

// distance is the sum of the distances from each node that one of cpus is of to the
// node of that number; the largest number where it is not known.
func (all nodes) distance(cpus []int, to int) int {
	column := slices.IndexFunc(all, func(n node) bool { return n.number == to })
	if column < 0 {
		return math.MaxInt
	}
	sum := 0
	for _, n := range all {
		if !slices.ContainsFunc(cpus, func(c int) bool { return slices.Contains(n.cpus, c) }) {
			continue
		}
		if column >= len(n.distance) {
			return math.MaxInt
		}
		sum += n.distance[column]
	}
	return sum
}

// maxListed bounds the numbers in a list, as CONFIG_NR_CPUS does: 8192 on x86, more
// nowhere else.
const maxListed = 1 << 16

// parseList reads a list as the kernel writes it, "0-3,8"; nil if it is none.
func parseList(s string) []int {
	var list []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 64)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(last, 10, 64)
		}
		if err != nil || to >= maxListed {
			return nil
		}
		for i := from; i <= to; i++ {
			list = append(list, int(i))
		}
	}
	return list
}
