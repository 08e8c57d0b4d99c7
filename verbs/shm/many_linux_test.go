package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// another creates another QP at the same end, with these CQs.
func (s *side) another(t testing.TB, send, recv *CQ) *side {
	q, err := s.pd.CreateQP(verbs.ProviderQPInit{SendCQ: send, RecvCQ: recv, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}})
	require.NoError(t, err)
	o := *s
	o.q = q.(*QP)
	return &o
}

// many connects n QPs that share a CQ at either side.
func many(t *testing.T, n int) (as, bs []*side) {
	leak.Check(t)
	x, y := open(t), open(t)
	t.Cleanup(func() {
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
	})
	a, b := newSide(t, x), newSide(t, y)
	for i := range n {
		if i > 0 {
			a, b = a.another(t, a.cq, a.cq), b.another(t, b.cq, b.cq)
		}
		as, bs = append(as, a), append(bs, b)
	}
	for i := range as {
		join(t, as[i], bs[i])
	}
	return as, bs
}

// onlyNoted makes Poll check only QPs whose bit is set.
func onlyNoted(t *testing.T) {
	was := lookAnyway
	lookAnyway = 1 << 63
	t.Cleanup(func() { lookAnyway = was })
}

// still polls until no work is left.
func still(t *testing.T, q *CQ) {
	eventually(t, "the board does not become empty", func() bool {
		polled(t, q, make([]verbs.WC, 1))
		return q.board != nil && q.board.empty()
	})
}

// passed waits until the engine has begun a pass over the queue pairs that are in its list now.
func passed(t *testing.T, s *side) {
	cq, err := s.c.CreateCQ(1, nil)
	require.NoError(t, err)
	unpolled := s.another(t, cq.(*CQ), cq.(*CQ)).q
	for range 2 { // the first may belong to the current pass
		unpolled.watched.Store(false)
		eventually(t, "the engine does not look", func() bool {
			s.c.kick()
			return unpolled.watched.Load()
		})
	}
	require.NoError(t, unpolled.Close())
	require.NoError(t, cq.Close())
}

// Poll checks no inbox whose bit is not set: many Polls find no message that a peer has put there
// without setting the bit. Each of the checks made anyway finds one.
func TestPollLooksOnlyWhereNoted(t *testing.T) {
	const n = 80
	was := lookAnyway
	t.Cleanup(func() { lookAnyway = was })
	lookAnyway = 1 << 63
	as, _ := many(t, n)
	for _, a := range as {
		a.receive(t, 1)
	}
	cq := as[0].cq
	still(t, cq)
	// The engine checks all QPs while polling pauses: it must not know of these.
	c := as[0].c
	for _, q := range *c.allQPs.Load() {
		listRemove(&c.mu, &c.allQPs, q)
		defer listAdd(&c.mu, &c.allQPs, q)
	}
	passed(t, as[0])
	for _, a := range as { // as quick does it
		sl := &a.q.in.Load().slots[0]
		atomic.StoreUint64(&sl.flag, flagOf(1, uint8(verbs.OpSend), 0, 8))
	}
	wcs := make([]verbs.WC, 2*n)
	poll := func() int {
		return polled(t, cq, wcs)
	}
	for range 10 * n {
		require.Zero(t, poll(), "a look at an inbox of which nothing is noted")
	}
	lookAnyway = 4
	got := 0
	for range 2 * lookAnyway * n {
		got += poll()
	}
	require.Equal(t, n, got, "one look in 4 polls finds all in turn")
}

// rounds is n in long tests, else fewer.
func rounds(n int) int {
	switch {
	case need.WantLong():
		return n
	case testing.Short():
		return n / 10
	}
	return n / 5
}

// traffic polls the CQ of one end and replies to messages, until the given number has arrived over
// each of the QPs.
type traffic struct {
	sides sync.Map // by QP number
	got   atomic.Int64
}

func (f *traffic) add(t *testing.T, s *side) {
	s.receive(t, 1)
	f.sides.Store(s.q.Num, s)
}

func (f *traffic) run(t *testing.T, cq *CQ, qps, rounds int, last bool) {
	wcs := make([]verbs.WC, 4)
	count := map[uint32]int{}
	for limit := time.Now().Add(time.Minute); f.got.Load() < int64(qps*rounds); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Errorf("%d of %d messages", f.got.Load(), qps*rounds)
			return
		}
		n := polled(t, cq, wcs)
		for _, wc := range wcs[:n] {
			require.NoError(t, wc.Err())
			if wc.Opcode == verbs.WCSend {
				continue
			}
			s, _ := f.sides.Load(wc.QPNum)
			s.(*side).receive(t, 1)
			f.got.Add(1)
			if count[wc.QPNum]++; count[wc.QPNum] < rounds || !last {
				s.(*side).send(t, 2)
			}
		}
	}
}

