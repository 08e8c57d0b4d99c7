//go:build cgo

package ibv_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
)

// crossings returns how often f calls C. It first waits for other goroutines that do: the
// readers of asynchronous events, before they sleep.
func crossings(f func()) int64 {
	for buf := make([]byte, 1<<20); ; runtime.Gosched() {
		stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
		if !slices.ContainsFunc(stacks, func(g string) bool {
			return strings.Contains(g, "created by github.com/sluice-hpc/sluice/verbs/ibv.newAsync") && !strings.Contains(g, "[IO wait")
		}) {
			break
		}
	}
	before := runtime.NumCgoCall()
	f()
	return runtime.NumCgoCall() - before
}

// pollSome polls once, for at most n.
func pollSome(t testing.TB, cq *verbs.CQ, n int) []verbs.WC {
	wcs := make([]verbs.WC, n)
	got, err := cq.Poll(wcs)
	require.NoError(t, err)
	return wcs[:got]
}

// Completions found by a post need no call into C any more, and come before those still in the device.
func testPostLooks(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	for name, all := range map[string]bool{"signalled": false, "signalled all": true} {
		a, _ := n.pair(verbs.QPInitAttr{SQSigAll: all})
		one := func(id uint64) verbs.SendWR {
			wr := n.write(id)
			if all {
				wr.Flags = 0
			}
			return wr
		}
		for round := range 3 {
			require.EqualValues(t, 1, crossings(func() { a.post(one(1)) }), name)
			require.Zero(t, crossings(func() { require.Equal(t, []uint64{1}, ids(t, pollSome(t, a.cq, 8))) }), "%s %d", name, round)
			require.Empty(t, pollSome(t, a.cq, 8))
		}
		a.post(series(10, 1, one)...)
		for id := uint64(11); id < 20; id++ {
			a.post(one(id)) // its completion stays where it is
		}
		require.Equal(t, series(3, 1, same), ids(t, pollSome(t, a.cq, 3)))
		require.Zero(t, crossings(func() { require.Equal(t, series(7, 4, same), ids(t, pollSome(t, a.cq, 20))) }))
		require.Equal(t, series(9, 11, same), ids(t, pollSome(t, a.cq, 20)))
	}
}

// Posts that find nothing stop looking, except for a few; when there is a completion, they find it.
func testPostLooksRarely(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	n.ctl.Late.Store(1)
	before := n.ctl.Polls.Load()
	for id := range uint64(200) {
		a.post(n.write(id))
	}
	require.EqualValues(t, 8, n.ctl.Polls.Load()-before) // posts 0, 2, 6, 14, 30, 62, 126, 190
	n.ctl.Late.Store(0)
	before = n.ctl.Polls.Load()
	for id := uint64(200); n.ctl.Polls.Load() == before; id++ {
		require.Less(t, id, uint64(200+64))
		a.post(n.write(id))
	}
	require.Zero(t, crossings(func() { require.Equal(t, series(64, 0, same), ids(t, pollSome(t, a.cq, 64))) }))
	require.NotEmpty(t, a.poll())
	for range 10 {
		a.post(n.write(7))
		require.Zero(t, crossings(func() { require.Len(t, pollSome(t, a.cq, 8), 1) }))
	}
}

// A post that is not signalled does not look, and none looks at a queue of a user's channel:
// after arming it and a Poll of fewer than there was room for, a user may sleep.
func testPostLooksNot(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, b := n.pair(verbs.QPInitAttr{})
	wr := n.write(1)
	wr.Flags = 0
	before := n.ctl.Polls.Load()
	a.post(n.write(1), wr)
	require.Equal(t, before, n.ctl.Polls.Load())
	require.Equal(t, []uint64{1}, ids(t, a.poll()))

	ch, err := n.ctx.CreateCompChannel()
	require.NoError(t, err)
	fd, err := ch.FD()
	require.NoError(t, err)
	cq := n.cq(64, ch)
	c := end{n, n.qp(verbs.QPInitAttr{SendCQ: cq}), cq}
	attach(t, c.qp, b.qp)
	before = n.ctl.Polls.Load()
	c.post(n.write(1))
	require.NoError(t, cq.ReqNotify(false))
	c.post(n.write(2))
	c.post(n.write(3))
	require.Equal(t, before, n.ctl.Polls.Load())
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	got, err := unix.Poll(p, 0)
	require.NoError(t, err)
	require.Equal(t, 1, got)
	require.Equal(t, series(3, 1, same), ids(t, pollSome(t, cq, 64)))
}

