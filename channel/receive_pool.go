package channel

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/verbs"
)

// A receivePool is the receives that all queues of a device share, in an SRQ: memory to
// receive into grows with the messages that arrive at the same time, not with the
// number of peers.
//
// As without a pool, the credits of a queue say how much of its completion queue it may
// fill; the pool holds less than the sum of all credits. It may therefore be empty when
// a message arrives. The device then makes the sender retry after 0.64 ms, without
// limit (RNR NAK, rnr_retry 7). This cannot deadlock: users and the engine return a
// receive to the pool as soon as they poll its completion, whatever it has brought, and
// wait for nothing before that. When the pool runs low the device reports it, and the
// pool grows.
//
// A queue pair that fails may keep the receive that it was writing to: soft-RoCE loses
// it. The pool is then that much smaller, and grows sooner.
type receivePool struct {
	pd     *verbs.PD
	srq    *verbs.SRQ
	buffer int // size of each

	mu    sync.Mutex
	slabs atomic.Pointer[[]*verbs.MR] // of receiveSlab buffers each; changed under mu
	most  int                         // buffers
}

const (
	receiveSlab = 2 * queueRecvs // initial size and increment: 1 MiB
	receiveMost = 64 * receiveSlab
	receiveLow  = receiveSlab / 4 // below this the device reports it
)

func newReceivePool(pd *verbs.PD, buffer int, attr verbs.DeviceAttr) (_ *receivePool, err error) {
	p := &receivePool{pd: pd, buffer: buffer, most: min(receiveMost, attr.MaxSRQWR) / receiveSlab * receiveSlab}
	p.slabs.Store(new([]*verbs.MR))
	if p.srq, err = pd.CreateSRQ(verbs.SRQAttr{MaxWR: p.most, MaxSGE: 1}); err != nil {
		return nil, err
	}
	if err := p.grow(); err != nil {
		return nil, errors.Join(err, p.srq.Close())
	}
	return p, nil
}

// grow adds buffers, and re-arms the device's event for running low.
func (p *receivePool) grow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.slabs.Load()
	first := len(old) * receiveSlab
	if first+receiveSlab > p.most {
		return nil
	}
	mr, err := p.pd.AllocMR(receiveSlab*p.buffer, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	slabs := append(old[:len(old):len(old)], mr)
	p.slabs.Store(&slabs)
	var batch receives
	for i := range receiveSlab {
		batch.add(mr, i*p.buffer, p.buffer, first+i)
	}
	if err := batch.check(p.srq.PostRecv(batch.wrs)); err != nil {
		return err
	}
	if first+2*receiveSlab > p.most {
		return nil
	}
	return p.srq.ModifyLimit(receiveLow)
}

// place is where buffer i lies.
func (p *receivePool) place(i int) (mr *verbs.MR, offset int) {
	return (*p.slabs.Load())[i/receiveSlab], i % receiveSlab * p.buffer
}

// receives is a list of receives to be posted.
type receives struct {
	wrs  []verbs.RecvWR
	sges []verbs.SGE
}

// add appends the receive of this number.
func (r *receives) add(mr *verbs.MR, offset, length, number int) {
	if cap(r.sges) == 0 {
		r.wrs, r.sges = make([]verbs.RecvWR, 0, receiveSlab), make([]verbs.SGE, 0, receiveSlab)
	}
	r.sges = append(r.sges, mr.SGE(offset, length))
	r.wrs = append(r.wrs, verbs.RecvWR{WRID: uint64(number), SGList: r.sges[len(r.sges)-1:]})
}

// check empties the list, of which n have been posted.
func (r *receives) check(n int, err error) error {
	if err == nil && n < len(r.wrs) {
		err = fmt.Errorf("only %d of %d receives were posted", n, len(r.wrs))
	}
	r.wrs, r.sges = r.wrs[:0], r.sges[:0]
	return err
}

// The receives of a link are its own, or of the pool.

// place is where the buffer of a receive lies.
func (l *link) place(number int) (mr *verbs.MR, offset int) {
	if l.pool != nil {
		return l.pool.place(number)
	}
	return l.recvs, number * l.buffer
}

// again adds a receive to those to be posted by postRecvs.
func (l *link) again(number int) {
	mr, offset := l.place(number)
	l.batch.add(mr, offset, l.buffer, number)
}

func (l *link) postRecvs() error {
	switch {
	case len(l.batch.wrs) == 0:
		return nil
	case l.pool != nil:
		return l.batch.check(l.pool.srq.PostRecv(l.batch.wrs))
	}
	return l.batch.check(l.qp.PostRecv(l.batch.wrs))
}

// drain returns to the pool the receives of a queue pair in ERR, and passes the other
// completions to sends.
func (l *link) drain(sends func(*verbs.WC)) error {
	var wcs [queueRecvs]verbs.WC
	for {
		if l.pool != nil {
			if err := l.postRecvs(); err != nil {
				return err
			}
		}
		n, err := l.cq.Poll(wcs[:])
		if n == 0 || err != nil {
			return err
		}
		for i := range wcs[:n] {
			switch {
			case !isReceive(&wcs[i]):
				sends(&wcs[i])
			case l.pool != nil:
				l.again(int(wcs[i].WRID))
			}
		}
	}
}

func isReceive(wc *verbs.WC) bool {
	return wc.Opcode == verbs.WCRecv || wc.Opcode == verbs.WCRecvRDMAWithImm
}
