package startup

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Server starts one job: it brings its clients together, hands around what they
// submit, and stays until they have finished. Its fields are not changed once Serve
// has been called; one Server may serve several jobs, on a listener each.
type Server struct {
	// Clients is how many clients the job has, 1 to [MaxClients].
	Clients int
	// Auth are the methods that clients may use; of several that a client has as well,
	// KEY is taken. 0: AuthKey. AuthNone is refused on a listener for all addresses.
	Auth Methods
	// Key is what clients must know if Auth has AuthKey; then it is not 0.
	Key uint64
	// NoAuth admits clients that begin with IMPI instead of AUTH, which the draft of
	// 1999 allows. Auth must have AuthNone.
	NoAuth bool

	// Handshake is how long a connection may take to send AUTH and IMPI. 0: 10 s.
	Handshake time.Duration
	// Join is how long Serve waits for all clients to be in the job. 0: 10 minutes;
	// negative: for ever.
	Join time.Duration
	// Collect is how long the clients, from then on, may take until all have sent
	// DONE. 0: 1 minute; negative: for ever.
	Collect time.Duration
	// Finish is how long after the first FINI the others may take to send theirs.
	// 0: for ever.
	Finish time.Duration

	// MaxPending is how many connections may be about to become clients; one more, and
	// the oldest of them is dropped, so that nobody is locked out by idle connections.
	// 0: 64.
	MaxPending int
	// MaxLabels is how many labels a client may submit. 0: 1024.
	MaxLabels int
	// MaxLabelBytes bounds the data under one label of one client. 0: 1 MiB. Times
	// Clients it must be below 2 GiB.
	MaxLabelBytes int
	// MaxClientBytes bounds the data under all labels of a client. 0: 4 MiB. Serve
	// holds about twice that for each client at most.
	MaxClientBytes int

	// Log is told of clients that come and go, connections that are refused and why,
	// and the phases of the job. nil: nobody is.
	Log *slog.Logger
}

// Result is how a job ended.
type Result struct {
	// Clients has one entry a rank.
	Clients []ClientResult
	// Refused counts connections that did not become clients, or ended before all
	// clients had joined.
	Refused int
}

// ClientResult is how a client ended.
type ClientResult struct {
	Addr  net.Addr // of its end of the connection; nil if it never joined
	Phase Phase    // that it was in; PhaseEnd if it finished
	// Err is why it did not finish: an [*Error] with its rank. A client that was cut
	// off because of another has ErrLost.
	Err error
}

// Serve serves one job to the clients that connect to l, which it closes once they
// have all joined, or when it returns. It returns when all clients have sent FINI or
// are gone, or the job has failed, or ctx is done; no connection and no goroutine is
// left then.
//
// The error is nil if every client finished, else an [*Error] that names the first
// client that did not, if it was one. What becomes of the others depends on when and
// how a connection ends:
//
//	before it has joined              it is refused
//	before all clients have joined    its place is free again for another client
//	before all have sent DONE         a client that broke a rule is refused, and counts
//	                                  as one that has sent DONE, without the labels that
//	                                  have not been answered yet; one that is lost fails
//	                                  the job: all others are cut off at once
//	later                             the others go on
//
// The result is there in any case, except with ErrInvalid.
//
// The protocol is not encrypted. Serve may be called from several goroutines.
func (s *Server) Serve(ctx context.Context, l net.Listener) (*Result, error) {
	cfg, err := s.check(l.Addr())
	if err != nil {
		l.Close()
		return nil, &Error{Phase: PhaseAuth, Rank: -1, Err: err}
	}
	j := newJob(cfg, l)
	return j.run(ctx)
}

// Check returns why Serve would refuse to serve on a listener with that address, an
// error that is ErrInvalid; nil if it would not.
func (s *Server) Check(addr net.Addr) error {
	_, err := s.check(addr)
	return err
}