// The next Poll returns the error of ibv_poll_cq in a post, once.
func testPostLooksError(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	n.ctl.PollErrno.Store(2)
	a.post(n.write(1))
	n.ctl.PollErrno.Store(0)
	a.post(n.write(2))
	_, err := a.cq.Poll(make([]verbs.WC, 4))
	require.ErrorContains(t, err, "ibv_poll_cq returned -2")
	require.Equal(t, series(2, 1, same), ids(t, a.poll()))

	n.ctl.FailStatus.Store(uint32(verbs.WCRemOpErr))
	for n.ctl.FailIn.Store(1); n.ctl.FailIn.Load() != 0; {
		a.post(n.write(3))
	}
	require.ErrorIs(t, a.poll()[0].Err(), verbs.WCRemOpErr)
	require.Equal(t, verbs.QPErr, a.qp.State())
}

// A queue that overruns returns the completions that it has, wherever they are, and is broken.
func testPostLooksOverrun(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	cq := n.cq(4, nil)
	_, b := n.pair(verbs.QPInitAttr{})
	a := end{n, n.qp(verbs.QPInitAttr{SendCQ: cq}), cq}
	attach(t, a.qp, b.qp)
	for id := range uint64(5) { // one is taken, and four there is room for
		a.post(n.write(id))
	}
	a.post(n.write(5))
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq}, n.event())
	require.Equal(t, []uint64{0}, ids(t, pollSome(t, cq, 8)))
	require.Equal(t, series(4, 1, same), ids(t, pollSome(t, cq, 8)))
	_, err := cq.Poll(make([]verbs.WC, 8))
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
}

// Resetting or closing a queue pair removes its completions found by posts; posts to others do not
// bring them back.
func testPostLooksPurge(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	_, b := n.pair(verbs.QPInitAttr{})
	for name, end1 := range map[string]func(*verbs.QP) error{
		"reset": func(q *verbs.QP) error {
			return q.Modify(&verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState)
		},
		"close": (*verbs.QP).Close,
	} {
		cq := n.cq(1024, nil)
		var ends [2]end
		for i := range ends {
			ends[i] = end{n, n.qp(verbs.QPInitAttr{SendCQ: cq}), cq}
			attach(t, ends[i].qp, b.qp)
		}
		n.ctl.Late.Store(1)
		for id := range uint64(50) {
			for _, e := range ends {
				e.post(n.write(id))
			}
		}
		n.ctl.Late.Store(0)
		before := n.ctl.Polls.Load()
		for n.ctl.Polls.Load() == before {
			ends[0].post(n.write(1000))
		}
		require.NoError(t, end1(ends[0].qp), name)
		ends[1].post(n.write(50))
		require.Equal(t, series(51, 0, same), ids(t, ends[1].poll()), name)
		require.NoError(t, ends[1].qp.Close())
		if name == "reset" {
			require.NoError(t, ends[0].qp.Close())
		}
		require.NoError(t, cq.Close())
	}
}

// Completed receives of an SRQ that a post has found free their places.
func testPostLooksSRQ(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	const size = 20
	srq, err := n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: size, MaxSGE: 1})
	require.NoError(t, err)
	a, b := n.pair(verbs.QPInitAttr{SRQ: srq})
	post := func() int {
		got, err := srq.PostRecv(make([]verbs.RecvWR, size))
		require.NoError(t, err)
		return got
	}
	require.Equal(t, size, post())
	for range size {
		a.post(verbs.SendWR{Opcode: verbs.OpSend})
	}
	b.post(n.write(1)) // which takes them
	require.Zero(t, post())
	require.NoError(t, b.qp.Close())
	require.Zero(t, crossings(func() { require.Empty(t, pollSome(t, b.cq, 0)) }))
	require.Equal(t, size, post())
}

