package channel

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// A sendPool is the buffers, of one message each, that all queues of a device send
// from: memory to send from grows with the messages in flight, not with the number of
// peers. Inline messages need none.
//
// When the pool cannot grow any more, a queue waits until another returns a buffer.
// That wait ends: all buffers are in flight, and each comes back when the device has
// sent it. Queues that have not requested the completion (see sent) request it then.
type sendPool struct {
	pd     *verbs.PD
	buffer int         // size of each
	short  atomic.Bool // a queue waits
	slabs  atomic.Pointer[[]*verbs.MR]

	mu      sync.Mutex
	free    []int32
	waiting []*queue
	most    int // slabs
	lacks   error
}

const (
	sendSlab = queueSends // initial size and increment: 0.5 MiB
	sendMost = 64         // slabs
)

// newSendPool makes a pool with its first buffers; if it fails, the device is not used.
func newSendPool(pd *verbs.PD, buffer int) (*sendPool, error) {
	p := &sendPool{pd: pd, buffer: buffer, most: sendMost}
	p.slabs.Store(new([]*verbs.MR))
	return p, p.grow()
}

// grow adds buffers. The caller holds mu, or is the first.
func (p *sendPool) grow() error {
	old := *p.slabs.Load()
	mr, err := p.pd.AllocMR(sendSlab*p.buffer, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	p.slabs.Store(new(append(old[:len(old):len(old)], mr)))
	for i := range sendSlab {
		p.free = append(p.free, int32(len(old)*sendSlab+sendSlab-1-i))
	}
	return nil
}

// take returns a buffer. Without one it returns false, and the queue resumes when one comes back.
func (p *sendPool) take(q *queue) (int32, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 && p.lacks == nil {
		if p.lacks = errPoolFull; len(*p.slabs.Load()) < p.most {
			p.lacks = p.grow()
		}
		if p.lacks != nil {
			q.peer.node.log.Info("channel: cannot add send buffers to the pool", "device", q.link.dev.port.Name(), "buffers", len(*p.slabs.Load())*sendSlab, "error", p.lacks)
		}
	}
	if len(p.free) == 0 {
		if !slices.Contains(p.waiting, q) {
			p.waiting = append(p.waiting, q)
		}
		p.short.Store(true)
		return 0, false
	}
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return i, true
}

var errPoolFull = errors.New("the pool of the device has its maximum size")

// give takes buffers back, and resumes the queues that wait.
func (p *sendPool) give(list []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, list...)
	for _, q := range p.waiting {
		q.peer.node.wg.Go(q.tend)
	}
	p.waiting = p.waiting[:0]
	p.short.Store(false)
}

// place is where buffer i lies.
func (p *sendPool) place(i int32) (mr *verbs.MR, offset int) {
	return (*p.slabs.Load())[i/sendSlab], int(i) % sendSlab * p.buffer
}

// outstanding is the sends of a queue that are posted and not known to be complete.
//
// Each occupies a place in the send queue, and perhaps a buffer, until a work request posted no
// earlier is complete: they execute in order. So on RDMA devices a completion is requested only
// from time to time: with every signalEvery-th send, with each send of a queue that the engine
// does not watch, so that none is left over, and by settle when the engine finds a queue idle,
// when buffers run short, and when the node closes. A failed send always completes.
type outstanding struct {
	posted, done uint32                                     // modulo 2^32
	buffers      [queueSends]int32                          // of those in between, by their number
	quiet        int                                        // posted since a completion was requested
	settling     bool                                       // a settling write is posted
	back         []int32                                    // of one call
	scratch      [max(inlineMost, headerSize+addrSize)]byte // for building inline messages
}

const (
	signalEvery = 16
	noBuffer    = int32(-1)
)

// buffer returns memory for building a message with n bytes of payload, and the number of its
// buffer; nil if it has to wait.
func (q *queue) buffer(n int) (int32, []byte) {
	if q.outstanding.posted-q.outstanding.done == queueSends {
		return 0, nil
	}
	if headerSize+n <= q.inline {
		return noBuffer, q.outstanding.scratch[:headerSize+n]
	}
	pool := q.link.dev.sends
	i, ok := pool.take(q)
	if !ok {
		return 0, nil
	}
	mr, at := pool.place(i)
	return i, mr.Bytes()[at : at+headerSize+n]
}

// post sends a message whose payload of n bytes is already in b, the memory of buffer i. The
// caller has checked that there is a credit.
func (q *queue) post(h header, n int, i int32, b []byte) {
	q.credits--
	h.credits = uint16(q.owed)
	q.owed = 0
	h.put(b)
	s := &q.outstanding
	s.buffers[s.posted%queueSends] = i
	s.posted++
	s.quiet++
	wr := verbs.SendWR{WRID: uint64(s.posted), Opcode: verbs.OpSend}
	if !q.watched || s.quiet >= signalEvery || !q.link.dev.rdma {
		wr.Flags = verbs.SendSignaled
		s.quiet = 0
	}
	if i == noBuffer {
		wr.Flags |= verbs.SendInline
		wr.Inline = b
	} else {
		mr, at := q.link.dev.sends.place(i)
		q.sges = append(q.sges[:0], mr.SGE(at, len(b)))
		wr.SGList = q.sges
	}
	q.wrs[0] = wr
	if m, err := q.link.qp.PostSend(q.wrs[:1]); err != nil || m < 1 {
		q.broken(fmt.Errorf("post send: %d of 1 work requests posted: %w", m, err))
	}
}

// settle requests a completion behind all sends of the queue, by a write of no bytes.
func (q *queue) settle() {
	s := &q.outstanding
	if s.quiet == 0 || s.settling || q.failed {
		return
	}
	if err := q.mark(); err != nil {
		q.broken(err)
	}
}

// mark posts the write that completes behind all sends. On a queue pair in ERR it fails behind the
// flushed sends: the kernel drains a queue pair in the same way (ib_drain_sq).
func (q *queue) mark() error {
	s := &q.outstanding
	s.quiet, s.settling = 0, true
	q.wrs[0] = verbs.SendWR{WRID: wrSettle | uint64(s.posted), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	if m, err := q.link.qp.PostSend(q.wrs[:1]); err != nil || m < 1 {
		return fmt.Errorf("post write: %d of 1 work requests posted: %w", m, err)
	}
	return nil
}

// over handles the completion of a send or of a settling write, and ignores others.
func (q *queue) over(wc *verbs.WC) {
	switch wc.WRID &^ (1<<32 - 1) {
	case wrSettle:
		q.outstanding.settling = false
	case 0:
		if isReceive(wc) {
			return
		}
	default:
		return
	}
	q.release(uint32(wc.WRID))
}

// release frees the resources of the first n sends of the queue.
func (q *queue) release(n uint32) {
	s := &q.outstanding
	if n-s.done > s.posted-s.done {
		return // known already
	}
	s.back = s.back[:0]
	for ; s.done != n; s.done++ {
		if i := s.buffers[s.done%queueSends]; i != noBuffer {
			s.back = append(s.back, i)
		}
	}
	if len(s.back) > 0 {
		q.link.dev.sends.give(s.back)
	}
}
