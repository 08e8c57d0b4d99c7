package startup

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Server starts one job: it waits for its clients, exchanges what they submit, and stays until they
// have finished. Its fields must not change once Serve has been called. One Server may serve
// several jobs, each on its own listener.
type Server struct {
	// Clients is the number of clients in the job, 1 to [MaxClients].
	Clients int
	// Auth lists the methods that clients may use. If a client offers several of them, the server
	// picks KEY. 0: AuthKey. AuthNone is refused on a listener for all addresses.
	Auth Methods
	// Key is the key that clients must know. It must not be 0 if Auth has AuthKey.
	Key uint64
	// NoAuth admits clients that begin with IMPI instead of AUTH, which the draft of
	// 1999 allows. Auth must have AuthNone.
	NoAuth bool

	// Handshake is how long a connection may take to send AUTH and IMPI. 0: 10 s.
	Handshake time.Duration
	// Join is how long Serve waits for all clients to join the job. 0: 10 minutes; negative: no
	// limit.
	Join time.Duration
	// Collect is how long it may take from then until all clients have sent DONE. 0: 1 minute;
	// negative: no limit.
	Collect time.Duration
	// Finish is how long the other clients may take to send FINI after the first has. 0: no limit.
	Finish time.Duration

	// MaxPending is how many connections may be in the handshake. One more, and the oldest of them
	// is dropped, so that idle connections cannot lock out clients. 0: 64.
	MaxPending int
	// MaxLabels is how many labels a client may submit. 0: 1024.
	MaxLabels int
	// MaxLabelBytes bounds the data of one client under one label. 0: 1 MiB. MaxLabelBytes times
	// Clients must be below 2 GiB.
	MaxLabelBytes int
	// MaxClientBytes bounds the data of one client under all labels. 0: 4 MiB. Serve holds at most
	// about twice that for each client.
	MaxClientBytes int

	// Log receives records of clients that come and go, of refused connections with the reason, and
	// of the phases of the job. nil: no log.
	Log *slog.Logger
}

// Result describes how a job ended.
type Result struct {
	// Clients has one entry per rank.
	Clients []ClientResult
	// Refused counts connections that did not become clients or that ended before all clients had
	// joined.
	Refused int
}

// ClientResult describes how a client ended.
type ClientResult struct {
	Addr  net.Addr // the client's address; nil if it never joined
	Phase Phase    // phase that it reached; PhaseEnd if it finished
	// Err is the reason why it did not finish: an [*Error] with its rank. It is ErrLost for a
	// client that was disconnected because of another.
	Err error
}

// Serve serves one job to the clients that connect to l. It closes l once all have joined, or when
// it returns. It returns when all clients have sent FINI or are gone, when the job has failed, or
// when ctx is done; no connection and no goroutine remains.
//
// The error is nil if every client finished. Otherwise it is an [*Error] that names the first
// client that did not finish, if a client was the cause. When and how a connection ends decides
// what happens to the others:
//
//	before it has joined              it is refused
//	before all clients have joined    its rank is free again for another client
//	before all have sent DONE         a client that broke a rule is refused and counts
//	                                  as one that has sent DONE, without the labels that
//	                                  have not been answered yet; one that is lost fails
//	                                  the job: all others are disconnected at once
//	later                             the others continue
//
// Serve always returns the result, except with ErrInvalid.
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

// Check returns the error, an ErrInvalid, with which Serve would refuse a listener at that address;
// nil if it would not.
func (s *Server) Check(addr net.Addr) error {
	_, err := s.check(addr)
	return err
}

