//go:build cgo

package ibv_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/ibv"
)

// BenchmarkPost posts RDMA_WRITEs in batches and polls their completions, over the null device, and
// compares with the same loop in C (testdata/loop.c). Both figures are medians. It needs the
// process to itself: run no test with it.
func BenchmarkPost(b *testing.B) {
	lib := linkNull(b, compileNull(b), "")
	loop := filepath.Join(b.TempDir(), "loop")
	compile(b, "-O2", "-Wall", "-o", loop, "loop.c", "-ldl")
	b.Setenv(ibv.EnvLibrary, lib)
	n := openNull(b, "ibv", verbs.Config{})
	for _, depth := range []int{1, 64} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			inC := inC(b, loop, lib, depth)
			a, _ := n.pair(verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 256, MaxSendSGE: 1}})
			wrs, wcs := series(depth, 1, n.write), make([]verbs.WC, depth)
			const posts = 6400
			took := make([]float64, 0, 1<<16)
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				for range posts / depth {
					k, err := a.qp.PostSend(wrs)
					if k != depth || err != nil {
						b.Fatal(k, err)
					}
					for got := 0; got < depth; {
						k, err := a.cq.Poll(wcs)
						if k == 0 || err != nil || wcs[0].Status != verbs.WCSuccess {
							b.Fatal(k, err, wcs[0])
						}
						got += k
					}
				}
				took = append(took, float64(time.Since(start).Nanoseconds())/posts)
			}
			slices.Sort(took)
			inGo := took[len(took)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(inGo, "ns/wr")
			b.ReportMetric(inC, "C-ns/wr")
			b.ReportMetric(inGo-inC, "more-ns/wr")
		})
	}
}

// inC runs the loop in C.
func inC(b *testing.B, loop, lib string, depth int) float64 {
	cmd := exec.Command(loop, lib, strconv.Itoa(depth))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(b, err)
	ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	require.NoError(b, err)
	return ns
}
