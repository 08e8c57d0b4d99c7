package channel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Randomised schedules against a model. The model of a stream is two plain queues,
// the lengths that are sent and the lengths that are wanted: the k-th of one meets
// the k-th of the other, and if they differ both ends learn it, once, and no byte
// is moved.

// envSeed repeats a schedule: the ranks make the same calls again, though not at
// the same moments.
const envSeed = "SLUICE_CHANNEL_TEST_SEED"

// seed returns the seed of a random test, which a failure prints.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := rand.Uint64()
	if v := os.Getenv(envSeed); v != "" {
		var err error
		s, err = strconv.ParseUint(v, 0, 64)
		require.NoError(t, err, envSeed)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat: %s=%#x", envSeed, s)
		}
	})
	return s
}

// TestSchedules: whatever the order of calls, every handle returns what the model
// says and every byte is where it belongs.
func TestSchedules(t *testing.T) {
	rounds := 2
	if need.WantLong() && !need.Race {
		rounds = 24
	}
	for _, p := range slices.Concat(places, []setting{{"shm", 4}, {"tcp", 3}}) {
		rounds := rounds
		if _, ok := nettest.Wire(p.name); ok || p.name == "roce" {
			rounds = min(rounds, 8)
		}
		t.Run(fmt.Sprintf("%s/%d", p.name, p.size), func(t *testing.T) {
			p.needs(t)
			if p.size > 2 {
				need.Full(t)
			}
			r := rand.New(rand.NewPCG(seed(t), uint64(p.size)))
			m := model{nodes: join(t, p.size, WithProviders(p.name)), starts: map[route]int{}}
			for range max(1, rounds/p.size) {
				m.round(t, r)
			}
		})
	}
}

// model is a job and what has been started in it.
type model struct {
	nodes  []*Node
	starts map[route]int // on each stream so far
}

// route names a stream.
type route struct{ from, to, number int }

// traffic is what one round does on a stream.
type traffic struct {
	route
	base         int // starts before
	seed         uint64
	sent, wanted []int        // lengths
	reported     map[int]bool // starts whose wrong length the sender has been told
}

// message is what start k carries, from 0.
func (tr *traffic) message(k int) []byte {
	b := make([]byte, tr.sent[k])
	noise(rand.New(rand.NewPCG(tr.seed, uint64(k))), b)
	return b
}

// noise fills b.
func noise(r *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
	random(r, b)
}

// round lets every rank make its calls, in a goroutine of its own.
func (m *model) round(t *testing.T, r *rand.Rand) {
	lengths := []int{0, 1, 8, 56, 57, 1000, 4096, 4097, 65536, 300_000}
	var all []*traffic
	for from := range m.nodes {
		for to := range m.nodes {
			for number := range 3 {
				if r.IntN(3) == 0 {
					continue
				}
				key := route{from, to, number}
				tr := &traffic{route: key, base: m.starts[key], seed: r.Uint64(), reported: map[int]bool{}}
				few := make([]int, 1+r.IntN(3))
				for i := range few {
					few[i] = lengths[r.IntN(len(lengths))]
				}
				for range r.IntN(40) {
					n := few[r.IntN(len(few))]
					tr.sent = append(tr.sent, n)
					if r.IntN(20) == 0 {
						n = lengths[r.IntN(len(lengths))]
					}
					tr.wanted = append(tr.wanted, n)
				}
				m.starts[key] += len(tr.sent)
				all = append(all, tr)
			}
		}
	}
	players := make([]*player, len(m.nodes))
	for i, n := range m.nodes {
		p := &player{node: n, rand: rand.New(rand.NewPCG(r.Uint64(), uint64(i)))}
		for _, tr := range all {
			if tr.from == i {
				p.ends = append(p.ends, &end{traffic: tr, sending: true, lengths: tr.sent})
			}
			if tr.to == i {
				p.ends = append(p.ends, &end{traffic: tr, lengths: tr.wanted})
			}
		}
		players[i] = p
	}
	bounded, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	ctx, fail := context.WithCancelCause(bounded) // the first error ends it for all
	defer fail(nil)
	var starting atomic.Int32
	starting.Store(int32(len(players)))
	var over sync.WaitGroup
	for i, p := range players {
		over.Go(func() {
			err := p.startAll(ctx)
			starting.Add(-1)
			// The others may need a receiver that tests before they can go on.
			for err == nil && starting.Load() > 0 {
				err = p.waitBriefly(ctx)
			}
			if err == nil {
				err = p.waitForAll(ctx)
			}
			if err != nil {
				fail(fmt.Errorf("rank %d: %w", i, err))
			}
		})
	}
	over.Wait()
	if err := context.Cause(ctx); err != nil {
		var report strings.Builder
		for _, n := range m.nodes {
			require.NoError(t, n.Report(&report))
		}
		require.NoError(t, err, report.String())
	}
	for _, tr := range all {
		m.collect(t, tr)
	}
	for _, p := range players {
		require.NoError(t, p.close())
	}
}

