package boot

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// The times that are called patience count only while this process runs (wait.Patience): it may be stopped
// with its job. These are variables for tests alone.
var (
	// joinPatience bounds Join: if ranks are started by hand or by a batch system, the rendezvous
	// may come up later than they do.
	joinPatience = 30 * time.Second
	// hostedPatience bounds Join if rank 0 runs the rendezvous: its program has to come up first,
	// perhaps on another host.
	hostedPatience = 2 * time.Minute
	// hostSilence is how long the host at the other end may be silent before its connection ends.
	hostSilence = 150 * time.Second
)

const (
	// maxRefusals is how often a rank tries again that seems to have another secret than the rendezvous.
	maxRefusals = 5
	// verdictPatience is how long a rank that gives up waits for the reason of the failure.
	verdictPatience = time.Second
	// farewellPatience bounds Close and Abort.
	farewellPatience = 5 * time.Second
	// abortGrace is how long ranks may take to end themselves after an abort before rank 0 or a
	// launcher ends them.
	abortGrace = 2 * time.Second
)

var fromServer = setOf(kindPart, kindFail, kindAbort, kindLeave, kindWhere, kindReport)

// client is a rank's exchange through a rendezvous. One goroutine reads; it ends when the
// connection does.
type client struct {
	conn   net.Conn
	rank   int
	size   int
	hosted bool   // rank 0 runs the rendezvous
	minor  uint16 // protocol version of the rendezvous
	log    *slog.Logger

	turn  chan struct{} // held by the Exchange in progress
	round uint32        // held by turn: the number of the next round

	writing sync.Mutex // messages are written whole

	asking chan struct{} // capacity 1: held while a query about a rank is in progress
	late   bool          // an answer has not been waited for; guarded by asking
	told   chan where    // capacity 1: the answer

	mu      sync.Mutex
	pending *gathering  // the round in progress, or nil
	broken  error       // why no further round is possible, or nil
	silent  bool        // this rank has left: parts and failures no longer concern it
	verdict chan string // capacity 1: why a round has failed, according to the rendezvous
	closing bool        // we are closing the connection ourselves
	retired bool        // the rendezvous has said goodbye
	reason  error       // why ended is closed
	ended   chan struct{}

	closeOnce  sync.Once
	closeErr   error
	readerDone chan struct{}
}

// gathering is a round in progress.
type gathering struct {
	round uint32
	parts [][]byte
	done  chan error // receives one value
}

func rankID(rank int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(rank)) }

// patience is how long dial tries.
func (m *meeting) patience(ctx context.Context) time.Duration {
	switch t := timeoutOf(ctx); {
	case t.given:
		return t.most
	case m.hosted:
		return hostedPatience
	}
	return joinPatience
}

// nearby are the processes of this host that have accepted a connection and say nothing. They are waited
// for without a bound: if one ends, the kernel ends its connection.
type nearby struct {
	some    atomic.Bool
	meeting bool            // with one
	silent  map[string]bool // addresses where one did not answer in time
}

// meet notes that conn has been accepted.
func (n *nearby) meet(conn net.Conn) {
	n.meeting = keepalive.Local(conn)
	n.some.Store(n.meeting || len(n.silent) > 0)
}

// keep forgets addresses that are not tried any more.
func (n *nearby) keep(addresses []string) {
	maps.DeleteFunc(n.silent, func(address string, _ bool) bool { return !slices.Contains(addresses, address) })
	n.some.Store(len(n.silent) > 0)
}

// failed notes why the connection to an address has failed.
func (n *nearby) failed(address string, err error) {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		delete(n.silent, address)
	} else if n.meeting { // else its queue may be full
		n.silent[address] = true
	}
	n.meeting = false
	n.some.Store(len(n.silent) > 0)
}

