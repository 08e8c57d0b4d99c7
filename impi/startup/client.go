package startup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// authPatience is how long a server may take to answer AUTH.
const authPatience = 30 * time.Second

// Job is the result of a startup: what the clients have agreed on, and this client's connection to
// the server. The exported fields do not change; the methods may be called from several goroutines.
type Job struct {
	// Rank is the rank of this client.
	Rank int
	// Clients lists the clients of the job by rank. The processes of the job are numbered by
	// client, then by host, then in the order listed.
	Clients []Client
	// TagUB is the largest tag of the job: the smallest value that any client announced.
	TagUB int32
	// XSize and MaxLinear are what all clients announced, with the default in place of -1: the
	// number of bytes from which collective messages count as long, and the most hosts for linear
	// collectives.
	XSize, MaxLinear int32

	extra map[Label][][]byte
	conn  net.Conn
	once  sync.Once
	err   error // of Finish
}

// Client describes a client of a job as it announced itself.
type Client struct {
	Hosts     []Host
	Versions  []Version // protocol versions it speaks, ascending
	PacketLen uint32    // most bytes of user data that it accepts in a packet
	Foreign   bool      // it does not use this package
}

// Dial joins the job of the server at addr ("host:port"), submits the contents of c, and returns
// once all clients have sent DONE. That takes as long as the slowest client needs: give ctx a
// deadline. When ctx is done, Dial returns its cause. A server that does not answer AUTH within
// 30 s is ErrTimeout.
//
// The error is an [*Error]. Its Rank is this client's unless another client's announcement is at
// fault. It is ErrLost if the server gave up the job because a client was lost or slow, or because
// the server refused this client: the protocol cannot transmit the reason; see the server's log. If
// no connection could be made, it is the error of package net.
func Dial(ctx context.Context, addr string, c Config) (*Job, error) {
	cfg, err := c.filled()
	if err != nil {
		return nil, &Error{Phase: PhaseAuth, Rank: c.Rank, Err: err}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &Error{Phase: PhaseAuth, Rank: c.Rank, Err: err}
	}
	return join(ctx, conn, cfg)
}

// join runs the whole startup on a connection, which then belongs to the job or is closed.
func join(ctx context.Context, conn net.Conn, cfg Config) (*Job, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	h := handshake{Config: cfg, conn: conn, r: bufio.NewReader(conn), last: noLabel}
	job, err := h.run()
	if !stop() && err == nil {
		err = &Error{Phase: PhaseCollect, Rank: cfg.Rank, Err: context.Cause(ctx)}
	}
	if err == nil {
		return job, nil
	}
	conn.Close()
	var e *Error
	if ctx.Err() != nil && errors.As(err, &e) {
		e.Err = context.Cause(ctx)
		return nil, e
	}
	return nil, lost(err)
}

// handshake is the state of a client's startup.
type handshake struct {
	Config
	conn net.Conn
	r    *bufio.Reader
	size int   // of the job
	last int64 // the label that was answered last, or noLabel
}

func (h *handshake) run() (*Job, error) {
	if err := h.authenticate(); err != nil {
		return nil, &Error{Phase: PhaseAuth, Rank: h.Rank, Err: err}
	}
	if err := h.enter(); err != nil {
		return nil, &Error{Phase: PhaseJoin, Rank: h.Rank, Err: err}
	}
	answers := make(map[Label]collReply)
	for _, c := range h.submissions() {
		reply, err := h.submit(c)
		if err != nil {
			return nil, &Error{Phase: PhaseCollect, Rank: h.Rank, Label: c.label, Err: err}
		}
		answers[c.label] = reply
	}
	// Before DONE, because leaving still informs the other clients then.
	job, err := agree(&h.Config, h.size, answers)
	if err != nil {
		return nil, err
	}
	if err := h.done(); err != nil {
		return nil, &Error{Phase: PhaseCollect, Rank: h.Rank, Err: err}
	}
	job.conn = h.conn
	return job, nil
}

func (h *handshake) authenticate() error {
	a := authCommand{methods: h.Auth, old: h.OldAuth, key: h.Key}
	if _, err := h.conn.Write(a.append(nil)); err != nil || a.old {
		return err
	}
	// A startup server answers AUTH at once.
	within, cancel := wait.Patience(context.Background(), authPatience)
	mute := context.AfterFunc(within, func() { h.conn.SetDeadline(time.Unix(1, 0)) })
	b, err := readPayload(h.r, authReplyLen)
	stopped := mute()
	cancel()
	if !stopped {
		return fmt.Errorf("%w: no answer to AUTH within %v: check that a startup server listens there", ErrTimeout, authPatience)
	}
	if err != nil {
		return err
	}
	reply, err := parseAuthReply(b)
	switch {
	case err != nil:
		return err
	case reply.which == whichNone && h.Auth&AuthNone != 0:
		return nil
	case reply.which == whichKey && h.Auth&AuthKey != 0:
		_, err = h.conn.Write(appendKey(nil, h.Key))
		return err
	}
	return fmt.Errorf("%w: the server picked method %d, but this client offered %v", ErrAuth, reply.which, h.Auth)
}