// One goroutine posts, others poll: completions come in posting order.
func testPostLooksOrder(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	const posts, pollers = 20000, 2
	stop := make(chan struct{})
	seen := make(chan []uint64, pollers)
	for i := range pollers {
		go func() {
			var l []uint64
			wcs := make([]verbs.WC, 1+4*i)
			for {
				got, err := a.cq.PollSpin(wcs, 3)
				if err != nil {
					t.Error(err)
				}
				for _, wc := range wcs[:got] {
					l = append(l, wc.WRID)
				}
				if got > 0 {
					continue
				}
				select {
				case <-stop:
					seen <- l
					return
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	for id := uint64(0); id < posts; {
		got, err := a.qp.PostSend([]verbs.SendWR{n.write(id)})
		require.NoError(t, err)
		if id += uint64(got); got == 0 {
			runtime.Gosched()
		}
	}
	close(stop)
	var all []uint64
	for range pollers {
		l := <-seen
		require.True(t, slices.IsSorted(l))
		all = append(all, l...)
	}
	all = append(all, ids(t, a.poll())...)
	slices.Sort(all)
	require.Equal(t, series(posts, 0, same), all)
}

// Many goroutines post to one queue pair, with posts that look and others, and poll now and then:
// each completion comes once, and those of each goroutine in order.
func testPostLooksMany(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	const posters, posts = 3, 4000
	var mu sync.Mutex
	var seen [posters][]uint64
	take := func(most int) {
		mu.Lock()
		defer mu.Unlock()
		wcs := make([]verbs.WC, most)
		got, err := a.cq.Poll(wcs)
		if err != nil {
			t.Error(err)
		}
		for _, wc := range wcs[:got] {
			if wc.Err() != nil {
				t.Error(wc.Err())
			}
			seen[wc.WRID>>32] = append(seen[wc.WRID>>32], wc.WRID&(1<<32-1))
		}
	}
	var wg sync.WaitGroup
	for p := range uint64(posters) {
		wg.Go(func() {
			quiet := n.write(0)
			quiet.Flags = 0
			for i := uint64(0); i < posts; i++ {
				wrs := []verbs.SendWR{n.write(p<<32 | i)}
				switch i % 4 { // what is signalled looks, alone or behind another
				case 1:
					wrs = []verbs.SendWR{quiet, wrs[0]}
				case 2:
					wrs = []verbs.SendWR{wrs[0], quiet}
				}
				for len(wrs) > 0 {
					got, err := a.qp.PostSend(wrs)
					if err != nil {
						t.Error(err)
						return
					}
					if wrs = wrs[got:]; got == 0 || i%8 == 0 {
						take(5)
					}
				}
			}
		})
	}
	wg.Wait()
	for range posters * posts {
		take(5)
	}
	for p := range seen {
		require.Equal(t, series(posts, 0, same), seen[p], p)
	}
}

// A sleeping call wakes although a post has taken the completion that it waits for.
func testPostLooksAsleep(t *testing.T) {
	n := openNull(t, "ibv", verbs.Config{})
	a, _ := n.pair(verbs.QPInitAttr{})
	for id := range uint64(200) {
		before := n.ctl.Polls.Load()
		done := make(chan []verbs.WC)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		go func() {
			wcs := make([]verbs.WC, 4)
			got, err := a.cq.Wait(ctx, wcs)
			if err != nil {
				t.Error(err)
			}
			done <- wcs[:got]
		}()
		if id%2 == 0 { // when it has spun, or sleeps; else at any time
			for n.ctl.Polls.Load() < before+1024 {
				runtime.Gosched()
			}
		}
		a.post(n.write(id))
		require.Equal(t, []uint64{id}, ids(t, <-done))
		cancel()
	}
}