// check returns s with its zero values filled in, and validates it.
func (s *Server) check(addr net.Addr) (Server, error) {
	c := *s
	if c.Clients < 1 || c.Clients > MaxClients {
		return c, fmt.Errorf("%w: %d clients: want 1 to %d", ErrInvalid, c.Clients, MaxClients)
	}
	if c.Auth == 0 {
		c.Auth = AuthKey
	}
	if c.Auth&^(AuthNone|AuthKey) != 0 {
		return c, fmt.Errorf("%w: unknown methods in %#x", ErrInvalid, uint32(c.Auth))
	}
	if c.Auth&AuthKey != 0 && c.Key == 0 {
		return c, fmt.Errorf("%w: method KEY needs a Key that is not 0", ErrInvalid)
	}
	if a, ok := addr.(*net.TCPAddr); ok && c.Auth&AuthNone != 0 && a.IP.IsUnspecified() {
		return c, fmt.Errorf("%w: method NONE on all addresses (%v) is refused: listen on one address, or use a key", ErrInvalid, addr)
	}
	if c.NoAuth && c.Auth&AuthNone == 0 {
		return c, fmt.Errorf("%w: NoAuth needs method NONE in Auth", ErrInvalid)
	}
	for _, n := range []int{c.MaxPending, c.MaxLabels, c.MaxLabelBytes, c.MaxClientBytes} {
		if n < 0 {
			return c, fmt.Errorf("%w: a limit is %d", ErrInvalid, n)
		}
	}
	if c.Handshake < 0 || c.Finish < 0 {
		return c, fmt.Errorf("%w: a time limit is negative", ErrInvalid)
	}
	setDefault(&c.Handshake, 10*time.Second)
	setDefault(&c.Join, 10*time.Minute)
	setDefault(&c.Collect, time.Minute)
	setDefault(&c.MaxPending, 64)
	setDefault(&c.MaxLabels, 1024)
	setDefault(&c.MaxLabelBytes, 1<<20)
	setDefault(&c.MaxClientBytes, 4<<20)
	if c.MaxLabelBytes > (maxPayload-chdrLen)/c.Clients {
		return c, fmt.Errorf("%w: %d bytes per label from %d clients do not fit in one answer", ErrInvalid, c.MaxLabelBytes, c.Clients)
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

// event is a message from a connection's goroutine to the job.
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

// client is a connection, whether or not it has become a client of the job.
type client struct {
	conn net.Conn
	r    *bufio.Reader
	out  outbox

	// rank is set before the event joined and does not change after that.
	rank int

	// The rest belongs to the job's goroutine.
	member   bool
	phase    Phase
	reason   error // why we closed it
	queue    []collCommand
	progress int64 // the highest label that it has sent, or noLabel or allLabels
	ended    bool  // it has finished, or is refused or lost
}

// converse reads all that a client sends, in the order that the protocol prescribes, and passes it
// to the job. It returns nil after FINI.
func (j *job) converse(c *client) error {
	within, cancel := wait.Patience(context.Background(), j.Handshake)
	defer cancel()
	inTime := context.AfterFunc(within, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer inTime() // before cancel
	h, err := j.authenticate(c)
	if err != nil {
		return &Error{Phase: PhaseAuth, Rank: -1, Err: err}
	}
	if c.rank, err = j.readRank(c, h); err != nil {
		return &Error{Phase: PhaseJoin, Rank: -1, Err: err}
	}
	inTime() // in vain if the time is over; the next read finds that out: the client has joined, and counts as lost
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
		err = fmt.Errorf("%w: the client sent %v of %d bytes instead of FINI", ErrProtocol, h.cmd, h.len)
	}
	if err != nil {
		return &Error{Phase: PhaseRun, Rank: c.rank, Err: err}
	}
	return nil
}

// authenticate handles AUTH and returns the header of the next command.
func (j *job) authenticate(c *client) (header, error) {
	h, err := readHeader(c.r)
	if err != nil {
		return h, err
	}
	if h.cmd == cmdImpi && j.NoAuth {
		return h, nil
	}
	if h.cmd != cmdAuth {
		return h, fmt.Errorf("%w: the client sent %v instead of AUTH", ErrProtocol, h.cmd)
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
			return h, fmt.Errorf("%w: the client offers %v, the server allows %v", ErrAuth, a.methods, j.Auth)
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
		// In the old form a client that needs no authentication sends no AUTH.
		return readHeader(c.r)
	}
	if !sameKey(a.key, j.Key) {
		return h, fmt.Errorf("%w: wrong key", ErrAuth)
	}
	return readHeader(c.r)
}

func (j *job) readRank(c *client, h header) (int, error) {
	if h.cmd != cmdImpi || h.len != 4 {
		return 0, fmt.Errorf("%w: the client sent %v of %d bytes instead of IMPI", ErrProtocol, h.cmd, h.len)
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
		return 0, fmt.Errorf("%w: rank %d in a job of %d clients", ErrRank, rank, j.Clients)
	}
	return rank, nil
}

// collect reads COLL commands until DONE. It returns the last label received.
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
			return last, fmt.Errorf("%w: the client sent %v of %d bytes instead of COLL or DONE", ErrProtocol, h.cmd, h.len)
		}
		n := h.len - collLen
		labels++
		switch {
		case labels > j.MaxLabels:
			return last, fmt.Errorf("%w: the client submitted more than %d labels", ErrLimit, j.MaxLabels)
		case n > j.MaxLabelBytes:
			return last, fmt.Errorf("%w: COLL of %d bytes, the most is %d", ErrLimit, n, j.MaxLabelBytes)
		case n > j.MaxClientBytes-total:
			return last, fmt.Errorf("%w: the client submitted more than %d bytes under all labels", ErrLimit, j.MaxClientBytes)
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
			return last, fmt.Errorf("%w: the label was submitted twice", ErrProtocol)
		default:
			return last, fmt.Errorf("%w: label %v follows it out of order", ErrProtocol, coll.label)
		}
		last = coll.label
		if !j.tell(event{from: c, kind: submitted, coll: coll}) {
			return last, net.ErrClosed
		}
	}
}