// enter sends the rank and waits until all clients have joined.
func (h *handshake) enter() error {
	if _, err := h.conn.Write(appendImpi(nil, h.Rank)); err != nil {
		return err
	}
	head, err := readHeader(h.r)
	if err != nil {
		return err
	}
	b, err := h.payload(head, cmdImpi, 4)
	if err != nil {
		return err
	}
	if h.size, err = parseImpi(b); err != nil {
		return err
	}
	if h.size <= h.Rank || h.size > MaxClients {
		return fmt.Errorf("%w: the server says the job has %d clients, which excludes rank %d", ErrProtocol, h.size, h.Rank)
	}
	return nil
}

func (h *handshake) submit(c collCommand) (collReply, error) {
	if len(c.data) > maxPayload-collLen {
		return collReply{}, fmt.Errorf("%w: %d bytes of data do not fit in one command", ErrLimit, len(c.data))
	}
	if _, err := h.conn.Write(c.append(nil)); err != nil {
		return collReply{}, err
	}
	return h.await(int64(c.label))
}

func (h *handshake) done() error {
	if _, err := h.conn.Write(header{cmd: cmdDone}.append(nil)); err != nil {
		return err
	}
	_, err := h.await(allLabels)
	return err
}

// await reads up to the answer to the label due, or to DONE for allLabels. It skips answers to
// other clients' labels that come first.
func (h *handshake) await(due int64) (collReply, error) {
	for {
		head, err := readHeader(h.r)
		if err != nil {
			return collReply{}, err
		}
		want, limit := cmdColl, chdrLen+h.MaxAnswer
		if due == allLabels && head.cmd != cmdColl {
			want, limit = cmdDone, 0
		}
		b, err := h.payload(head, want, limit)
		if err != nil || want == cmdDone {
			return collReply{}, err
		}
		reply, err := parseCollReply(b)
		if err != nil {
			return reply, err
		}
		label, own := int64(reply.label), reply.mask&(1<<h.Rank) != 0
		switch {
		case label <= h.last || label > due:
			return reply, fmt.Errorf("%w: the server answered with label %v instead", ErrProtocol, reply.label)
		case own != (label == due) || bits.Len32(reply.mask) > h.size:
			return reply, fmt.Errorf("%w: the answer names clients %#x in a job of %d", ErrProtocol, reply.mask, h.size)
		}
		h.last = label
		if own {
			return reply, nil
		}
	}
}

// payload returns what follows a header, which must be that of an answer to cmd with at most limit
// bytes.
func (h *handshake) payload(head header, cmd command, limit int) ([]byte, error) {
	switch {
	case head.cmd != cmd:
		return nil, fmt.Errorf("%w: the server sent %v instead of %v", ErrProtocol, head.cmd, cmd)
	case head.len > limit:
		return nil, fmt.Errorf("%w: %v of %d bytes, the most is %d", ErrLimit, head.cmd, head.len, limit)
	}
	return readPayload(h.r, head.len)
}

// Finish tells the server that this client has finished and closes the connection. Call it when the
// work of the job is done. Further calls do nothing and return the result of the first.
func (j *Job) Finish() error {
	j.once.Do(func() {
		// Eight bytes fit in the socket's buffer: the server reads all that arrives.
		_, err := j.conn.Write(header{cmd: cmdFini}.append(nil))
		if err = errors.Join(err, j.conn.Close()); err != nil {
			j.err = &Error{Phase: PhaseRun, Rank: j.Rank, Err: fmt.Errorf("%w: %w", ErrLost, err)}
		}
	})
	return j.err
}

// Close closes the connection without FINI, so that the server reports this client as lost. After
// Finish it does nothing. It returns nil.
func (j *Job) Close() error {
	j.once.Do(func() { j.conn.Close() })
	return nil
}

// Extra returns the data that the clients have submitted under a label of Config.Extra, by rank;
// nil for clients that have not submitted it, and nil for all if this client has not. The caller
// must not change the data.
func (j *Job) Extra(l Label) [][]byte { return j.extra[l] }

// PacketLen returns the most bytes of user data in a packet between clients a and b.
func (j *Job) PacketLen(a, b int) uint32 {
	return min(j.Clients[a].PacketLen, j.Clients[b].PacketLen)
}

// Version returns the highest version of the protocol that clients a and b both speak.
func (j *Job) Version(a, b int) Version {
	var best Version // every client has 0.0
	for _, v := range j.Clients[a].Versions {
		if best.less(v) && slices.Contains(j.Clients[b].Versions, v) {
			best = v
		}
	}
	return best
}

// Foreign reports whether any client does not use this package.
func (j *Job) Foreign() bool {
	return slices.ContainsFunc(j.Clients, func(c Client) bool { return c.Foreign })
}
