package verbstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// testConcurrency is about many goroutines that use one object at a time.
func testConcurrency(t *testing.T, s *suite) {
	s.in(t, everywhere, func(w *world) {
		w.run("posters and pollers", postersAndPollers)
		if w.place != processes { // one goroutine drives both ends
			w.run("senders and receivers", sendersAndReceivers)
		}
		w.run("waiters of one CQ", waitersOfOneCQ)
		w.run("close under use", closeUnderUse)
		w.run("context close under use", contextCloseUnderUse)
	})
}

// crew runs goroutines that stop at the first error.
type crew struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error // the first that is not a consequence of another
}

func newCrew(ctx context.Context) *crew {
	c := &crew{}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

func (c *crew) run(f func() error) {
	c.wg.Go(func() {
		if err := f(); err != nil {
			c.mu.Lock()
			if c.err == nil || consequence(c.err) && !consequence(err) {
				c.err = err
			}
			c.mu.Unlock()
			c.cancel()
		}
	})
}

func consequence(err error) bool {
	return errors.Is(err, verbs.WCWRFlushErr) || errors.Is(err, context.Canceled)
}

// wait waits for all, and returns what went wrong.
func (c *crew) wait() error {
	c.wg.Wait()
	c.cancel()
	return c.err
}

const (
	posters = 4
	pollers = 3
)

// tally counts completions by work request; each must come exactly once.
type tally struct {
	mu   sync.Mutex
	seen map[uint64]int
	left int
}

func newTally(n int) *tally { return &tally{seen: map[uint64]int{}, left: n} }

// missing is how many have not come yet.
func (y *tally) missing() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.left
}

// add counts completions and says whether all have come.
func (y *tally) add(wcs []verbs.WC) (done bool, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for i := range wcs {
		if e := wcs[i].Err(); e != nil {
			return false, e
		}
		if y.seen[wcs[i].WRID]++; y.seen[wcs[i].WRID] > 1 {
			return false, fmt.Errorf("completion of work request %#x came twice", wcs[i].WRID)
		}
		y.left--
	}
	return y.left <= 0, nil
}

// poll takes completions of cq into the tally until all have come.
func (y *tally) poll(ctx context.Context, cq *verbs.CQ) error {
	wcs := make([]verbs.WC, 5)
	for {
		n, err := cq.Poll(wcs)
		if err != nil {
			return err
		}
		if done, err := y.add(wcs[:n]); done || err != nil {
			return err
		}
		if n == 0 {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("%d completions are missing: %w", y.missing(), err)
			}
			runtime.Gosched()
		}
	}
}

// postOne and recvOne post a work request as soon as there is room.
func postOne(ctx context.Context, qp *verbs.QP, wr verbs.SendWR) error {
	return untilTaken(ctx, func() (int, error) { return qp.PostSend([]verbs.SendWR{wr}) })
}

func recvOne(ctx context.Context, qp *verbs.QP, wr verbs.RecvWR) error {
	return untilTaken(ctx, func() (int, error) { return qp.PostRecv([]verbs.RecvWR{wr}) })
}

func untilTaken(ctx context.Context, post func() (int, error)) error {
	for {
		n, err := post()
		if n == 1 || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the queue stays full: %w", err)
		}
		runtime.Gosched()
	}
}

