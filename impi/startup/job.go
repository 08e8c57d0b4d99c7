package startup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Progress of a client beyond the labels, which are Int4.
const (
	noLabel   = math.MinInt64 // it has submitted none
	allLabels = math.MaxInt64 // it submits no more: it has sent DONE, or is refused
)

// maxWarnings bounds the warnings about connections that are refused.
const maxWarnings = 64

// job is what one call of Serve holds. One goroutine owns it and does no I/O; each
// connection has one that reads, and each client one that writes:
//
//	accept ──▶ accepted ─┐
//	converse ─▶ events ──┴▶ run ──▶ outbox ──▶ deliver
type job struct {
	Server
	listener net.Listener
	accepted chan net.Conn
	events   chan event
	quit     chan struct{} // closed when nobody takes events any more
	group    sync.WaitGroup

	phase   Phase
	timer   *time.Timer
	pending []*client // oldest first
	members []*client // by rank; nil until it has joined
	here    int       // members that have joined
	open    int       // clients, to come or here, that have not ended
	closing bool      // the first has ended since all have sent DONE
	result  Result
	err     error // the first that was found
	over    bool  // nothing is left to wait for
}

func newJob(s Server, l net.Listener) *job {
	return &job{
		Server:   s,
		listener: l,
		accepted: make(chan net.Conn),
		events:   make(chan event),
		quit:     make(chan struct{}),
		phase:    PhaseJoin,
		timer:    time.NewTimer(math.MaxInt64),
		members:  make([]*client, s.Clients),
		open:     s.Clients,
		result:   Result{Clients: make([]ClientResult, s.Clients)},
	}
}

func (j *job) run(ctx context.Context) (*Result, error) {
	j.Log.Info("startup: waiting for clients", "clients", j.Clients, "addr", j.listener.Addr(), "auth", j.Auth)
	failed := make(chan error, 1)
	j.group.Go(func() { failed <- j.accept() })
	j.within(j.Join)
	for j.open > 0 && !j.over {
		select {
		case <-ctx.Done():
			j.fail(&Error{Phase: j.phase, Rank: -1, Err: context.Cause(ctx)})
			j.over = true
		case err := <-failed:
			if j.phase == PhaseJoin {
				j.fail(&Error{Phase: j.phase, Rank: -1, Err: err})
			}
		case <-j.timer.C:
			j.overdue()
		case conn := <-j.accepted:
			j.admit(conn)
		case e := <-j.events:
			j.handle(e)
		}
	}
	j.end()
	return &j.result, j.err
}

// fail ends the job, unless all have sent DONE: then they can do without each other,
// as far as the server is concerned.
func (j *job) fail(err error) {
	j.record(err)
	j.over = j.over || j.phase < PhaseRun
}

// record keeps the first error.
func (j *job) record(err error) {
	if j.err == nil {
		j.err = err
	}
}

// within sets the time that the phase may take, 0 and less being for ever.
func (j *job) within(d time.Duration) {
	if d <= 0 {
		j.timer.Stop()
		return
	}
	j.timer.Reset(d)
}

// accept takes connections until the listener is closed. What fails for want of
// something, like descriptors, is tried again a few times.
func (j *job) accept() error {
	const first, attempts = 5 * time.Millisecond, 10
	pause, left := first, attempts
	for {
		conn, err := j.listener.Accept()
		switch {
		case err == nil:
			pause, left = first, attempts
			select {
			case j.accepted <- conn:
			case <-j.quit:
				conn.Close()
				return nil
			}
		case errors.Is(err, net.ErrClosed):
			return err
		case left == 0:
			return fmt.Errorf("cannot accept connections: %w", err)
		default:
			j.Log.Warn("startup: cannot accept", "error", err)
			left--
			select {
			case <-time.After(pause):
				pause *= 2
			case <-j.quit:
				return nil
			}
		}
	}
}

// admit begins to listen to a connection.
func (j *job) admit(conn net.Conn) {
	if j.phase > PhaseJoin {
		j.refused(conn.RemoteAddr(), ErrLate)
		conn.Close()
		return
	}
	if len(j.pending) >= j.MaxPending {
		j.drop(j.pending[0], fmt.Errorf("%w: %d", ErrCrowded, len(j.pending)))
	}
	c := &client{conn: conn, r: bufio.NewReader(conn), rank: -1, out: newOutbox(), progress: noLabel}
	j.pending = append(j.pending, c)
	j.group.Go(func() {
		err := j.converse(c)
		j.tell(event{from: c, kind: ended, err: err})
	})
}

