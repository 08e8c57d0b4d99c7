// Package rdmadevtest makes what tests of RDMA devices read in place of sysfs, on
// machines that have none.
package rdmadevtest

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Symbolic links and the colons of PCI addresses cannot be in a Go module, so the tree
// is a text.
//
//go:embed two_nodes.txt
var twoNodes string

// TwoNodes makes the sysfs of a host of two NUMA nodes, 0 and 2, and returns its root,
// which goes when the test is over. Devices, with the interfaces of their ports:
//
//	mlx5_0   node 0      CPUs 0-3,8-11    eth2 (RoCE)
//	mlx5_1   node 2      CPUs 4-7,12-15   ib0, ib1 (InfiniBand)
//	rxe0     of software                  eth3 (RoCE)
func TwoNodes(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(twoNodes) {
		path, content, isFile := strings.Cut(strings.TrimSpace(line), " = ")
		path, target, isLink := strings.Cut(path, " -> ")
		if !isFile && !isLink {
			continue
		}
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(filepath.FromSlash(target), path)
		default:
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
