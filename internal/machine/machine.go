// Package machine says which processes are on the same machine, and which of its CPUs
// they may use.
package machine

import (
	"errors"
	"hash/fnv"
	"io"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// ID is the same for processes that reach each other over loopback, and most
// likely different for others: from the identity of the boot (random(4),
// /proc/sys/kernel/random/boot_id) and the network namespace, else from the host's
// name. It is for what is tried first, and proves nothing. An error is that this process has no
// descriptor left: it would disagree with others of its machine.
func ID() (uint64, error) {
	h := fnv.New64a()
	if err := boot(h); err != nil {
		return 0, err
	}
	ns, err := os.Readlink("/proc/self/ns/net") // opens nothing
	if err == nil {
		h.Write([]byte(ns))
	}
	return h.Sum64(), nil
}

// Kernel is the same for processes that share CPUs, as [ID] is for those that share
// loopback, too: containers of one machine have networks of their own, but its CPUs.
func Kernel() (uint64, error) {
	h := fnv.New64a()
	err := boot(h)
	return h.Sum64(), err
}

// identity is that of the boot, once it has been read.
var identity atomic.Pointer[[]byte]

func boot(h io.Writer) error {
	if id := identity.Load(); id != nil {
		h.Write(*id)
		return nil
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	switch {
	case errors.Is(err, limits.ErrFiles):
		return limits.Files(err)
	case err != nil:
		name, _ := os.Hostname()
		id = []byte(name)
	}
	identity.Store(&id)
	h.Write(id)
	return nil
}

// first is the set of CPUs 0 to n-1.
func first(n int) []byte {
	b := make([]byte, (n+7)/8)
	for i := range n {
		b[i/8] |= 1 << (i % 8)
	}
	return b
}

// Count returns how many CPUs there are in all of the sets together.
func Count(sets ...[]byte) int {
	n := 0
	for i := 0; ; i++ {
		var b byte
		over := true
		for _, s := range sets {
			if i < len(s) {
				b |= s[i]
				over = false
			}
		}
		if over {
			return n
		}
		n += bits.OnesCount8(b)
	}
}