// dial connects to the rendezvous and waits for admission. It returns what listen does as soon as that
// is a listener: what has been at the address, such as the rendezvous of an earlier program, is gone.
// Listen may be nil.
func (m *meeting) dial(ctx context.Context, near *nearby, listen func(context.Context) (net.Listener, error)) (*client, net.Listener, error) {
	ctx, cancel := wait.PatienceWhile(ctx, m.patience(ctx), func() bool { return !near.some.Load() })
	defer cancel()
	each := 2 * time.Second
	refusals := 0
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, again, err := m.tryAll(ctx, near, each)
		if err == nil {
			return c, nil, nil
		}
		each = min(2*each, 16*time.Second)
		// The rendezvous of an earlier program that is just ending looks like one with another
		// secret, but only once; and so does one that strangers flood, when it drops this connection.
		if !again && errors.Is(err, proof.ErrRefused) && refusals < maxRefusals {
			refusals++
			again = true
		}
		if again {
			waitsFor(ctx, err)
			retry := time.NewTimer(pause)
			select {
			case <-retry.C:
				if listen == nil {
					continue
				}
				var ln net.Listener
				if ln, err = listen(ctx); ln != nil {
					return nil, ln, nil
				} else if err == nil {
					continue
				}
			case <-ctx.Done():
				retry.Stop()
			}
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, nil, fmt.Errorf("boot: join: rank %d of %d: %w", m.Rank, m.Size, err)
	}
}

// tryAll tries the addresses of the rendezvous; again says that another attempt may succeed. Where
// there are several, something else may be listening at some, and the rendezvous come up at another
// meanwhile: they have a limited time each round until the rendezvous has proved itself, and only one
// that knows the secret can refuse this rank.
func (m *meeting) tryAll(ctx context.Context, near *nearby, each time.Duration) (c *client, again bool, err error) {
	addresses, err := m.find()
	if err != nil {
		return nil, true, err
	}
	near.keep(addresses)
	var (
		e       = &m.Environment
		r       *bufio.Reader
		minor   uint16
		refused int
		failed  = map[string]error{}
		lacking bool // descriptors
	)
	waits := func() { waitsFor(ctx, reach.Join(addresses, failed)) }
	waits()
	var known atomic.Bool
	attempt, cancel := wait.PatienceWhile(ctx, each, func() bool { return len(addresses) > 1 && !known.Load() })
	defer cancel()
	proved := func() error {
		known.Store(true)
		return attempt.Err()
	}
	conn, err := reach.Dial(attempt, addresses, reach.Options{
		Silence: hostSilence,
		Meet: func(conn net.Conn) (final bool, err error) {
			near.meet(conn)
			if len(addresses) == 1 {
				waitsFor(ctx, fmt.Errorf("at %s: the connection was accepted, and there is no answer yet: it is stopped, or no rendezvous", addresses[0]))
			}
			var retry bool
			r, minor, retry, err = introduce(conn, e, m.hosted, proved)
			again = again || retry
			return errors.As(err, new(*RefusedError)), err
		},
		Failed: func(address string, err error) {
			near.failed(address, err)
			if errors.Is(err, proof.ErrRefused) {
				refused++
			}
			var op *net.OpError
			var dns *net.DNSError
			if err = limits.Files(err); errors.Is(err, limits.ErrFiles) {
				lacking = true
			} else if errors.As(err, &op) && op.Op == "dial" { // a name may become resolvable only when its host comes up
				again = again || m.hosted || !errors.As(err, &dns) || !dns.IsNotFound
			}
			failed[address] = err
			waits()
		},
	})
	switch {
	case err == nil:
	case errors.As(err, new(*RefusedError)):
		return nil, false, err
	case lacking:
		return nil, false, limits.Files(err)
	default: // where all addresses refuse, another round would find the same
		return nil, (again || len(addresses) > 1) && refused < len(addresses), err
	}
	c = &client{
		conn:       conn,
		rank:       e.Rank,
		size:       e.Size,
		hosted:     m.hosted,
		turn:       make(chan struct{}, 1),
		verdict:    make(chan string, 1),
		minor:      minor,
		log:        loggerOf(ctx),
		asking:     make(chan struct{}, 1),
		told:       make(chan where, 1),
		ended:      make(chan struct{}),
		readerDone: make(chan struct{}),
	}
	go c.read(r)
	return c, false, nil
}

var errEnding = errors.New("it is the rendezvous of an earlier program, which this rank has already left")

