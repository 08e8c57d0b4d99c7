package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/impi"
)

// Client is a worker of one or more suppliers: it asks for chunks and receives them. Several
// goroutines may call its methods; each then receives chunks of its own.
//
// The client receives every message that suppliers send to its rank in the communicator.
// The caller keeps the communicator.
type Client struct {
	comm *impi.Comm
	o    clientOptions
	turn turn // to receive

	// Under turn.
	sources []source
	posted  []posted       // receives, in the order in which they were posted
	waits   []impi.Request // their requests
	pace    pace
	batch   *lease // a batch with chunks that have not been returned yet
	rest    []byte // those chunks
	batchOf int    // the source of the batch

	receiving atomic.Bool // a Receive is waiting: acknowledgements go at once

	mu      sync.Mutex
	leaving bool
	free    []*lease
	memory  int        // bytes of free
	acks    [][]uint64 // by source; to be sent
	message []byte
	closed  error
}

// source is a supplier, as the client sees it.
type source struct {
	rank  int
	asked int  // chunks that were asked for and that Receive has not returned
	over  bool // it has sent its end, or died; written under mu too, for Leave
	told  bool // it has been told that the client leaves
}

// posted is a receive that has been posted.
type posted struct {
	req    impi.Request
	lease  *lease
	source int
}

// NewClient makes a client. It sends nothing before [Client.Receive].
//
// Errors: [ErrInvalid] for an invalid option.
func NewClient(comm *impi.Comm, opts ...ClientOption) (*Client, error) {
	o, err := newClientOptions(comm, opts)
	if err != nil {
		return nil, opError("client", err)
	}
	comm.NotifyLeft()
	c := &Client{comm: comm, o: o, acks: make([][]uint64, len(o.suppliers)), pace: newPace(o)}
	for _, r := range o.suppliers {
		c.sources = append(c.sources, source{rank: r})
	}
	return c, nil
}

// Send always returns [ErrDirection]: chunks go from supplier to client.
func (c *Client) Send(context.Context, ...[]byte) error { return opError("send", ErrDirection) }

// Receive asks for a chunk and returns the next one that arrives. The chunk is lent: its
// bytes are the caller's until it calls [Chunk.Release].
//
// Errors:
//   - [io.EOF] when all suppliers have sent their end;
//   - the error of package impi for a supplier that has died, once; later calls return the
//     chunks of the others;
//   - a [*MessageError];
//   - the error of ctx; nothing is lost then, as the next Receive returns a chunk that has
//     begun to arrive;
//   - [ErrClosed] after Close.
func (c *Client) Receive(ctx context.Context) (Chunk, error) {
	if err := c.turn.take(ctx); err != nil {
		return Chunk{}, opError("receive", err)
	}
	k, err := c.receive(ctx)
	c.turn.leave()
	if err != nil && err != io.EOF {
		err = opError("receive", err)
	}
	return k, err
}

func (c *Client) receive(ctx context.Context) (Chunk, error) {
	c.pace.idle()
	if len(c.rest) > 0 {
		if c.wants(&c.sources[c.batchOf]) {
			if _, err := c.request(false); err != nil {
				return Chunk{}, err
			}
		}
		return c.unpack()
	}
	for {
		live, err := c.request(true)
		if err != nil {
			return Chunk{}, err
		}
		if !live {
			return Chunk{}, io.EOF
		}
		l, st, err := c.next(ctx)
		c.receiving.Store(false)
		if err != nil {
			return Chunk{}, err
		}
		k, end, err := c.take(l, st)
		if err != nil || !end {
			return k, err
		}
	}
}

// wants reports whether it is time to ask a supplier for more: when half of the window is
// used up, so that one message asks for several chunks.
func (c *Client) wants(s *source) bool { return s.asked <= c.pace.window/2 }