// tell hands an event to the job; false if the job has ended.
func (j *job) tell(e event) bool {
	select {
	case j.events <- e:
		return true
	case <-j.quit:
		return false
	}
}

func (j *job) handle(e event) {
	c := e.from
	if e.kind == ended {
		j.gone(c, e.err)
		return
	}
	if c.reason != nil {
		return // it has been dropped, and was still saying something
	}
	switch e.kind {
	case joined:
		j.join(c)
		return
	case submitted:
		c.queue = append(c.queue, e.coll)
		c.progress = int64(e.coll.label)
		j.Log.Debug("startup: label", "client", c.rank, "label", e.coll.label, "bytes", len(e.coll.data))
	case done:
		c.progress = allLabels
	}
	j.answer()
}

// join makes a connection a client, unless its rank is taken.
func (j *job) join(c *client) {
	if j.members[c.rank] != nil {
		j.drop(c, &Error{Phase: PhaseJoin, Rank: c.rank, Err: fmt.Errorf("%w: taken by %v", ErrRank, j.members[c.rank].conn.RemoteAddr())})
		return
	}
	j.forget(c)
	c.member, c.phase = true, PhaseJoin
	j.members[c.rank] = c
	j.here++
	j.result.Clients[c.rank].Addr = c.conn.RemoteAddr()
	j.group.Go(func() { c.out.deliver(c.conn) })
	j.Log.Info("startup: client joined", "client", c.rank, "addr", c.conn.RemoteAddr(), "missing", j.Clients-j.here)
	if j.here < j.Clients {
		return
	}
	j.listener.Close()
	for _, p := range slices.Clone(j.pending) {
		j.drop(p, ErrLate)
	}
	j.enter(PhaseCollect, j.Collect)
	j.broadcast(appendImpi(nil, j.Clients))
	j.answer()
}

func (j *job) enter(p Phase, within time.Duration) {
	j.phase = p
	for _, m := range j.members {
		if !m.ended {
			m.phase = p
		}
	}
	j.within(within)
	j.Log.Info("startup: phase", "phase", p)
}

func (j *job) broadcast(b []byte) {
	for _, m := range j.members {
		m.out.put(b)
	}
}

// answer sends what has become complete: the labels up to the lowest that any client
// has come to, in their order; and at last DONE.
func (j *job) answer() {
	if j.phase != PhaseCollect {
		return
	}
	low := int64(allLabels)
	for _, m := range j.members {
		low = min(low, m.progress)
	}
	for {
		next := int64(allLabels)
		for _, m := range j.members {
			if len(m.queue) > 0 {
				next = min(next, int64(m.queue[0].label))
			}
		}
		if next > low || next == allLabels {
			break
		}
		j.concatenate(Label(next))
	}
	if low == allLabels {
		j.broadcast(header{cmd: cmdDone}.append(nil))
		j.enter(PhaseRun, 0)
	}
}

// concatenate answers the label, which is at the head of the queues that have it. The
// answer goes to all clients but those that had said DONE before it, whose queues are
// empty: LAM/MPI takes nothing but DONE then.
func (j *job) concatenate(label Label) {
	var mask uint32
	var to []*client
	n := 0
	for rank, m := range j.members {
		if len(m.queue) == 0 {
			continue
		}
		to = append(to, m)
		if m.queue[0].label == label {
			mask |= 1 << rank
			n += len(m.queue[0].data)
		}
	}
	b := appendChdr(make([]byte, 0, headerLen+chdrLen+n), label, mask, n)
	for rank, m := range j.members {
		if mask&(1<<rank) != 0 {
			b = append(b, m.queue[0].data...)
			m.queue[0].data = nil
			m.queue = m.queue[1:]
		}
	}
	for _, m := range to {
		m.out.put(b)
	}
}