// collect has the sender told, by later starts, of wrong lengths that it does not
// know yet.
func (m *model) collect(t *testing.T, tr *traffic) {
	missing := func() bool {
		for k := range tr.sent {
			if tr.sent[k] != tr.wanted[k] && !tr.reported[k] {
				return true
			}
		}
		return false
	}
	if !missing() {
		return
	}
	s, _ := send(t, m.nodes[tr.from], tr.to, 8, OnStream(tr.number))
	r, _ := receive(t, m.nodes[tr.to], tr.from, 8, OnStream(tr.number))
	for ctx := within(t); missing(); {
		require.NoError(t, ctx.Err(), "the sender is not told of a wrong length")
		if err := s.Start(); err != nil {
			require.NoError(t, tr.late(err))
			continue
		}
		m.starts[tr.route]++
		require.NoError(t, r.Start())
		require.NoError(t, r.WaitContext(ctx))
		require.NoError(t, s.WaitContext(ctx))
	}
	require.NoError(t, s.Close())
	require.NoError(t, r.Close())
}

// late takes the error of a send that was complete.
func (tr *traffic) late(err error) error {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrLength) || e.Op != "send" || e.Rank != tr.to || e.Stream != tr.number {
		return fmt.Errorf("start on %v: %w", tr.route, err)
	}
	k := int(e.Start) - 1 - tr.base
	switch {
	case k < 0 || k >= len(tr.sent) || tr.sent[k] == tr.wanted[k]:
		return fmt.Errorf("%v: no wrong length there: %w", tr.route, err)
	case tr.reported[k]:
		return fmt.Errorf("%v: said twice: %w", tr.route, err)
	}
	tr.reported[k] = true
	return nil
}

// end is a rank's side of a stream.
type end struct {
	*traffic
	sending bool
	lengths []int
	next    int // starts made
	posts   []*post
}

// post is a handle and what the model knows of it.
type post struct {
	*end
	handle *Handle
	drawn  drawn
	length int
	active bool
	once   bool     // the handle is lent
	k      int      // of the start
	want   [][]byte // a receive: what its slices hold in the end
	team   *team
}

// team is a multiple that has been started.
type team struct {
	handle *Handle
	posts  []*post
	said   []*Error // by Start
	tested bool     // members may be over, and their errors the multiple's
}

// player is a rank that makes random calls.
type player struct {
	node     *Node
	rand     *rand.Rand
	ends     []*end
	active   []*post
	teams    []*team
	memories []*Memory
}

