package impi

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi/packet"
)

// tcpCarrier sends and receives packets over a TCP connection in the format of the protocol, so it
// works with foreign hosts.
type tcpCarrier struct {
	l *link
	s socket

	// Data to be sent: out, then the body of a send. Packets with short data are copied to out, to
	// be sent together.
	out  []byte
	gone int      // bytes of out that have been sent
	req  *request // of which left bytes follow out
	left uint64
	last bool // FINI is to follow
	// deaf is the reason why nothing can be sent any more. The link is lost once everything that
	// the peer had sent before has been read.
	deaf error

	in     []byte // received bytes, to be parsed from at on
	at     int
	inBody bool // the body of the packet of link.in is arriving

	source  *tcpSource
	awaited bool // the blocked watcher also waits for room

	bufs [maxPieces + 1][]byte
}

const (
	// copyMost is the most data that is copied behind its header.
	copyMost = 8 << 10
	outSize  = 64 << 10 // and room for FINI behind it
	inSize   = 64 << 10
	// maxPieces is the most pieces of data in one system call.
	maxPieces = 64
	// restPackets is the length of packets of a long message that is being received, in packets: system
	// calls are fewer then. A foreign host is sent none that is longer than agreed.
	restPackets = 8
	// readRounds bounds the reads of one poll, so that other connections get their turn.
	readRounds = 16
)

// errAgain: the socket has no room or nothing to read.
var errAgain = errors.New("not now")

func newTCPCarrier(l *link, s socket) *tcpCarrier {
	if !l.foreign {
		l.rest = restPackets * l.packetLen
	}
	return &tcpCarrier{l: l, s: s, out: make([]byte, 0, outSize+packet.HeaderLen), in: make([]byte, 0, inSize)}
}

func (c *tcpCarrier) room() bool {
	return c.req == nil && c.deaf == nil && len(c.out)+packet.HeaderLen+copyMost <= outSize
}

// put appends a header to what is to be sent.
func (c *tcpCarrier) put(h *packet.Header) {
	n := len(c.out)
	c.out = c.out[:n+packet.HeaderLen]
	h.Put((*[packet.HeaderLen]byte)(c.out[n:]), c.l.dialect)
}

func (c *tcpCarrier) data(r *request, t packet.Type, n uint64) {
	e := c.l.e
	if r.moved == 0 { // the first packet of the message
		r.pair.seq++
		r.seq = r.pair.seq
	}
	c.put(&packet.Header{Type: t, Len: uint32(n), Src: e.procs[r.comm.p.rank], Dest: e.procs[r.peer],
		SRQID: r.id(), DRQID: r.theirs, MsgLen: r.length, LSRank: r.comm.p.rank, Tag: int64(r.tag),
		CID: r.match.cid, Seq: r.seq, Count: int64(r.length)})
	if n > copyMost {
		c.req, c.left = r, n
		return
	}
	at := len(c.out)
	c.out = c.out[:at+int(n)]
	r.copyOut(c.out[at:])
	c.l.written(r)
}

func (c *tcpCarrier) rest(r *request) (counts, ok bool) {
	r.list.remove(r)
	c.data(r, packet.Data, min(r.length-r.moved, uint64(c.l.rest)))
	return true, true
}

func (c *tcpCarrier) control(p *pair, t packet.Type, srqid uint64, r *request) {
	e := c.l.e
	h := packet.Header{Type: t, Src: e.procs[p.local.rank], Dest: e.procs[p.remote], SRQID: srqid}
	switch {
	case t == refusal:
		h.Type, h.DRQID = packet.CancelYes, e.refusalID()
	case r != nil:
		h.DRQID = r.id()
	}
	c.put(&h)
}

// errLeft: the peer has sent FINI, and we have answered.
var errLeft = errors.New("FINI")

// bye sends FINI: no more packets will come.
func (l *link) bye() {
	if l.err != nil || l.fini {
		return
	}
	l.fini = true
	l.carrier.fini()
}

func (c *tcpCarrier) fini() {
	c.last = true
	c.drain()
}

// unsent says whether anything for a host that uses TCP has not left this process.
func (l *link) unsent() bool {
	c, ok := l.carrier.(*tcpCarrier)
	return ok && c.deaf == nil && (c.last || c.req != nil || c.gone < len(c.out))
}

func (c *tcpCarrier) flush() { c.drain() }

// drain writes what it can and reports whether that was anything.
func (c *tcpCarrier) drain() bool {
	moved := false
	for c.l.err == nil && c.deaf == nil {
		if c.last && c.req == nil {
			c.last = false
			c.put(&packet.Header{Type: packet.Fini, Src: packet.Proc{PID: -1}, Dest: packet.Proc{PID: -1}})
		}
		if c.gone == len(c.out) && c.req == nil {
			break
		}
		n, err := c.s.writev(c.pieces())
		if err == errAgain {
			if c.source != nil {
				c.source.attention(c)
			}
			break
		}
		if err != nil {
			c.deaf = err
			return true
		}
		moved = true
		k := min(n, len(c.out)-c.gone)
		c.gone += k
		n -= k
		if c.gone == len(c.out) {
			c.out, c.gone = c.out[:0], 0
		}
		c.left -= uint64(n)
		for n > 0 {
			w := c.req.window(uint64(n))
			c.req.advance(len(w))
			n -= len(w)
		}
		if c.req != nil && c.left == 0 {
			r := c.req
			c.req = nil
			c.l.written(r)
		}
	}
	return moved
}