// postersAndPollers: one-sided operations of one queue pair; the peer is passive.
func postersAndPollers(w *world) {
	each := 25 * w.suite.Rounds
	near, _ := w.pair(qpSpec{}, usual)
	src, dst := w.alloc(w.near, posters*64, 0, own).fill(1), w.alloc(w.far, posters*64, verbs.AccessAll, own)
	back := w.alloc(w.near, posters*64, verbs.AccessLocalWrite, own)
	y := newTally(posters * each)
	c := newCrew(w.ctx)
	for k := range posters {
		c.run(func() error {
			for i := range each {
				wr := onto(signalled(uint64(k*each+i), verbs.OpRDMAWrite, src.sge(64*k, 64)), dst, 64*k)
				if i%3 == 2 {
					wr = onto(signalled(wr.WRID, verbs.OpRDMARead, back.sge(64*k, 64)), dst, 64*k)
				}
				if err := postOne(c.ctx, near.qp(), wr); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range pollers {
		c.run(func() error { return y.poll(c.ctx, near.cq(sends)) })
	}
	require.NoError(w.t, c.wait())
	near.quiet(sends)
	dst.expect(0, src.image)
	back.expect(0, src.image)
	w.verify("written and read back")
}

// sendersAndReceivers: messages in both directions between two queue pairs of this process, each
// with the number of the goroutine that sent it. Messages of one goroutine stay in order.
func sendersAndReceivers(w *world) {
	each := 20 * w.suite.Rounds
	near, far := w.pair(qpSpec{RecvWR: 64, CQE: posters * each}, usual)
	c := newCrew(w.ctx)
	for _, dir := range [][2]*end{{near, far}, {far, near}} {
		from, to := dir[0], dir[1]
		sent := newTally(posters * each)
		for k := range posters {
			c.run(func() error {
				for i := range each {
					wr := verbs.SendWR{WRID: uint64(k*each + i), Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(k*each + i)}
					if err := postOne(c.ctx, from.qp(), wr); err != nil {
						return err
					}
					// Any goroutine may post the receives; there is one for each message.
					if err := recvOne(c.ctx, to.qp(), receive(wr.WRID)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for range pollers {
			c.run(func() error { return sent.poll(c.ctx, from.cq(sends)) })
		}
		c.run(func() error { return inOrder(c.ctx, to.cq(recvs), posters, each) })
	}
	require.NoError(w.t, c.wait())
}

// inOrder takes the messages of n senders.
func inOrder(ctx context.Context, cq *verbs.CQ, n, each int) error {
	next := make([]int, n)
	for range n * each {
		wcs, err := awaitSuccess(ctx, cq, 1)
		if err != nil {
			return err
		}
		k, i := int(wcs[0].Imm)/each, int(wcs[0].Imm)%each
		if next[k] != i {
			return fmt.Errorf("message %d of sender %d came, want %d", i, k, next[k])
		}
		next[k]++
	}
	return nil
}

// waitersOfOneCQ: several goroutines block in CQ.Wait; every completion wakes
// one, and none stays behind.
func waitersOfOneCQ(w *world) {
	count := 20 * w.suite.Rounds
	near, _ := w.pair(qpSpec{SendWR: 4}, usual)
	y := newTally(count)
	c := newCrew(w.ctx)
	waiting, stop := context.WithCancel(c.ctx)
	for range pollers {
		c.run(func() error {
			wcs := make([]verbs.WC, 2)
			for {
				n, err := near.cq(sends).Wait(waiting, wcs)
				if errors.Is(err, context.Canceled) {
					return c.ctx.Err()
				}
				if err != nil {
					return err
				}
				done, err := y.add(wcs[:n])
				if done {
					stop()
				}
				if err != nil {
					return err
				}
			}
		})
	}
	c.run(func() error {
		rng := seeded(w.suite.Seed, w.t.Name())
		for i := range count {
			if err := postOne(c.ctx, near.qp(), signalled(uint64(i), verbs.OpRDMAWrite)); err != nil {
				return err
			}
			dither(rng)
		}
		return nil
	})
	require.NoError(w.t, c.wait())
	stop()
}

// gone says whether err is one of the acceptable results of an object that is being closed.
func gone(err error) bool {
	return errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrState) || errors.Is(err, context.Canceled)
}

// hammer uses a queue pair in all ways until it is closed or ctx ends.
func hammer(ctx context.Context, c *crew, near *end, remote *mem) {
	qp, sq, rq, ch := near.qp(), near.cq(sends), near.cq(recvs), near.channel()
	loop := func(f func(*rand.Rand, []verbs.WC) error) {
		c.run(func() error {
			rng, wcs := rand.New(rand.NewPCG(1, 2)), make([]verbs.WC, 4)
			for ctx.Err() == nil {
				if err := f(rng, wcs); gone(err) {
					return nil
				} else if err != nil {
					return err
				}
			}
			return nil
		})
	}
	loop(func(*rand.Rand, []verbs.WC) error {
		_, err := qp.PostSend([]verbs.SendWR{onto(signalled(1, verbs.OpRDMAWrite), remote, 0), signalled(2, verbs.OpSend)})
		runtime.Gosched()
		return err
	})
	loop(func(*rand.Rand, []verbs.WC) error {
		_, err := qp.PostRecv([]verbs.RecvWR{receive(1)})
		runtime.Gosched()
		return err
	})
	loop(func(_ *rand.Rand, wcs []verbs.WC) error { _, err := sq.Poll(wcs); return err })
	loop(func(_ *rand.Rand, wcs []verbs.WC) error {
		if _, err := rq.Poll(wcs); err != nil {
			return err
		}
		return rq.ReqNotify(false)
	})
	loop(func(*rand.Rand, []verbs.WC) error { _, err := ch.Get(ctx); return err })
	loop(func(*rand.Rand, []verbs.WC) error { _, err := qp.Query(); qp.State(); return err })
}

// closeUnderUse closes the queue pair, its CQs and the channel while goroutines
// post, poll and wait.
func closeUnderUse(w *world) {
	for range w.suite.Rounds {
		near, far := w.open(w.near, qpSpec{Events: true}), w.open(w.far, qpSpec{})
		near.connect(far, usual)
		far.connect(near, usual)
		remote := w.alloc(w.far, 8, verbs.AccessAll, own)
		far.recv(receive(1), receive(2), receive(3))
		o := w.near.node.objs[near.ID]
		c := newCrew(w.ctx)
		ctx, stop := context.WithCancel(c.ctx)
		hammer(ctx, c, near, remote)
		dither(seeded(w.suite.Seed, w.t.Name()))
		for _, err := range []error{o.qp.Close(), o.send.Close(), o.recv.Close(), o.ch.Close()} {
			require.NoError(w.t, err)
		}
		stop()
		require.NoError(w.t, c.wait())
	}
}

// contextCloseUnderUse does the same to a whole context.
func contextCloseUnderUse(w *world) {
	for range w.suite.Rounds {
		n, err := openNode(w.suite.Device, w.suite.Config, w.suite.Near)
		require.NoError(w.t, err)
		p := &peer{name: "closing", node: n}
		near, far := w.open(p, qpSpec{Events: true}), w.open(w.far, qpSpec{})
		near.connect(far, usual)
		far.connect(near, usual)
		remote := w.alloc(w.far, 8, verbs.AccessAll, own)
		c := newCrew(w.ctx)
		ctx, stop := context.WithCancel(c.ctx)
		hammer(ctx, c, near, remote)
		c.run(func() error {
			if _, err := n.ctx.AsyncEvent(ctx); !gone(err) {
				return err
			}
			return nil
		})
		dither(seeded(w.suite.Seed, w.t.Name()))
		require.NoError(w.t, n.ctx.Close())
		stop()
		require.NoError(w.t, c.wait())
	}
}