// startAll makes calls until everything has been started. None of them waits for
// long, so that no rank holds up another for ever.
func (p *player) startAll(ctx context.Context) error {
	for {
		open := slices.DeleteFunc(slices.Clone(p.ends), func(e *end) bool { return e.next == len(e.lengths) })
		if len(open) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d streams are not through: %w", len(open), err)
		}
		var err error
		switch c := p.rand.IntN(20); {
		case c < 10:
			err = p.start(open[p.rand.IntN(len(open))])
		case c < 12 && len(p.teams) < 3:
			err = p.startMultiple(open)
		case c < 16:
			err = p.test()
		case c < 18:
			err = p.testMultiples(ctx)
		case c < 19:
			err = p.waitBriefly(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// waitForAll waits for what is active, when all ranks have started everything.
func (p *player) waitForAll(ctx context.Context) error {
	for len(p.teams) > 0 {
		if err := p.multipleOver(p.teams[0], p.teams[0].handle.WaitContext(ctx)); err != nil {
			return err
		}
	}
	if p.rand.IntN(2) == 0 {
		posts := p.own()
		return p.waited(posts, WaitAllContext(ctx, handlesOf(posts)...))
	}
	for len(p.active) > 0 {
		q := p.active[p.rand.IntN(len(p.active))]
		if err := p.over(q, q.handle.WaitContext(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) close() error {
	var errs []error
	for _, e := range p.ends {
		for _, q := range e.posts {
			errs = append(errs, q.handle.Close())
		}
	}
	for _, m := range p.memories {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// alloc returns memory of the node, or of the heap.
func (p *player) alloc(n int) []byte {
	if p.rand.IntN(2) == 0 {
		return make([]byte, n)
	}
	m, err := p.node.Alloc(n)
	if err != nil {
		panic(err)
	}
	p.memories = append(p.memories, m)
	return m.Bytes()
}

// prepare returns a handle for the next start of a stream, with its slices filled;
// nil if all that there are, a few, are active. Those of multiples do not count: one
// may be waiting for what is started here.
func (p *player) prepare(e *end) (*post, error) {
	n := e.lengths[e.next]
	var fit []*post
	for _, q := range e.posts {
		if q.length == n && q.team == nil {
			fit = append(fit, q)
		}
	}
	i := slices.IndexFunc(fit, func(q *post) bool { return !q.active })
	var q *post
	switch {
	case i >= 0:
		q = fit[i]
		if p.rand.IntN(4) == 0 {
			bases := make([][]byte, len(q.drawn.bases))
			for i, b := range q.drawn.bases {
				bases[i] = p.alloc(len(b) + p.rand.IntN(2))
			}
			if err := q.handle.Rebase(bases...); err != nil {
				return nil, err
			}
			q.drawn.bases = bases
		}
	case len(fit) == 4:
		return nil, nil
	default:
		q = &post{end: e, length: n, drawn: draw(p.rand, n, p.alloc)}
		declare, to := p.node.DeclareReceive, e.from
		if e.sending {
			declare, to = p.node.DeclareSend, e.to
		}
		var err error
		if q.handle, err = declare(q.drawn.layout, to, OnStream(e.number), WithPriority(p.rand.IntN(3))); err != nil {
			return nil, fmt.Errorf("%s: %w", q.drawn.name, err)
		}
		e.posts = append(e.posts, q)
	}
	p.fill(q)
	return q, nil
}

// fill fills the slices of the next start, and says what they hold in the end.
func (p *player) fill(q *post) {
	e := q.end
	q.k = e.next
	for _, b := range q.drawn.bases {
		noise(p.rand, b)
	}
	switch {
	case e.sending:
		for i, b := range q.drawn.images(e.message(q.k)) {
			copy(q.drawn.bases[i], b)
		}
	case e.sent[q.k] == e.wanted[q.k]:
		q.want = q.drawn.images(e.message(q.k))
	default:
		q.want = q.drawn.images(q.drawn.packed())
	}
}

// startOnce starts the next message of a stream on a handle that is lent for it.
func (p *player) startOnce(e *end) error {
	n := e.lengths[e.next]
	b := p.alloc(n + 1)[:n]
	q := &post{end: e, length: n, once: true, drawn: drawn{"once", [][]byte{b}, Contiguous(b), []block{{0, 0, n}}}}
	var l *Layout
	if p.rand.IntN(2) == 0 {
		q.drawn = draw(p.rand, n, p.alloc)
		b, l = nil, &q.drawn.layout
	}
	p.fill(q)
	kind, peer := kindReceive, e.from
	if e.sending {
		kind, peer = kindSend, e.to
	}
	var err error
	q.handle, err = p.node.startOnce(kind, b, l, peer, []DeclareOption{OnStream(e.number), WithPriority(p.rand.IntN(3))})
	switch {
	case err == nil:
		p.started(q)
	case e.sending:
		err = e.late(err) // nothing was started
	}
	return err
}

func (p *player) start(e *end) error {
	if p.rand.IntN(3) == 0 && len(p.active) < 20 {
		return p.startOnce(e)
	}
	q, err := p.prepare(e)
	if err != nil || q == nil {
		return err
	}
	if err := q.handle.Start(); err != nil {
		if !e.sending {
			return err
		}
		return e.late(err) // nothing was started
	}
	p.started(q)
	return nil
}

func (p *player) started(q *post) {
	q.active = true
	q.next++
	p.active = append(p.active, q)
}

// startMultiple starts the next messages of several streams as one.
func (p *player) startMultiple(open []*end) error {
	p.rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	tm := &team{}
	var handles []*Handle
	for _, e := range open[:1+p.rand.IntN(len(open))] {
		q, err := p.prepare(e)
		if err != nil {
			return err
		}
		if q != nil {
			tm.posts, handles = append(tm.posts, q), append(handles, q.handle)
		}
	}
	if len(handles) == 0 {
		return nil
	}
	var err error
	if tm.handle, err = p.node.Multiple(handles...); err != nil {
		return err
	}
	if tm.said, err = causes(tm.handle.Start()); err != nil {
		return err
	}
	for _, q := range tm.posts {
		// A member that was to report an earlier error has not been started.
		i := slices.IndexFunc(tm.said, func(e *Error) bool { return q.sending && e.Rank == q.to && e.Stream == q.number })
		if i < 0 {
			p.started(q)
		} else if err := q.late(tm.said[i]); err != nil {
			return err
		}
		q.team = tm
	}
	p.teams = append(p.teams, tm)
	return nil
}

// own returns the active handles, shuffled, but those whose multiple has been
// tested.
func (p *player) own() []*post {
	list := slices.DeleteFunc(slices.Clone(p.active), func(q *post) bool { return q.team != nil && q.team.tested })
	p.rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func (p *player) test() error {
	posts := p.own()
	if len(posts) == 0 {
		return nil
	}
	q := posts[0]
	if p.rand.IntN(10) == 0 {
		if err := q.handle.Start(); !errors.Is(err, ErrActive) {
			return fmt.Errorf("start of an active handle: %w", cmp.Or(err, errNone))
		}
	}
	done, err := q.handle.Test()
	if !done {
		if err != nil {
			return fmt.Errorf("not over, but: %w", err)
		}
		return nil
	}
	return p.over(q, err)
}

// waitBriefly waits for one handle, or for several.
func (p *player) waitBriefly(ctx context.Context) error {
	posts := p.own()
	if len(posts) == 0 {
		runtime.Gosched()
		return p.testMultiples(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.rand.IntN(500))*time.Microsecond)
	defer cancel()
	if p.rand.IntN(2) == 0 {
		return p.waited(posts[:1], posts[0].handle.WaitContext(ctx))
	}
	posts = posts[:1+p.rand.IntN(len(posts))]
	return p.waited(posts, WaitAllContext(ctx, handlesOf(posts)...))
}

func handlesOf(posts []*post) []*Handle {
	list := make([]*Handle, len(posts))
	for i, q := range posts {
		list[i] = q.handle
	}
	return list
}

// waited takes the result of having waited for several handles.
func (p *player) waited(posts []*post, err error) error {
	said, err := causes(err)
	if err != nil {
		return err
	}
	for _, q := range posts {
		i := slices.IndexFunc(said, q.concerns)
		switch {
		case i < 0:
			err = p.over(q, nil)
		case errors.Is(said[i], ErrTimeout):
		default:
			err = p.over(q, said[i])
		}
		if i >= 0 {
			said = slices.Delete(said, i, i+1)
		}
		if err != nil {
			return err
		}
	}
	if len(said) > 0 {
		return fmt.Errorf("an error of another operation: %w", said[0])
	}
	return nil
}

// testMultiples tests one of the multiples.
func (p *player) testMultiples(ctx context.Context) error {
	if len(p.teams) == 0 {
		return nil
	}
	return p.testMultiple(ctx, p.teams[p.rand.IntN(len(p.teams))])
}

// testMultiple tests a multiple, or waits for it briefly.
func (p *player) testMultiple(ctx context.Context, tm *team) error {
	tm.tested = true
	if p.rand.IntN(2) == 0 {
		done, err := tm.handle.Test()
		if !done {
			return err
		}
		return p.multipleOver(tm, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.rand.IntN(500))*time.Microsecond)
	defer cancel()
	err := tm.handle.WaitContext(ctx)
	if errors.Is(err, ErrTimeout) {
		if e := (*Error)(nil); !errors.As(err, &e) || e.Rank != -1 || !errors.Is(tm.handle.Start(), ErrActive) {
			return fmt.Errorf("after the deadline of a multiple: %w", err)
		}
		return nil
	}
	return p.multipleOver(tm, err)
}

// multipleOver takes the result of a multiple, which has also moved its members on.
func (p *player) multipleOver(tm *team, err error) error {
	said, err := causes(err)
	if err != nil {
		return err
	}
	said = slices.DeleteFunc(said, func(e *Error) bool { return slices.Contains(tm.said, e) })
	var own []*post
	for _, q := range tm.posts {
		if q.active {
			own = append(own, q)
		}
		q.team = nil
	}
	p.teams = slices.DeleteFunc(p.teams, func(o *team) bool { return o == tm })
	if err := p.waited(own, errors.Join(asErrors(said)...)); err != nil {
		return err
	}
	return tm.handle.Close()
}

func asErrors(list []*Error) []error {
	var errs []error
	for _, e := range list {
		errs = append(errs, e)
	}
	return errs
}

var errNone = errors.New("no error")

// causes takes joined errors apart.
func causes(err error) ([]*Error, error) {
	switch e := err.(type) {
	case nil:
		return nil, nil
	case *Error:
		return []*Error{e}, nil
	case interface{ Unwrap() []error }:
		var list []*Error
		for _, err := range e.Unwrap() {
			l, err := causes(err)
			if err != nil {
				return nil, err
			}
			list = append(list, l...)
		}
		return list, nil
	}
	return nil, fmt.Errorf("not a channel.Error: %w", err)
}

// concerns says whether the error is of what the handle does now.
func (q *post) concerns(e *Error) bool {
	op, rank := "receive", q.from
	if q.sending {
		op, rank = "send", q.to
	}
	return strings.HasSuffix(e.Op, op) && e.Rank == rank && e.Stream == q.number && e.Start == uint64(q.base+q.k+1)
}

// copied is the length of the largest message that may be complete before its
// receiver has seen it, for what the handle has just sent.
func copied(h *Handle) int {
	switch {
	case h.out.q.Load() != nil:
		return eagerQueued
	case h.packed:
		return pipeMost
	}
	return eagerMax
}

// over checks the end of an operation.
func (p *player) over(q *post, err error) error {
	if q.once {
		defer func() {
			q.handle.enter()
			if err := q.handle.endOnce(nil); err != nil {
				panic(err)
			}
		}()
	}
	q.active = false
	p.active = slices.DeleteFunc(p.active, func(o *post) bool { return o == q })
	sent, wanted := q.sent[q.k], q.wanted[q.k]
	describe := func(what string) error {
		return fmt.Errorf("%v, start %d, %d bytes sent, %d wanted, sending %v, %s: %s: %w",
			q.route, q.base+q.k+1, sent, wanted, q.sending, q.drawn.name, what, cmp.Or(err, errNone))
	}
	if sent == wanted {
		if err != nil {
			return describe("failed")
		}
	} else if q.sending {
		if err == nil {
			if sent > copied(q.handle) {
				return describe("complete, though its length was wrong")
			}
			return nil // a later start says it
		}
		if err := q.late(err); err != nil {
			return err
		}
	} else {
		e, ok := err.(*Error)
		if !ok || *e != (Error{Op: "receive", Rank: q.from, Stream: q.number, Start: uint64(q.base + q.k + 1), Len: wanted, Other: sent, Err: ErrLength}) {
			return describe("the error is not what it should be")
		}
	}
	if q.sending {
		return nil
	}
	for i, want := range q.want {
		if !bytes.Equal(want, q.drawn.bases[i]) {
			return describe(fmt.Sprintf("slice %d does not hold what it should", i))
		}
	}
	return nil
}
