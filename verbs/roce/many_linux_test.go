package roce

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// Many queue pairs of one context over a path that loses one packet in a hundred, each way, while both
// ends only poll: none of them declares its peer dead.
func TestManyLossy(t *testing.T) {
	need.Long(t)
	const qps, messages = 200, 20
	l := newLink(t, 10)
	var ends [2]place
	var all [2][]*verbs.QP
	for i := range ends {
		e := &ends[i]
		e.ctx = l.ends[i].open(t, providerName+"_veth0", verbs.Config{})
		t.Cleanup(func() { require.NoError(t, e.ctx.Close()) })
		pd, err := e.ctx.AllocPD()
		require.NoError(t, err)
		e.cq, err = e.ctx.CreateCQ(4*qps, nil)
		require.NoError(t, err)
		e.mem, err = pd.AllocMR(lossySize, verbs.AccessAll)
		require.NoError(t, err)
		for range qps {
			q, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			require.NoError(t, err)
			all[i] = append(all[i], q)
		}
	}
	for i := range all {
		for k, q := range all[i] {
			remote, err := all[1-i][k].Endpoint()
			require.NoError(t, err)
			require.NoError(t, q.Connect(remote, verbs.ConnectAttr{}))
		}
	}
	var stop atomic.Bool
	var poller sync.WaitGroup
	poller.Go(func() {
		var wcs [1]verbs.WC
		for !stop.Load() {
			ends[1].cq.Poll(wcs[:])
		}
	})
	defer poller.Wait()
	defer stop.Store(true)
	from, to := &ends[0], &ends[1]
	post := func(k int) {
		_, err := all[0][k].PostSend([]verbs.SendWR{{WRID: uint64(k), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{from.mem.SGE(0, lossySize)}, RemoteAddr: to.mem.Addr(), RKey: to.mem.RKey()}})
		require.NoError(t, err)
	}
	for k := range qps {
		post(k)
	}
	var sent [qps]int
	var wcs [16]verbs.WC
	for done := 0; done < qps*messages; {
		n, err := from.cq.Poll(wcs[:])
		require.NoError(t, err)
		for i := range wcs[:n] {
			require.NoError(t, wcs[i].Err())
			k := wcs[i].WRID
			if sent[k]++; sent[k] < messages {
				post(int(k))
			}
		}
		done += n
	}
}