// request asks each supplier for as many chunks as the window admits, if it is time to, and
// sends it the acknowledgements. It reports whether any supplier may still send. Later
// acknowledgements go at once if the client is about to wait.
func (c *Client) request(waits bool) (live bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return false, c.closed
	}
	for i := range c.sources {
		s := &c.sources[i]
		if s.over {
			continue
		}
		n := 0
		if c.wants(s) {
			n = c.pace.window - s.asked
		}
		switch {
		case c.leaving:
			n = 0
			err = c.leave(i)
		case n <= 0 && len(c.acks[i]) == 0:
		case c.o.numbered:
			err = c.ask(i, n)
		default:
			if len(c.acks[i]) > 0 {
				err = c.ask(i, 0)
			}
			for range n {
				if err != nil {
					break
				}
				err = c.comm.Send(context.Background(), nil, s.rank, TagRequest)
			}
		}
		if err != nil {
			if _, gone := lost(err); gone { // what it has sent before comes first
				err = nil
			} else {
				return false, err
			}
		}
		if n > 0 {
			s.asked += n
			c.pace.asked(n)
		}
		live = true
	}
	c.receiving.Store(live && waits)
	return live, nil
}

// ask sends a supplier the acknowledgements and asks it for n chunks.
func (c *Client) ask(i, n int) error {
	acks := c.acks[i]
	for first := true; first || len(acks) > 0; first, n = false, 0 {
		k := min(len(acks), askMost)
		c.message = appendAsk(c.message[:0], n, acks[:k])
		acks = acks[k:]
		if err := c.comm.Send(context.Background(), c.message, c.sources[i].rank, TagAsk); err != nil {
			c.acks[i] = c.acks[i][:0]
			return err
		}
	}
	c.acks[i] = c.acks[i][:0]
	return nil
}

// leave tells a supplier that the client leaves.
func (c *Client) leave(i int) error {
	s := &c.sources[i]
	if len(c.acks[i]) > 0 {
		if err := c.ask(i, 0); err != nil {
			return err
		}
	}
	if s.told {
		return nil
	}
	s.told = true
	return c.comm.Send(context.Background(), nil, s.rank, TagLeave)
}

// next returns the next message.
func (c *Client) next(ctx context.Context) (*lease, impi.Status, error) {
	if c.o.maxChunk > 0 {
		return c.nextPosted(ctx)
	}
	from := impi.AnySource
	if len(c.sources) == 1 {
		from = c.sources[0].rank
	}
	for len(c.posted) == 0 {
		st, err := c.comm.Probe(ctx, from, impi.AnyTag)
		if err == nil {
			return c.receiveProbed(ctx, st)
		}
		if !c.others(err) {
			return nil, st, err
		}
	}
	return c.wait(ctx) // for a message that an earlier Receive began, whose context ended
}

// receiveProbed receives a message that has arrived, or has begun to.
func (c *Client) receiveProbed(ctx context.Context, st impi.Status) (*lease, impi.Status, error) {
	i := slices.Index(c.o.suppliers, st.Source)
	if i < 0 {
		return nil, st, discard(c.comm, st, "the sender is not one of the client's suppliers")
	}
	if why := badLength(st.Len, c.o.longest, "Longest"); why != "" {
		c.answered(&c.sources[i])
		return nil, st, discard(c.comm, st, why)
	}
	if err := c.post(i, st.Len, st.Tag); err != nil {
		return nil, st, err
	}
	return c.wait(ctx)
}

// post posts a receive from a supplier.
func (c *Client) post(source, n, tag int) error {
	l, err := c.lease(n)
	if err != nil {
		return err
	}
	req, err := c.comm.Irecv(l.memory[:n], c.sources[source].rank, tag)
	if err != nil {
		return errors.Join(err, c.give(l))
	}
	c.posted = append(c.posted, posted{req, l, source})
	return nil
}

// others reports whether an error is the loss of a process that is not a supplier, or of a
// supplier that had sent its end before. It marks any other supplier as over.
func (c *Client) others(err error) bool {
	rank, gone := lost(err)
	if !gone {
		return false
	}
	i := slices.Index(c.o.suppliers, rank)
	if i < 0 || c.sources[i].over {
		return true
	}
	c.ended(i)
	return false
}

// ended notes that a supplier will send no more.
func (c *Client) ended(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[i].over = true
}