// busy connects qps QPs that share a CQ at either side, and has messages go over them in rounds
// until wg is done.
func busy(t *testing.T, qps, rounds int) (as, bs []*side, wg *sync.WaitGroup) {
	as, bs = many(t, qps)
	var fa, fb traffic
	for i := range qps {
		fa.add(t, as[i])
		fb.add(t, bs[i])
	}
	wg = new(sync.WaitGroup)
	wg.Go(func() { fa.run(t, as[0].cq, qps, rounds, true) })
	wg.Go(func() { fb.run(t, bs[0].cq, qps, rounds, false) })
	for i := range qps {
		as[i].send(t, 2)
	}
	return as, bs, wg
}

// The number of QPs grows from few to many under traffic: all messages arrive.
func TestFromFewToManyUnderTraffic(t *testing.T) {
	onlyNoted(t)
	rounds := rounds(2000)
	qps := 3 * fewQPs
	as, bs := many(t, 1)
	a, b := as[0], bs[0]
	var fa, fb traffic
	var wg sync.WaitGroup
	wg.Go(func() { fa.run(t, as[0].cq, qps, rounds, true) })
	wg.Go(func() { fb.run(t, bs[0].cq, qps, rounds, false) })
	for i := range qps {
		if i > 0 {
			a, b = a.another(t, a.cq, a.cq), b.another(t, b.cq, b.cq)
			join(t, a, b)
		}
		fa.add(t, a)
		fb.add(t, b)
		a.send(t, 2)
		eventually(t, "no traffic", func() bool { return fa.got.Load() >= int64(i*rounds/4) })
	}
	wg.Wait()
	require.NotNil(t, a.cq.board)
}

// QPs are closed, and others take their places, while their CQ is polled and other QPs carry
// messages.
func TestClosingWhilePolledByBoard(t *testing.T) {
	onlyNoted(t)
	qps := 2 * fewQPs
	as, bs, wg := busy(t, qps, rounds(2000))
	for range 50 {
		a, b := as[0].another(t, as[0].cq, as[0].cq), bs[0].another(t, bs[0].cq, bs[0].cq)
		a.connect(t, b)
		b.connect(t, a)
		require.NoError(t, a.q.Close())
		require.NoError(t, b.q.Close())
	}
	wg.Wait()
	require.Len(t, as[0].cq.qps, qps+1, "places are used again")
}

// Polling either CQ of a QP makes progress on all of the QP.
func TestBoardsOfBothCQs(t *testing.T) {
	onlyNoted(t)
	as, bs := many(t, fewQPs+2)
	for _, polled := range []string{"send", "receive"} {
		cq, err := as[0].c.CreateCQ(64, nil)
		require.NoError(t, err)
		other := cq.(*CQ)
		var a *side
		if polled == "send" {
			a = as[0].another(t, as[0].cq, other)
		} else {
			a = as[0].another(t, other, as[0].cq)
		}
		b := bs[0].another(t, bs[0].cq, bs[0].cq)
		join(t, a, b)
		b.receive(t, 1)
		a.receive(t, 2)
		a.send(t, 3)
		b.send(t, 4)
		got, taken := map[uint64]bool{}, 0
		eventually(t, "a completion is missing, or polling the other CQ has not moved this one's side, too", func() bool {
			for _, cq := range []*CQ{as[0].cq, bs[0].cq} {
				wcs := make([]verbs.WC, 4)
				n, err := cq.Poll(wcs)
				require.NoError(t, err)
				for _, wc := range wcs[:n] {
					got[wc.WRID] = true
				}
			}
			s := soft.Sink{CQ: &other.CQ, WCs: make([]verbs.WC, 4)} // without moving anything on
			require.NoError(t, other.Begin(&s))
			other.End(&s)
			taken += s.N
			return len(got) == 3 && got[1] && got[4] && taken == 1
		})
		require.NoError(t, a.q.Close())
		require.NoError(t, other.Close())
	}
}

// An acknowledgement waits for a message to carry it, except on a QP of two CQs with a board: if
// the other CQ is polled next, nothing shows that it waits.
func TestWhichAcknowledgementsRide(t *testing.T) {
	c := open(t)
	a := newSide(t, c)
	other, err := c.CreateCQ(1, nil)
	require.NoError(t, err)
	both := a.another(t, a.cq, other.(*CQ))
	require.EqualValues(t, ackRides, a.q.ackAfter)
	require.EqualValues(t, ackRides, both.q.ackAfter)
	added := append(a.crowd(t, a.cq, fewQPs+1), both)
	require.NotNil(t, a.cq.board)
	require.EqualValues(t, ackRides, a.q.ackAfter)
	require.EqualValues(t, ackRides, added[0].q.ackAfter)
	require.EqualValues(t, 1, both.q.ackAfter)
	for _, s := range added {
		require.NoError(t, s.q.Close())
	}
	a.close(t)
	require.NoError(t, c.Close())
}

