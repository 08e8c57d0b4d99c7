package roce

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// A request that the peer refuses fails with the peer's reason, and requests posted before it succeed,
// whichever packets are lost, including responses of reads that the peer executed before the refusal
// moved its queue pair to ERR.
func TestRefusedUnderLoss(t *testing.T) {
	t.Parallel()
	const long, region = 100_000, 100_032
	seeds := 60
	switch {
	case testing.Short():
		seeds = 3
	case !need.WantLong():
		seeds = 10
	}
	path := faults{drop: 0.1, double: 0.02, reorder: 0.05, delay: 10 * time.Microsecond}
	for _, path.foreign = range []bool{false, true} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
			for seed := range uint64(seeds) {
				t.Run(fmt.Sprintf("foreign %v/%v/%d", path.foreign, op, seed), func(t *testing.T) {
					n, a, b := pair(t, seed, path, usual, 16)
					m := b.region(t, region)
					t.Cleanup(func() { require.NoError(t, m.Close()) })
					to := func(op verbs.Opcode, id uint64, size int, addr uint64) {
						a.post(t, verbs.SendWR{WRID: id, Opcode: op, SGList: []verbs.SGE{a.sge(a.local, 0, size)}, RemoteAddr: addr, RKey: m.RKey()})
					}
					size := long
					if op == verbs.OpAtomicFetchAndAdd {
						size = 8
					}
					to(verbs.OpRDMAWrite, 0, 8, m.Addr())
					to(verbs.OpRDMARead, 1, long, m.Addr())
					to(verbs.OpRDMARead, 2, 8, m.Addr())
					to(op, 3, size, m.Addr()+region-uint64(size)+8)
					to(verbs.OpRDMAWrite, 4, 8, m.Addr())
					n.until(t, time.Minute, func() bool { a.poll(t); return len(a.done) == 5 })
					for i, want := range []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCSuccess, verbs.WCRemAccessErr, verbs.WCWRFlushErr} {
						require.EqualValues(t, i, a.done[i].WRID)
						require.Equal(t, want, a.done[i].Status, "request %d", i)
					}
				})
			}
		}
	}
}
