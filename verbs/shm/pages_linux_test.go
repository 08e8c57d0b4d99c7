package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHugePages: large arenas ask for huge pages, in the process that makes them and in others.
func TestHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		return // the kernel has none
	}
	for _, c := range []struct {
		size int
		asks bool
	}{{4 << 20, true}, {1 << 20, false}} {
		s, err := createSegment("test", c.size, true)
		require.NoError(t, err)
		fd, err := unix.Dup(s.fd)
		require.NoError(t, err)
		theirs, err := openSegment(fd, uint64(c.size))
		require.NoError(t, err)
		require.Equal(t, c.asks, asksHuge(t, s.mem))
		require.Equal(t, c.asks, asksHuge(t, theirs.mem))
		require.NoError(t, theirs.close())
		require.NoError(t, s.close())
	}
}

// asksHuge says whether the mapping that begins with b has flag hg: see proc_pid_smaps(5).
func asksHuge(t *testing.T, b []byte) bool {
	all, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(all), fmt.Sprintf("%x-", &b[0]))
	require.True(t, found)
	_, after, found = strings.Cut(after, "VmFlags:")
	require.True(t, found)
	flags, _, _ := strings.Cut(after, "\n")
	return strings.Contains(flags+" ", " hg ")
}