// nextPosted is next with receives that are posted beforehand, one for each request.
func (c *Client) nextPosted(ctx context.Context) (*lease, impi.Status, error) {
	room := c.o.room()
	short := len(c.sources) == 1 && room <= shortMost+recordHeader
	if short && len(c.posted) == 0 {
		l, err := c.lease(room)
		if err != nil {
			return nil, impi.Status{}, err
		}
		if st, ok := c.comm.RecvNow(l.memory[:room], c.sources[0].rank, impi.AnyTag); ok {
			return l, st, nil
		}
		if err := c.give(l); err != nil {
			return nil, impi.Status{}, err
		}
	}
	for i := range c.sources {
		s := &c.sources[i]
		if s.over {
			continue
		}
		n := max(s.asked, 1) // when it has left, one for the end
		if short {
			n = 1
		}
		for _, p := range c.posted {
			if p.source == i {
				n--
			}
		}
		for ; n > 0; n-- {
			if err := c.post(i, room, impi.AnyTag); err != nil {
				return nil, impi.Status{}, err
			}
		}
	}
	return c.wait(ctx)
}

// wait waits for the first of the receives that are posted.
func (c *Client) wait(ctx context.Context) (*lease, impi.Status, error) {
	// Messages of one supplier come in the order of the receives.
	k := 0
	var st impi.Status
	var err error
	if len(c.sources) == 1 {
		st, err = c.posted[0].req.Wait(ctx)
	} else {
		c.waits = c.waits[:0]
		for _, p := range c.posted {
			c.waits = append(c.waits, p.req)
		}
		k, st, err = impi.WaitAny(ctx, c.waits...)
	}
	if k < 0 || err != nil && ctx.Err() != nil && (errors.Is(err, impi.ErrTimeout) || errors.Is(err, ctx.Err())) {
		return nil, st, err
	}
	p := c.posted[k]
	c.posted = slices.Delete(c.posted, k, k+1)
	if err != nil {
		err = errors.Join(err, c.give(p.lease))
		if _, gone := lost(err); gone {
			c.ended(p.source)
			return nil, st, errors.Join(err, c.unpost(p.source))
		}
		if errors.Is(err, impi.ErrTruncated) {
			c.sources[p.source].asked--
			err = c.tooLong(st)
		}
		return nil, st, err
	}
	return p.lease, st, nil
}

func (c *Client) tooLong(st impi.Status) error {
	return &MessageError{st.Source, st.Tag, st.Len, fmt.Sprintf("it is longer than MaxChunk, %d bytes", c.o.maxChunk)}
}

// room returns the length of the receives that are posted in advance. A client that has not
// asked for sequence numbers may get them.
func (o *clientOptions) room() int {
	if o.numbered {
		return o.maxChunk
	}
	return o.maxChunk + recordHeader
}

// unpost cancels the receives of a supplier that sends no more. A receive whose message has
// begun to arrive is dropped with its memory: the rest may never come.
func (c *Client) unpost(source int) error {
	var errs []error
	kept := c.posted[:0]
	for _, p := range c.posted {
		if p.source != source {
			kept = append(kept, p)
			continue
		}
		if err := p.req.Cancel(); err != nil {
			errs = append(errs, err)
		}
		done, _, err := p.req.Test()
		if !done {
			p.req.Free()
			continue
		}
		if _, gone := lost(err); err != nil && !gone {
			errs = append(errs, err)
		}
		errs = append(errs, c.give(p.lease))
	}
	c.posted = kept
	return errors.Join(errs...)
}

// take makes a chunk from a message.
func (c *Client) take(l *lease, st impi.Status) (k Chunk, end bool, err error) {
	i := slices.Index(c.o.suppliers, st.Source)
	s := &c.sources[i]
	if st.Len == 0 { // an empty message is the end, whatever its tag
		c.ended(i)
		return Chunk{}, true, errors.Join(c.give(l), c.unpost(i))
	}
	switch {
	case !c.o.numbered && st.Tag == TagData:
		c.answered(s)
		if c.o.maxChunk > 0 && st.Len > c.o.maxChunk {
			return Chunk{}, false, errors.Join(c.tooLong(st), c.give(l))
		}
		l.users = 1
		return Chunk{l: l, gen: l.gen, bytes: l.memory[:st.Len], source: i}, false, nil
	case st.Tag == TagNumbered:
		c.batch, c.rest, c.batchOf = l, l.memory[:st.Len], i
		l.users = 1 // the batch's own
		k, err = c.unpack()
		return k, false, err
	}
	c.answered(s)
	err = &MessageError{st.Source, st.Tag, st.Len, "a supplier may only send chunks and ends"}
	return Chunk{}, false, errors.Join(err, c.give(l))
}