// introduce proves that this rank belongs to the job and asks for admission. If rank 0 runs the
// rendezvous, it may be that of an earlier program with the same ranks, which is about to end. Once the
// rendezvous has proved itself, proved ends the time of the attempt, or says that it is over: a rank that
// asks and hangs up counts as dead.
func introduce(conn net.Conn, e *Environment, hosted bool, proved func() error) (r *bufio.Reader, minor uint16, again bool, err error) {
	server, err := proof.Dial(conn, e.proofParams(uint32(e.Rank)), []byte(serverName))
	if err != nil {
		// A rendezvous flooded by strangers drops connections, and one that is closing resets those
		// in its accept queue.
		var network *net.OpError
		lost := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
		return nil, 0, lost && !errors.Is(err, proof.ErrRefused), err
	}
	if err := proved(); err != nil {
		return nil, 0, true, err
	}
	m := join{rank: uint32(e.Rank), size: uint32(e.Size), name: processName()}
	if server.Minor >= reportMinor {
		m.program = ownProgram()
		m.program.same = e.Same
	}
	if _, err := conn.Write(m.Append(nil)); err != nil {
		return nil, 0, hosted, err
	}
	r = bufio.NewReader(conn)
	answer, err := readMessage(r, setOf(kindWelcome, kindRefuse, kindLeave))
	if err != nil {
		return nil, 0, hosted, err
	}
	switch m := answer.(type) {
	case refuse:
		return nil, 0, false, &RefusedError{Rank: e.Rank, Why: m.text}
	case leave:
		return nil, 0, true, errEnding
	}
	return r, server.Minor, false, nil
}

// processName identifies this process to people.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return shorten(strings.ReplaceAll(fmt.Sprintf("%s:%d", host, os.Getpid()), "\x00", ""), maxName)
}

// read is the reading goroutine.
func (c *client) read(r *bufio.Reader) {
	defer close(c.readerDone)
	for {
		m, err := readMessage(r, fromServer)
		if err == nil {
			err = c.dispatch(m)
		}
		if err != nil {
			c.lost(err)
			return
		}
	}
}

// dispatch handles a message of the rendezvous. After an error no more messages must be read.
func (c *client) dispatch(m message) error {
	switch m := m.(type) {
	case abort:
		c.end(&AbortError{Rank: int(m.rank), Code: int(m.code), Why: m.text})
	case fail:
		c.mu.Lock()
		defer c.mu.Unlock()
		why := &RankError{Rank: int(int32(m.rank)), Err: m.reason.err(), Text: m.text}
		c.breakWith(why)
		verdict := m.text
		if why.Rank != c.rank {
			verdict = why.Error()
		}
		select {
		case c.verdict <- verdict:
		default:
		}
	case report:
		c.log.Warn(plain(m.text), "rank", c.rank, "size", c.size)
	case leave:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.retired = true
		c.breakWith(&RankError{Rank: int(m.rank), Err: m.reason.err(), Text: m.text})
	case where:
		select {
		case c.told <- m:
		default:
			return fmt.Errorf("%w: %v of rank %d was not asked for", errProtocol, kindWhere, m.rank)
		}
	case part:
		c.mu.Lock()
		defer c.mu.Unlock()
		g := c.pending
		switch {
		case c.silent || c.broken != nil:
			return nil
		case g == nil || m.round != g.round || int(m.rank) != len(g.parts):
			return fmt.Errorf("%w: part of rank %d in round %d was not expected", errProtocol, m.rank, m.round)
		}
		g.parts = append(g.parts, m.data)
		if len(g.parts) == c.size {
			c.pending = nil
			g.done <- nil
		}
	}
	return nil
}

// breakWith fails the round in progress and all later ones. c.mu is held.
func (c *client) breakWith(err error) {
	if c.broken == nil {
		c.broken = err
	}
	if g := c.pending; g != nil {
		c.pending = nil
		g.done <- c.broken
	}
}

// end closes ended; the first reason counts.
func (c *client) end(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return
	}
	c.reason = reason
	close(c.ended)
	c.breakWith(reason)
}

// lost ends the job for this rank because its connection has ended, unless the rendezvous had said
// goodbye.
func (c *client) lost(err error) {
	c.conn.Close()
	c.mu.Lock()
	closing, retired := c.closing, c.retired
	c.mu.Unlock()
	switch {
	case closing:
		c.end(ErrClosed)
		return
	case retired:
		return
	case c.hosted:
		err = &RankError{Rank: 0, Err: ErrDied, Text: "it ran the rendezvous: " + err.Error()}
	}
	c.end(fmt.Errorf("%w: %w", ErrServerLost, err))
}

// exchangeError says which exchange has failed. The first is where the ranks join.
func exchangeError(round uint32, err error) error {
	switch e := (*RankError)(nil); {
	case round > 0:
		return fmt.Errorf("boot: exchange %d of the job: %w", round+1, err)
	case errors.As(err, &e) && errors.Is(err, ErrLeft):
		return fmt.Errorf("boot: exchange: before all ranks had joined, %w: look at the output of rank %d", err, e.Rank)
	case errors.As(err, &e) && !errors.Is(err, ErrServerLost):
		return fmt.Errorf("boot: exchange: before all ranks had joined, %w", err)
	}
	return fmt.Errorf("boot: exchange: %w", err)
}