// Whatever a peer does to a board, or to its places, costs only checks: messages arrive.
func TestHostileBoard(t *testing.T) {
	as, bs := many(t, fewQPs+1)
	words := as[0].cq.board
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); !stop.Load(); i++ {
			atomic.StoreUint64(&words[i%boardUnit], -(i / boardUnit % 2)) // all, and none
			runtime.Gosched()
		}
	})
	wcs := make([]verbs.WC, 4)
	arrives := func() {
		for i := range as {
			as[i].receive(t, uint64(100+i))
			bs[i].send(t, 1)
			eventually(t, "a message is lost", func() bool {
				return polled(t, as[0].cq, wcs) == 1 && wcs[0].WRID == uint64(100+i)
			})
		}
	}
	arrives()
	stop.Store(true)
	wg.Wait()
	words.set(uint32(len(words)*64 - 1)) // no QP's
	still(t, as[0].cq)
	for _, places := range []uint64{0, 1, boardWords*64 + 1, boardWords<<32 | 77, notifyPlaces} {
		for i := range as {
			atomic.StoreUint64(&as[i].q.in.Load().notify, places)
		}
		arrives()
	}
}

// crowd adds QPs without a connection until the CQ has n.
func (s *side) crowd(t *testing.T, cq *CQ, n int) (added []*side) {
	for have := len(cq.qps); have < n; have++ {
		added = append(added, s.another(t, cq, cq))
	}
	return added
}

// A board that is too small is replaced while messages go over some QPs: all arrive.
func TestBoardGrowsUnderTraffic(t *testing.T) {
	onlyNoted(t)
	as, _, wg := busy(t, fewQPs+1, rounds(5000))
	added := as[0].crowd(t, as[0].cq, 2*unitPlaces+1)
	wg.Wait()
	require.Len(t, as[0].cq.board, 4*boardUnit)
	for _, s := range added {
		require.NoError(t, s.q.Close())
	}
}

// If all boards are taken, a CQ checks each of its QPs, even a CQ that has outgrown its board.
func TestNoBoardLeft(t *testing.T) {
	onlyNoted(t)
	as, bs := many(t, fewQPs+1)
	c, cq := as[0].c, as[0].cq
	require.NotNil(t, cq.board)
	first, free := c.units.take(1)
	for ; free; _, free = c.units.take(1) {
	}
	require.Equal(t, 1, first)
	added := as[0].crowd(t, cq, unitPlaces+1)
	require.Nil(t, cq.board)
	for i := range as {
		as[i].receive(t, 1)
		bs[i].send(t, 2)
		as[i].take(t)
	}
	c.mu.Lock()
	c.units.mark(0, len(c.units), false)
	c.mu.Unlock()
	added = append(added, as[0].another(t, cq, cq))
	require.Len(t, cq.board, 2*boardUnit)
	for i := range as {
		as[i].receive(t, 1)
		bs[i].send(t, 2)
		as[i].take(t)
	}
	for _, s := range added {
		require.NoError(t, s.q.Close())
	}
}

// A Poll that is running when its CQ and the context are closed does not access the board, which
// may be another CQ's by then, or unmapped.
func TestPollOfAClosedBoard(t *testing.T) {
	leak.Check(t)
	c := open(t)
	s := newSide(t, c)
	added := s.crowd(t, s.cq, fewQPs+1)
	require.NotNil(t, s.cq.board)
	for _, a := range added {
		require.NoError(t, a.q.Close())
	}
	s.close(t)
	require.Equal(t, boardUnits{}, c.units)
	require.NoError(t, c.Close())
	s.cq.pollMany(&soft.Sink{CQ: &s.cq.CQ, WCs: make([]verbs.WC, 1)})
}

// Peers set bits while a CQ is closed and its board goes to another CQ: that one receives
// everything.
func TestCQClosedWhilePeersNote(t *testing.T) {
	onlyNoted(t)
	as, bs := many(t, 1)
	x := as[0].c
	var wg sync.WaitGroup
	var late []*side // that go on sending to QPs of the CQ before
	for range rounds(20) {
		cq, err := x.CreateCQ(256, nil)
		require.NoError(t, err)
		var here, there []*side
		for range fewQPs + 1 {
			a, b := as[0].another(t, cq.(*CQ), cq.(*CQ)), bs[0].another(t, bs[0].cq, bs[0].cq)
			a.cq = cq.(*CQ)
			join(t, a, b)
			here, there = append(here, a), append(there, b)
		}
		require.Same(t, &x.ctrl.boards[0], &here[0].cq.board[0], "the board is used again")
		for i := range here {
			here[i].receive(t, 1)
			there[i].send(t, 2)
			require.EqualValues(t, 1, here[i].take(t).WRID)
		}
		wg.Wait()
		for _, b := range late {
			require.NoError(t, b.q.Close())
		}
		late = there
		wg.Go(func() {
			for range 10 {
				for _, b := range there { // what becomes of it is not asked
					b.q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, SGList: []verbs.SGE{{Addr: b.mr.Addr(), Length: 8, LKey: b.mr.Key}}}})
				}
				runtime.Gosched()
			}
		})
		for _, a := range here {
			require.NoError(t, a.q.Close())
		}
		require.NoError(t, cq.Close())
	}
	wg.Wait()
}