// check returns s with its zero values filled in.
func (s *Server) check(addr net.Addr) (Server, error) {
	c := *s
	if c.Clients < 1 || c.Clients > MaxClients {
		return c, fmt.Errorf("%w: %d clients, not 1 to %d", ErrInvalid, c.Clients, MaxClients)
	}
	if c.Auth == 0 {
		c.Auth = AuthKey
	}
	if c.Auth&^(AuthNone|AuthKey) != 0 {
		return c, fmt.Errorf("%w: methods %#x", ErrInvalid, uint32(c.Auth))
	}
	if c.Auth&AuthKey != 0 && c.Key == 0 {
		return c, fmt.Errorf("%w: method KEY without a key", ErrInvalid)
	}
	if a, ok := addr.(*net.TCPAddr); ok && c.Auth&AuthNone != 0 && a.IP.IsUnspecified() {
		return c, fmt.Errorf("%w: method NONE on all addresses (%v): name one, or use a key", ErrInvalid, addr)
	}
	if c.NoAuth && c.Auth&AuthNone == 0 {
		return c, fmt.Errorf("%w: clients without AUTH where method NONE is not allowed", ErrInvalid)
	}
	for _, n := range []int{c.MaxPending, c.MaxLabels, c.MaxLabelBytes, c.MaxClientBytes} {
		if n < 0 {
			return c, fmt.Errorf("%w: limit of %d", ErrInvalid, n)
		}
	}
	if c.Handshake < 0 || c.Finish < 0 {
		return c, fmt.Errorf("%w: negative time", ErrInvalid)
	}
	setDefault(&c.Handshake, 10*time.Second)
	setDefault(&c.Join, 10*time.Minute)
	setDefault(&c.Collect, time.Minute)
	setDefault(&c.MaxPending, 64)
	setDefault(&c.MaxLabels, 1024)
	setDefault(&c.MaxLabelBytes, 1<<20)
	setDefault(&c.MaxClientBytes, 4<<20)
	if c.MaxLabelBytes > (maxPayload-chdrLen)/c.Clients {
		return c, fmt.Errorf("%w: %d bytes a label from %d clients do not fit one answer", ErrInvalid, c.MaxLabelBytes, c.Clients)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// event is what the goroutine of a connection has to tell the job.
type event struct {
	from *client
	kind eventKind
	coll collCommand // if kind is submitted
	err  error       // if kind is ended; nil after FINI
}

type eventKind int

const (
	joined    eventKind = iota // IMPI has come, with a rank that is in range
	submitted                  // COLL
	done                       // DONE
	ended                      // the last event of a connection
)

// client is a connection, be it a client of the job already or not.
type client struct {
	conn net.Conn
	r    *bufio.Reader
	out  outbox

	// rank is set before the event joined, and not changed after it.
	rank int

	// The rest belongs to the job's goroutine.
	member   bool
	phase    Phase
	reason   error // why it was closed by us
	queue    []collCommand
	progress int64 // the highest label that it has sent, or noLabel or allLabels
	ended    bool  // it has finished, or is refused or lost
}

// converse reads all that a client sends, in the order in which it may come, and
// tells the job. It returns nil after FINI.
func (j *job) converse(c *client) error {
	if err := c.conn.SetDeadline(time.Now().Add(j.Handshake)); err != nil {
		return &Error{Phase: PhaseAuth, Rank: -1, Err: err}
	}
	h, err := j.authenticate(c)
	if err != nil {
		return &Error{Phase: PhaseAuth, Rank: -1, Err: err}
	}
	if c.rank, err = j.readRank(c, h); err != nil {
		return &Error{Phase: PhaseJoin, Rank: -1, Err: err}
	}
	// This fails if the client is gone already. It is for reading to find that: then it
	// has joined, and is missed.
	_ = c.conn.SetDeadline(time.Time{})
	if !j.tell(event{from: c, kind: joined}) {
		return nil
	}
	if label, err := j.collect(c); err != nil {
		return &Error{Phase: PhaseCollect, Rank: c.rank, Label: label, Err: err}
	}
	if !j.tell(event{from: c, kind: done}) {
		return nil
	}
	h, err = readHeader(c.r)
	if err == nil && (h.cmd != cmdFini || h.len != 0) {
		err = fmt.Errorf("%w: %v of %d bytes where FINI was due", ErrProtocol, h.cmd, h.len)
	}
	if err != nil {
		return &Error{Phase: PhaseRun, Rank: c.rank, Err: err}
	}
	return nil
}

// authenticate does all of AUTH, and returns the header of the next command.
func (j *job) authenticate(c *client) (header, error) {
	h, err := readHeader(c.r)
	if err != nil {
		return h, err
	}
	if h.cmd == cmdImpi && j.NoAuth {
		return h, nil
	}
	if h.cmd != cmdAuth {
		return h, fmt.Errorf("%w: %v where AUTH was due", ErrProtocol, h.cmd)
	}
	if h.len != 4 && h.len != keyLen {
		return h, lengthError("AUTH", h.len, 4)
	}
	b, err := readPayload(c.r, h.len)
	if err != nil {
		return h, err
	}
	a, err := parseAuth(b)
	if err != nil {
		return h, err
	}
	if !a.old {
		which, ok := pick(j.Auth, a.methods)
		if !ok {
			return h, fmt.Errorf("%w: it offers %v, allowed are %v", ErrAuth, a.methods, j.Auth)
		}
		if _, err := c.conn.Write(authReply{which: which}.append(nil)); err != nil {
			return h, err
		}
		if which == whichNone {
			return readHeader(c.r)
		}
		if b, err = readPayload(c.r, keyLen); err != nil {
			return h, err
		}
		if a.key, err = parseKey(b); err != nil {
			return h, err
		}
	} else if j.Auth&AuthKey == 0 {
		// The old form has no other way to say that it needs no authentication.
		return readHeader(c.r)
	}
	if !sameKey(a.key, j.Key) {
		return h, fmt.Errorf("%w: wrong key", ErrAuth)
	}
	return readHeader(c.r)
}

func (j *job) readRank(c *client, h header) (int, error) {
	if h.cmd != cmdImpi || h.len != 4 {
		return 0, fmt.Errorf("%w: %v of %d bytes where IMPI was due", ErrProtocol, h.cmd, h.len)
	}
	b, err := readPayload(c.r, h.len)
	if err != nil {
		return 0, err
	}
	rank, err := parseImpi(b)
	if err != nil {
		return 0, err
	}
	if rank < 0 || rank >= j.Clients {
		return 0, fmt.Errorf("%w: %d of a job of %d", ErrRank, rank, j.Clients)
	}
	return rank, nil
}

// collect reads COLL commands until DONE. The label is the last that came.
func (j *job) collect(c *client) (last Label, err error) {
	labels, total := 0, 0
	for {
		h, err := readHeader(c.r)
		switch {
		case err != nil:
			return last, err
		case h.cmd == cmdDone && h.len == 0:
			return last, nil
		case h.cmd != cmdColl || h.len < collLen:
			return last, fmt.Errorf("%w: %v of %d bytes where COLL or DONE was due", ErrProtocol, h.cmd, h.len)
		}
		n := h.len - collLen
		labels++
		switch {
		case labels > j.MaxLabels:
			return last, fmt.Errorf("%w: more than %d labels", ErrLimit, j.MaxLabels)
		case n > j.MaxLabelBytes:
			return last, fmt.Errorf("%w: COLL of %d bytes, at most %d", ErrLimit, n, j.MaxLabelBytes)
		case n > j.MaxClientBytes-total:
			return last, fmt.Errorf("%w: more than %d bytes under all labels", ErrLimit, j.MaxClientBytes)
		}
		total += n
		b, err := readPayload(c.r, h.len)
		if err != nil {
			return last, err
		}
		coll, err := parseColl(b)
		if err != nil {
			return last, err
		}
		switch {
		case labels == 1 || coll.label > last:
		case coll.label == last:
			return last, fmt.Errorf("%w: submitted twice", ErrProtocol)
		default:
			return last, fmt.Errorf("%w: label %v comes after it", ErrProtocol, coll.label)
		}
		last = coll.label
		if !j.tell(event{from: c, kind: submitted, coll: coll}) {
			return last, net.ErrClosed
		}
	}
}