// pieces lists the memory to be sent.
func (c *tcpCarrier) pieces() [][]byte {
	bufs := c.bufs[:0]
	if c.gone < len(c.out) {
		bufs = append(bufs, c.out[c.gone:])
	}
	if c.req != nil {
		bufs = c.req.pieces(bufs, c.left)
	}
	return bufs
}

// pieces appends the pieces of the next n bytes of the memory, as many as there is
// room for.
func (r *request) pieces(bufs [][]byte, n uint64) [][]byte {
	for i, from := r.piece, r.within; i < len(r.vec) && n > 0 && len(bufs) < cap(bufs)-1; i, from = i+1, 0 {
		b := r.vec[i][from:]
		if len(b) == 0 {
			continue
		}
		b = b[:min(uint64(len(b)), n)]
		bufs = append(bufs, b)
		n -= uint64(len(b))
	}
	return bufs
}

// poll reads and writes what it can.
func (c *tcpCarrier) poll() bool {
	moved := false
	for range readRounds {
		if c.l.err != nil {
			return moved
		}
		n, whole, err := c.read()
		if err == errAgain {
			if c.deaf != nil {
				c.l.lost(c.deaf)
				return true
			}
			break
		}
		if err == nil {
			err = c.parse()
		}
		if err != nil {
			c.l.lost(err)
			return true
		}
		moved = moved || n > 0
		if !whole {
			break
		}
	}
	if c.drain() {
		moved = true
	}
	if c.l.err == nil && len(c.l.ready) > 0 {
		c.l.push()
	}
	return moved
}

// read reads once: the body of a packet into its destination, and what follows it. It reports
// whether there may be more.
func (c *tcpCarrier) read() (n int, more bool, err error) {
	if c.at > 0 {
		c.in = c.in[:copy(c.in, c.in[c.at:])]
		c.at = 0
	}
	bufs, want := c.bufs[:0], 0
	in := &c.l.in
	direct := 0
	if c.inBody && len(c.in) == 0 {
		if in.req != nil {
			bufs = in.req.pieces(bufs, in.left)
		} else if in.data != nil {
			bufs = append(bufs, in.data[in.at:])
		}
		for _, b := range bufs {
			direct += len(b)
		}
	}
	want = direct
	if uint64(direct) == in.left || !c.inBody || direct == 0 {
		rest := c.in[len(c.in):inSize]
		bufs = append(bufs, rest)
		want += len(rest)
	}
	if want == 0 {
		return 0, false, errAgain
	}
	n, err = c.s.readv(bufs)
	if err != nil {
		return 0, false, err
	}
	if direct > 0 {
		k := min(n, direct)
		for left := k; left > 0; {
			w := in.window()
			w = w[:min(len(w), left)]
			in.advance(len(w))
			left -= len(w)
		}
		c.in = c.in[:n-k]
	} else {
		c.in = c.in[:len(c.in)+n]
	}
	return n, n == want, nil
}

// parse handles the packets that have been read.
func (c *tcpCarrier) parse() error {
	for {
		if c.inBody {
			c.at += c.l.in.fill(c.in[c.at:])
			if c.l.in.left > 0 {
				return nil
			}
			c.inBody = false
			if err := c.l.end(); err != nil {
				return err
			}
		}
		if len(c.in)-c.at < packet.HeaderLen {
			return nil
		}
		var h packet.Header
		if err := packet.Parse(&h, (*[packet.HeaderLen]byte)(c.in[c.at:]), c.l.dialect); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		c.at += packet.HeaderLen
		if c.l.left {
			return fmt.Errorf("%w: %v after FINI", ErrProtocol, h.Type)
		}
		if h.Type == packet.Fini {
			c.l.farewell()
			if !c.l.foreign { // answer, and end the link
				c.l.bye()
				return errLeft
			}
			continue
		}
		a, err := c.l.arrival(&h)
		if err == nil {
			err = c.l.header(&a)
		}
		if err != nil {
			return err
		}
		c.inBody = true
	}
}

// arrival translates a header into terms of this job.
func (l *link) arrival(h *packet.Header) (arrival, error) {
	src, ok := l.e.ranks[h.Src]
	dest, here := l.e.ranks[h.Dest]
	switch {
	case !ok || int(l.e.hostOf[src]) != l.host:
		return arrival{}, fmt.Errorf("%w: packet from process %v pid %d, which is not on IMPI host %d", ErrProtocol, h.Src.Host, h.Src.PID, l.host)
	case !here || int(l.e.hostOf[dest]) != l.e.me:
		return arrival{}, fmt.Errorf("%w: packet to process %v pid %d, which is not on IMPI host %d", ErrProtocol, h.Dest.Host, h.Dest.PID, l.e.me)
	}
	if h.Tag != int64(int32(h.Tag)) && (h.Type == packet.Data || h.Type == packet.DataSync) {
		return arrival{}, fmt.Errorf("%w: tag %d does not fit in 32 bits", ErrProtocol, h.Tag)
	}
	return arrival{t: h.Type, src: src, dest: l.e.processOf(dest), tag: int32(h.Tag), cid: h.CID,
		length: h.MsgLen, srqid: h.SRQID, drqid: h.DRQID, body: h.Body()}, nil
}

// wants says what the carrier waits for on its socket.
func (c *tcpCarrier) wants() (in, out bool) {
	return c.l.err == nil, c.l.err == nil && c.deaf == nil && (c.gone < len(c.out) || c.req != nil)
}

func (c *tcpCarrier) close() {
	c.s.close()
	c.req = nil
}