// gone is the end of a connection.
func (j *job) gone(c *client, err error) {
	c.conn.Close()
	c.out.close()
	if !c.member {
		if c.reason == nil {
			j.forget(c)
			j.refused(c.conn.RemoteAddr(), lost(err))
		}
		return
	}
	if err == nil && j.phase < PhaseRun {
		err = &Error{Rank: c.rank, Err: fmt.Errorf("%w: FINI before all have sent DONE", ErrProtocol)}
	}
	if err = lost(err); err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.Phase = c.phase
		}
	}
	if j.phase == PhaseJoin {
		j.leave(c, err)
		return
	}
	res := &j.result.Clients[c.rank]
	res.Phase, res.Err = c.phase, err
	c.ended = true
	j.open--
	if j.phase == PhaseRun && !j.closing {
		j.closing = true
		j.within(j.Finish)
	}
	log := j.Log.With("client", c.rank, "addr", c.conn.RemoteAddr())
	switch {
	case err == nil:
		res.Phase = PhaseEnd
		log.Info("startup: client finished")
	case j.phase == PhaseCollect && (errors.Is(err, ErrProtocol) || errors.Is(err, ErrLimit)):
		log.Error("startup: client refused", "error", err)
		j.record(err)
		c.progress, c.queue = allLabels, nil // or the others would start with it
		j.answer()
	default:
		log.Error("startup: client lost", "error", err)
		j.fail(err)
	}
}

// leave frees the place of a client that ends before all have joined.
func (j *job) leave(c *client, err error) {
	j.members[c.rank] = nil
	j.here--
	j.result.Clients[c.rank].Addr = nil
	j.result.Refused++
	j.Log.Warn("startup: client left before all have joined: its place is free", "client", c.rank,
		"addr", c.conn.RemoteAddr(), "missing", j.Clients-j.here, "error", err)
}

// drop closes a connection that is no client.
func (j *job) drop(c *client, reason error) {
	c.reason = reason
	j.forget(c)
	j.refused(c.conn.RemoteAddr(), reason)
	c.conn.Close()
}

func (j *job) forget(c *client) {
	if i := slices.Index(j.pending, c); i >= 0 {
		j.pending = slices.Delete(j.pending, i, i+1)
	}
}

func (j *job) refused(addr net.Addr, err error) {
	j.result.Refused++
	level := slog.LevelWarn
	if j.result.Refused > maxWarnings {
		level = slog.LevelDebug
	}
	j.Log.Log(context.Background(), level, "startup: connection refused", "addr", addr, "error", err)
	if j.result.Refused == maxWarnings {
		j.Log.Warn("startup: many connections have been refused; the log has further ones at level DEBUG", "refused", maxWarnings)
	}
}

// overdue fails the job because a phase took too long, naming who was waited for.
func (j *job) overdue() {
	var ranks []string
	first := -1
	for rank, m := range j.members {
		if m != nil && (j.phase == PhaseJoin || m.ended || j.phase == PhaseCollect && m.progress == allLabels) {
			continue
		}
		if first < 0 {
			first = rank
		}
		ranks = append(ranks, fmt.Sprint(rank))
	}
	what := map[Phase]string{PhaseJoin: "join", PhaseCollect: "send DONE", PhaseRun: "send FINI"}[j.phase]
	err := &Error{Phase: j.phase, Rank: first, Err: fmt.Errorf("%w: clients that did not %s: %s", ErrTimeout, what, strings.Join(ranks, ", "))}
	j.fail(err)
	j.over = true
}

// end closes everything, waits for all goroutines, and completes the result.
func (j *job) end() {
	j.timer.Stop()
	j.listener.Close()
	close(j.quit)
	for _, c := range j.pending {
		j.refused(c.conn.RemoteAddr(), ErrLate)
		c.conn.Close()
	}
	for rank, c := range j.members {
		res := &j.result.Clients[rank]
		if c == nil {
			res.Phase, res.Err = PhaseAuth, &Error{Phase: PhaseAuth, Rank: rank, Err: fmt.Errorf("%w: it never joined", ErrLost)}
			continue
		}
		c.conn.Close()
		c.out.close()
		if !c.ended {
			res.Phase, res.Err = c.phase, &Error{Phase: c.phase, Rank: rank, Err: fmt.Errorf("%w: cut off when the job failed", ErrLost)}
		}
	}
	j.group.Wait()
	if j.err == nil {
		j.Log.Info("startup: job finished", slog.Int("refused", j.result.Refused))
	}
}