// checkExchange returns the reason why a round cannot begin.
func checkExchange(ctx context.Context, data []byte, broken error) error {
	if broken != nil {
		return broken
	}
	if len(data) > MaxData {
		return fmt.Errorf("%w: %d bytes, the most is %d", ErrTooLarge, len(data), MaxData)
	}
	return endOf(ctx)
}

// endOf returns the error of a context that has ended, or nil. If its cause is ErrClosed, the rank
// is leaving.
func endOf(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return ctx.Err()
}

func (c *client) exchange(ctx context.Context, data []byte) ([][]byte, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("boot: exchange: %w", endOf(ctx))
	}
	g := &gathering{round: c.round, done: make(chan error, 1)}
	if err := c.begin(ctx, g, data); err != nil {
		return nil, exchangeError(g.round, err)
	}
	if err := c.give(ctx, part{round: g.round, rank: uint32(c.rank), data: data}); err != nil {
		c.lost(err)
	}
	select {
	case err := <-g.done:
		if err != nil {
			return nil, exchangeError(g.round, err)
		}
	case <-ctx.Done():
		err := endOf(ctx)
		if why := c.giveUp(ctx, err); why != "" {
			err = fmt.Errorf("%w: %s", err, why)
		}
		return nil, exchangeError(g.round, err)
	}
	c.round++
	return g.parts, nil
}

// begin makes g the round in progress, if possible.
func (c *client) begin(ctx context.Context, g *gathering, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := checkExchange(ctx, data, c.broken); err != nil {
		return err
	}
	c.pending = g
	return nil
}

// cutWith has writes fail when ctx ends, until stop is called.
func (c *client) cutWith(ctx context.Context) (stop func()) {
	cut := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(cut)
	})
	return func() {
		if !stopped() {
			<-cut // otherwise its deadline would hit the next message
		}
	}
}

// write writes a message, until ctx ends. The caller holds writing.
func (c *client) write(ctx context.Context, b net.Buffers) (n int64, err error) {
	if err := c.conn.SetWriteDeadline(time.Time{}); err != nil {
		return 0, err
	}
	defer c.cutWith(ctx)()
	return keepalive.WriteBuffers(c.conn, &b)
}

// give writes a part without copying its data, until ctx ends. An error leaves half a message
// written, so the connection is unusable. Without an error the part may still be unwritten if ctx
// has ended, which the caller checks.
func (c *client) give(ctx context.Context, m part) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.write(ctx, net.Buffers{m.header().Append(nil), m.data})
	switch end := endOf(ctx); {
	case err == nil || end == nil:
		return err
	case n == 0:
		return nil
	default:
		return fmt.Errorf("%w: %w", end, err)
	}
}

// giveUp tells the other ranks that this rank has withdrawn from the round to which it has
// contributed, and from all later ones, because ctx has ended with the error end. It returns what
// the rendezvous reports about the round: which ranks have not contributed. A rank that is leaving
// says so and does not wait for the report.
func (c *client) giveUp(ctx context.Context, end error) string {
	leaving := end == ErrClosed
	broken := end
	if !leaving {
		broken = &RankError{Rank: c.rank, Err: ErrGaveUp, Text: end.Error()}
	}
	c.mu.Lock()
	c.silent = true
	c.breakWith(broken)
	c.mu.Unlock()
	if leaving {
		if err := c.tell(leave{rank: uint32(c.rank), reason: reasonLeft}); err != nil {
			c.lost(err)
		}
		return ""
	}
	cause := shorten(context.Cause(ctx).Error(), maxText)
	if err := c.tell(leave{rank: uint32(c.rank), reason: reasonGaveUp, text: cause}); err != nil {
		c.lost(err)
		return ""
	}
	over, cancel := wait.Patience(context.Background(), verdictPatience)
	defer cancel()
	select {
	case why := <-c.verdict:
		why = strings.TrimPrefix(why, cause)
		return strings.TrimPrefix(why, ": ")
	case <-c.readerDone:
	case <-over.Done():
	}
	return ""
}

