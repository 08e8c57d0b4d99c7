//go:build linux

package shm_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/shm"
)

// end is one side of a connected pair.
type end struct {
	ctx *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR

	send []verbs.SendWR
	recv []verbs.RecvWR
	wcs  []verbs.WC
}

func open(tb testing.TB, size int) *end {
	d, err := verbs.Find("shm")
	require.NoError(tb, err)
	e := &end{}
	e.ctx, err = d.Open(verbs.Config{})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		if err := e.ctx.Close(); !errors.Is(err, verbs.ErrClosed) { // a test may have closed it
			require.NoError(tb, err)
		}
	})
	e.pd, err = e.ctx.AllocPD()
	require.NoError(tb, err)
	e.cq, err = e.ctx.CreateCQ(1024, nil)
	require.NoError(tb, err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}})
	require.NoError(tb, err)
	e.mr, err = e.pd.AllocMR(size, verbs.AccessAll)
	require.NoError(tb, err)
	return e
}

// pair opens two contexts and connects them.
func pair(tb testing.TB, size int) (a, b *end) {
	a, b = open(tb, size), open(tb, size)
	ea, err := a.qp.Endpoint()
	require.NoError(tb, err)
	eb, err := b.qp.Endpoint()
	require.NoError(tb, err)
	require.NoError(tb, a.qp.Connect(eb, verbs.ConnectAttr{}))
	require.NoError(tb, b.qp.Connect(ea, verbs.ConnectAttr{}))
	return a, b
}

// pong takes part in n rounds of ping-pong; with first it sends first.
func (e *end) pong(n, size int, first bool) error {
	recv := make([]verbs.RecvWR, 64)
	for i := range recv {
		recv[i].SGList = []verbs.SGE{e.mr.SGE(4096, size)}
	}
	send := []verbs.SendWR{{Opcode: verbs.OpSend, SGList: []verbs.SGE{e.mr.SGE(0, size)}}}
	wcs := make([]verbs.WC, 4)
	if _, err := e.qp.PostRecv(recv); err != nil {
		return err
	}
	used := 0
	for i := range n {
		if !first || i > 0 {
			for {
				k, err := e.cq.Poll(wcs[:1])
				if err != nil {
					return err
				}
				if k == 1 {
					if wcs[0].Opcode == verbs.WCSend {
						continue
					}
					if err := wcs[0].Err(); err != nil {
						return err
					}
					used++
					break
				}
			}
		}
		send[0].Flags = 0
		if i%64 == 0 {
			send[0].Flags = verbs.SendSignaled
		}
		if k, err := e.qp.PostSend(send); k != 1 || err != nil {
			return fmt.Errorf("post: %d %w", k, err)
		}
		if used == 32 {
			used = 0
			if _, err := e.qp.PostRecv(recv[:32]); err != nil {
				return err
			}
		}
	}
	return nil
}

func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{8, 1024, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := pair(b, 1<<20)
			done := make(chan error)
			b.ResetTimer()
			go func() {
				runtime.LockOSThread()
				done <- y.pong(b.N+1, size, false)
			}()
			require.NoError(b, x.pong(b.N+1, size, true))
			require.NoError(b, <-done)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
		})
	}
}

// BenchmarkOneThread runs both ends in turn: it measures the code without the transfer of cache
// lines between cores.
func BenchmarkOneThread(b *testing.B) {
	x, y := pair(b, 1<<20)
	x.prepare(8)
	y.prepare(8)
	for range 32 {
		x.qp.PostRecv(x.recv)
		y.qp.PostRecv(y.recv)
	}
	hop := func(from, to *end) {
		from.qp.PostSend(from.send)
		for {
			if n, _ := to.cq.Poll(to.wcs); n == 1 {
				break
			}
		}
		to.qp.PostRecv(to.recv)
	}
	hop(x, y)
	b.ReportAllocs()
	for b.Loop() {
		hop(y, x)
		hop(x, y)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

// prepare sets up work requests of size bytes.
func (e *end) prepare(size int) {
	e.send = []verbs.SendWR{{Opcode: verbs.OpSend, SGList: []verbs.SGE{e.mr.SGE(0, size)}}}
	e.recv = []verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(4096, size)}}}
	e.wcs = make([]verbs.WC, 1)
}
