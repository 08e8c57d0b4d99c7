package pages

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestMain(m *testing.M) { leak.Main(m) }

// advised reports whether huge pages have been asked for at an address.
func advised(t *testing.T, at uintptr) bool {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &from, &to); n == 2 {
			in = from <= at && at < to
		} else if flags, ok := strings.CutPrefix(s.Text(), "VmFlags:"); ok && in {
			return slices.Contains(strings.Fields(flags), "hg")
		}
	}
	return false
}

func TestMake(t *testing.T) {
	for _, n := range []int{0, 1, huge/8 + 5, 5 * huge / 8} {
		s := Make[float64](n)
		require.Equal(t, make([]float64, n), s)
		if n < 2*huge/8 {
			continue // none may fit
		}
		_, err := os.Stat("/sys/kernel/mm/transparent_hugepage")
		need.Probe(t, "transparent huge pages", err)
		first := uintptr(unsafe.Pointer(&s[0]))
		require.True(t, advised(t, (first+huge-1)&^(huge-1)))
	}
}