// withdraw tells the other ranks that this one takes part in no round, and why.
func (c *client) withdraw(why string) {
	why = shorten(why, maxText)
	c.mu.Lock()
	c.breakWith(&RankError{Rank: c.rank, Err: ErrGaveUp, Text: why})
	c.mu.Unlock()
	if err := c.tell(leave{rank: uint32(c.rank), reason: reasonGaveUp, text: why}); err != nil {
		c.lost(err)
	}
}

// tell writes a short message.
func (c *client) tell(m message) error {
	within, cancel := wait.Patience(context.Background(), farewellPatience)
	defer cancel()
	stop := c.cutWith(within) // a part that is being written
	c.writing.Lock()
	defer c.writing.Unlock()
	stop()
	_, err := c.write(within, net.Buffers{m.Append(nil)})
	return err
}

// whyGone asks the rendezvous why a rank is no longer there.
func (c *client) whyGone(ctx context.Context, rank int) error {
	select {
	case c.asking <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-c.asking }()
	c.mu.Lock()
	var known *RankError
	retired := c.retired
	errors.As(c.broken, &known)
	c.mu.Unlock()
	switch {
	case known != nil && known.Rank == rank && known.Err != ErrGaveUp:
		return known
	case retired && rank == 0:
		return &RankError{Rank: rank, Err: ErrLeft}
	case retired || c.minor < whereMinor:
		return ErrUnknown
	case c.late:
		if m, err := c.answer(ctx); m == nil {
			return err
		}
	}
	if !c.writing.TryLock() { // a part is being written: the rendezvous is slow, and is there
		return nil
	}
	within, cancel := wait.Patience(context.Background(), farewellPatience)
	n, err := c.write(within, net.Buffers{where{rank: uint32(rank)}.Append(nil)})
	cancel()
	c.writing.Unlock()
	switch {
	case n == 0 && errors.Is(err, os.ErrDeadlineExceeded): // it does not read, and is there
		return nil
	case err != nil:
		return ErrUnknown
	}
	m, err := c.answer(ctx)
	if m == nil || m.reason == 0 || int(m.rank) != rank {
		return err
	}
	return &RankError{Rank: rank, Err: m.reason.err(), Text: m.text}
}

// answer waits for the answer to the oldest query about a rank; nil without an error if it does not come
// before ctx ends. The caller holds asking.
func (c *client) answer(ctx context.Context) (*where, error) {
	select {
	case m := <-c.told:
		c.late = false
		return &m, nil
	case <-c.readerDone:
		return nil, ErrUnknown
	case <-ctx.Done():
		c.late = true
		return nil, nil
	}
}

func (c *client) abort(code int, why string) bool {
	why = shorten(why, maxText)
	c.end(&AbortError{Rank: c.rank, Code: code, Why: why})
	if err := c.tell(abort{rank: uint32(c.rank), code: int32(code), text: why}); err != nil {
		c.lost(err)
		return false
	}
	return true
}

func (c *client) done() <-chan struct{} { return c.ended }

func (c *client) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

func (c *client) close() error {
	c.closeOnce.Do(func() { c.closeErr = c.goodbye() })
	return c.closeErr
}

// goodbye tells the rendezvous that this rank leaves and waits until it has closed the connection.
// Closing at once could reset the connection if something is unread, and the goodbye might be lost.
func (c *client) goodbye() error {
	c.mu.Lock()
	c.closing = true
	c.silent = true
	over, retired := c.reason, c.retired
	c.mu.Unlock()
	c.end(ErrClosed)
	if retired || errors.Is(over, ErrServerLost) {
		c.conn.Close()
		<-c.readerDone
		return nil
	}
	err := c.tell(leave{rank: uint32(c.rank), reason: reasonLeft})
	within, cancel := wait.Patience(context.Background(), farewellPatience)
	defer cancel()
	defer context.AfterFunc(within, func() { c.conn.Close() })()
	hangUp := err
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && hangUp == nil {
		hangUp = half.CloseWrite()
	}
	if hangUp != nil {
		c.conn.Close() // after a goodbye that arrived, it has closed first
	}
	<-c.readerDone
	c.mu.Lock()
	retired = c.retired
	c.mu.Unlock()
	if errors.Is(err, net.ErrClosed) { // by the reader: the rendezvous was lost just before
		return nil
	}
	if err != nil && over == nil && !retired {
		return fmt.Errorf("boot: close: %w", err)
	}
	return nil
}