// answered records the answer to a request.
func (c *Client) answered(s *source) {
	s.asked = max(s.asked-1, 0)
	c.pace.came()
}

// unpack takes the next chunk out of a batch.
func (c *Client) unpack() (Chunk, error) {
	l := c.batch
	n := len(c.rest)
	seq, flags, bytes, rest, err := parseRecord(c.rest)
	c.rest = rest
	if flags&unasked == 0 {
		c.answered(&c.sources[c.batchOf])
	}
	c.mu.Lock()
	index := len(l.out)
	if err == nil {
		l.users++
		l.out = append(l.out, true)
		if flags&watched != 0 {
			c.begin(c.batchOf, seq)
		}
	}
	gen := l.gen
	var spent *impi.Memory
	if len(rest) == 0 {
		c.batch = nil
		spent = c.dropLocked(l)
	}
	c.mu.Unlock()
	if err != nil {
		err = &MessageError{c.sources[c.batchOf].rank, TagNumbered, n, err.Error()}
		if spent != nil {
			err = errors.Join(err, spent.Close())
		}
		return Chunk{}, err
	}
	return Chunk{l: l, gen: gen, bytes: bytes, seq: seq, source: c.batchOf, index: index, numbered: true, ack: flags&wantsAck != 0}, nil
}

// begin tells a supplier that work on a chunk begins, after acknowledging the chunks before.
// It fails if the supplier is gone; Receive reports that.
func (c *Client) begin(i int, seq uint64) {
	if len(c.acks[i]) > 0 && c.ask(i, 0) != nil {
		return
	}
	c.message = appendNumbers(c.message[:0], []uint64{seq})
	_ = c.comm.Send(context.Background(), c.message, c.sources[i].rank, TagBegun)
}

// Leave tells the suppliers that the client will not ask again. Receive returns the chunks
// that they have given it already, then [io.EOF]. Leave may be called while Receive waits.
// Suppliers of other implementations do not understand it: a worker can leave those only by
// dying. A client made later may ask again.
func (c *Client) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	for i := range c.sources {
		if s := &c.sources[i]; c.receiving.Load() && !s.over {
			// A waiting Receive does not look here; it gets an error for a supplier that is gone.
			if err := c.leave(i); err != nil {
				s.told = true
			}
		}
	}
}

// Close closes the client: it sends the acknowledgements, and Receive returns [ErrClosed]
// from then on. It must not be called while Receive is running. A supplier that has not sent
// its end stops waiting for the client. The client's chunks that it keeps, with [Redeliver]
// or [Collected], go to other workers, even those that are lent now and released later.
// Chunks that it does not keep are lost if they have already arrived, unless a later client
// of this rank receives them.
func (c *Client) Close() error {
	if err := c.turn.take(context.Background()); err != nil {
		return err
	}
	defer c.turn.leave()
	var errs []error
	var spent *impi.Memory
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return nil
	}
	c.closed = ErrClosed
	for i := range c.sources {
		errs = append(errs, c.part(i))
	}
	if l := c.batch; l != nil { // its remaining chunks are dropped
		c.batch, c.rest = nil, nil
		spent = c.dropLocked(l)
	}
	c.mu.Unlock()
	if spent != nil {
		errs = append(errs, spent.Close())
	}
	for i := range c.sources {
		errs = append(errs, c.unpost(i))
	}
	errs = append(errs, c.dropAll())
	return errors.Join(errs...)
}

// part sends a supplier the acknowledgements, and tells it not to wait for more. It tells
// nothing to a supplier that is gone or has sent its end, or that is of another
// implementation, which would not understand.
func (c *Client) part(i int) error {
	var err error
	if len(c.acks[i]) > 0 {
		err = c.ask(i, 0)
	}
	if s := &c.sources[i]; err == nil && !s.over && !c.foreign(s.rank) {
		if s.told { // a later client must not receive the end that answers this
			var end impi.Request
			end, err = c.comm.Irecv(nil, s.rank, TagEnd)
			end.Free()
		}
		if err == nil {
			err = c.comm.Send(context.Background(), nil, s.rank, TagClosed)
		}
	}
	if _, gone := lost(err); gone {
		return nil
	}
	return err
}

func (c *Client) foreign(rank int) bool { return c.comm.Job().Foreign(c.comm.Ranks()[rank]) }
