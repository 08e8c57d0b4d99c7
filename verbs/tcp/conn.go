package tcp

import (
	"io"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// phase of a connection.
type phase uint8

const (
	phaseOpen     phase = iota
	phaseClosing        // the last frames go out; input is discarded
	phaseDraining       // our FIN is sent, the peer's has not come
	phaseClosed
)

// conn is the TCP connection of a QP, and the state machine of the protocol: it parses
// what the transport has read (rx.go), and provides what to write (tx.go). The QP's lock
// guards all of it, even after the QP has dropped the connection.
type conn struct {
	q     *qp
	a     *adapter
	tr    transport
	phase phase
	rx    rx
	tx    tx

	loose      bool // not armed: polling drives it; see engine
	muted      bool // not to be read: a message waits for a receive
	armedPolls uint64
	watched    bool // in engine.loose; guarded by engine.mu
}

// Values of WC.VendorErr with WCRetryExcErr.
const (
	vendorNotConnected = 1 // the peer did not connect in time
	vendorLost         = 2 // the connection broke, or the peer closed its QP
	vendorDown         = 3 // the peer's QP is in ERR
)

// Limits on the bytes moved while the lock is held once: events of other connections,
// and posts, wait that long.
const (
	readBudget  = 1 << 20
	writeBudget = 1 << 20
)

// newConn returns the state of a connection that the peer opened with the terms of f.
func newConn(q *qp, f *frame) *conn {
	c := &conn{q: q, a: q.a}
	c.rx.buf = make([]byte, bufferSize)
	c.tx.stage = make([]byte, stageSize)
	c.tx.answers.ents = make([]answer, int(q.Attr.MaxDestRdAtomic)+1)
	c.tx.peerReads = int(f.maxAnswers)
	return c
}

// drive reads and writes what it can, then arms the connection. The engine calls it;
// polling calls qp.poll.
func (c *conn) drive(s *soft.Sink) {
	c.receive(s)
	c.transmit(s, true)
	c.settle()
}

// settle arms the connection for what it waits for, or leaves it to polling.
func (c *conn) settle() {
	if c.phase == phaseClosed {
		return
	}
	if muted := c.phase == phaseOpen && c.rx.stalled; muted != c.muted {
		c.muted = muted
		c.tr.mute(muted)
	}
	if !c.loose {
		c.tr.arm(!c.muted, c.tx.blocked)
	} else {
		c.setDue(c.tx.blocked || c.rx.unacked > 0)
	}
}

// setDue notes that polling must visit the connection even if nothing has arrived.
func (c *conn) setDue(due bool) {
	if due == c.q.due.Load() {
		return
	}
	c.q.due.Store(due)
	if due {
		c.count(0, 1)
	} else {
		c.count(0, -1)
	}
}

// count adds to the CQs' counts of loose and due connections.
func (c *conn) count(loose, due int32) {
	for _, cq := range c.q.cqs() {
		cq.loose.Add(loose)
		cq.due.Add(due)
	}
}

// spinning says whether the CQs have been polled so often since the connection was
// armed that a goroutine is presumably spinning on them.
func (c *conn) spinning() bool {
	const often = 64
	q := c.q
	return q.scq.Polls()+q.rcq.Polls()-c.armedPolls > often && !q.scq.Armed() && !q.rcq.Armed()
}

// letLoose leaves the connection to polling.
func (c *conn) letLoose() {
	if !c.loose {
		c.loose = true
		c.count(1, 0)
		c.tr.disarm()
	}
	c.a.engine.watch(c)
}

// takeBack has the engine drive the connection again, starting now.
func (c *conn) takeBack() {
	if c.loose {
		c.tighten()
		c.drive(nil)
	}
}

func (c *conn) tighten() {
	if c.loose {
		c.setDue(false)
		c.loose = false
		c.count(-1, 0)
	}
	c.armedPolls = c.q.scq.Polls() + c.q.rcq.Polls()
}

// finish starts to end the connection: it sends the frame last, then FIN. Nothing more is
// sent from user memory, except the responses that precede a refusal, if the QP still
// exists.
func (c *conn) finish(last kind) {
	if c.phase == phaseClosed {
		return
	}
	if c.phase == phaseOpen {
		c.phase = phaseClosing
		c.tighten()
		c.tr.leave()
		c.tx.last = last
		c.a.engine.ending(c, time.Now().Add(min(c.a.cfg.PeerTimeout, drainTime)))
		if c.rx.stalled || c.rx.drop == dropUntilRecv {
			c.unstall()
		}
		c.rx.discard()
	}
	c.tx.abandon(last == kindBye)
}

// drainTime limits the wait for the peer to end a connection that is being closed.
const drainTime = 2 * time.Second

// close ends the connection at once.
func (c *conn) close() {
	if c.phase == phaseClosed {
		return
	}
	c.tighten()
	if c.rx.stalled || c.rx.drop == dropUntilRecv {
		c.unstall()
	}
	c.phase = phaseClosed
	c.tx.blocked = false
	c.tr.close()
	c.a.engine.ended(c)
	if c.q.conn == c {
		c.q.conn = nil
	}
}

// lost ends a connection that broke, or that the peer ended, and moves the QP to ERR.
// Everything that arrived before has been delivered.
func (c *conn) lost(s *soft.Sink, err error) {
	was := c.phase
	c.close()
	if was != phaseOpen {
		return
	}
	q := c.q
	remote := q.remote
	if err == io.EOF {
		err = errGone
	}
	c.a.engine.note(func() {
		c.a.log.warn("tcp: connection lost", "qp", q.Num, "peer", remote.String(), "err", err)
	})
	q.link = linkDown
	q.Why = err
	q.fail(s, verbs.WCRetryExcErr, vendorLost)
	q.Events.Add(verbs.EventQPFatal, q)
}
