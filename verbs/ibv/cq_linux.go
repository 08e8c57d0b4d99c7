//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// compChannel is a completion channel.
type compChannel struct {
	c   *vcontext
	h   C.uintptr_t
	fd  int
	src *source

	mu     sync.Mutex
	broken []*cq // whose overrun nobody has been told of
}

func (c *vcontext) newCompChannel() (*compChannel, error) {
	const op = "create completion channel"
	var fd, errno C.int
	h := C.sl_create_comp_channel(c.h, &fd, &errno)
	if h == 0 {
		return nil, failure(c.device, op, errno, "")
	}
	src, err := newSource(int(fd), "completion channel of "+c.device)
	if err != nil {
		return nil, errors.Join(verbs.Errorf(c.device, op, err, ""), failure(c.device, op, C.sl_destroy_comp_channel(h), ""))
	}
	return &compChannel{c: c, h: h, fd: int(fd), src: src}, nil
}

func (c *vcontext) CreateCompChannel() (verbs.ProviderCompChannel, error) {
	ch, err := c.newCompChannel()
	if err != nil {
		return nil, err
	}
	return ch, nil
}

func (ch *compChannel) FD() (int, error) { return ch.fd, nil }

func (ch *compChannel) Get(ctx context.Context) (verbs.ProviderCQ, error) {
	const op = "get completion event"
	for {
		var h C.uintptr_t
		var errno C.int
		var broken *cq
		err := ch.src.wait(ctx, func() bool {
			if broken = ch.takeBroken(); broken != nil {
				return true
			}
			errno = C.sl_get_cq_event(ch.h, &h)
			return syscall.Errno(errno) != syscall.EAGAIN
		})
		switch {
		case err != nil:
			return nil, closedErr(ch.c.device, op, err)
		case broken != nil:
			return broken, nil
		case syscall.Errno(errno) == syscall.EINTR:
			continue
		case errno != 0:
			return nil, failure(ch.c.device, op, errno, "")
		}
		if q, ok := ch.c.object(h).(*cq); ok {
			return q, nil
		} // else it has been closed meanwhile
	}
}

// takeBroken removes a queue that has overrun.
func (ch *compChannel) takeBroken() *cq {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.broken) == 0 {
		return nil
	}
	q := ch.broken[0]
	ch.broken = ch.broken[1:]
	return q
}

func (ch *compChannel) Close() error {
	return errors.Join(ch.src.close(), failure(ch.c.device, "close completion channel", C.sl_destroy_comp_channel(ch.h), ""))
}

// pollBatch is how many completions one crossing into C takes.
const pollBatch = 64

// cq is a completion queue.
type cq struct {
	c       *vcontext
	h       C.uintptr_t
	channel *compChannel
	private bool // the channel is the queue's own

	lock    soft.Lock
	wcs     *[pollBatch]C.struct_sl_wc // C memory that completions are polled to
	backlog []C.struct_sl_wc           // polled before their time
	broken  atomic.Bool

	mu    sync.Mutex
	users map[*qp]struct{}
}

func (c *vcontext) CreateCQ(cqe int, ch verbs.ProviderCompChannel) (verbs.ProviderCQ, error) {
	const op = "create CQ"
	q := &cq{c: c, users: map[*qp]struct{}{}}
	if ch != nil {
		q.channel = ch.(*compChannel)
	} else {
		var err error
		if q.channel, err = c.newCompChannel(); err != nil {
			return nil, err
		}
		q.private = true
	}
	var errno C.int
	if q.h = C.sl_create_cq(c.h, C.int(cqe), q.channel.h, C.uint(c.turn.Add(1)), &errno); q.h == 0 {
		err := failure(c.device, op, errno, "%d entries", cqe)
		if q.private {
			err = errors.Join(err, q.channel.Close())
		}
		return nil, err
	}
	q.wcs = (*[pollBatch]C.struct_sl_wc)(C.calloc(pollBatch, C.sizeof_struct_sl_wc))
	c.own(q.h, q)
	return q, nil
}

func (q *cq) Poll(wcs []verbs.WC) (int, error) { return q.PollSpin(wcs, 1) }

// PollSpin is Poll that looks up to looks times: one crossing into C for all.
func (q *cq) PollSpin(wcs []verbs.WC, looks int) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	q.lock.Lock()
	if q.wcs == nil {
		q.lock.Unlock()
		return 0, verbs.Errorf(q.c.device, "poll CQ", verbs.ErrClosed, "CQ")
	}
	n, failed, err := q.poll(wcs, looks)
	q.lock.Unlock()
	for _, f := range failed {
		f.failed()
	}
	return n, err
}

// poll returns how many completions it has taken, and the queue pairs of which
// they say that they are in ERR now. The caller holds the lock.
func (q *cq) poll(wcs []verbs.WC, looks int) (n int, failed []*qp, err error) {
	src := q.wcs[:]
	var got int
	if len(q.backlog) > 0 {
		got = copy(src, q.backlog[:min(len(wcs), len(q.backlog))])
		q.backlog = append(q.backlog[:0], q.backlog[got:]...)
	} else {
		got = int(C.sl_poll_cq(C.uintptr_t(q.h), C.int(min(len(wcs), pollBatch)), C.uintptr_t(uintptr(unsafe.Pointer(q.wcs))), C.int(looks)))
		if got <= 0 {
			switch {
			case q.broken.Load():
				return 0, nil, verbs.Errorf(q.c.device, "poll CQ", verbs.ErrCQOverrun, "")
			case got < 0:
				return 0, nil, verbs.Errorf(q.c.device, "poll CQ", syscall.EIO, "ibv_poll_cq returned %d", got)
			}
			return 0, nil, nil
		}
	}
	owners := *q.c.owners.Load()
	var sends *sendQueue // whose completions these are
	var tail uint32      // of which the places before are free
	for i := range src[:got] {
		wc, out := &src[i], &wcs[n]
		id := uint64(wc.wr_id)
		o := owners[id>>32&(maxOwners-1)]
		out.Status = verbs.WCStatus(wc.status)
		out.VendorErr = uint32(wc.vendor_err)
		out.QPNum = uint32(wc.qp_num)
		out.Flags = verbs.WCFlags(wc.wc_flags) & verbs.WCWithImm
		switch {
		case o.qp != nil && id&receiveBit == 0:
			if s := &o.qp.send; s != sends {
				if sends != nil {
					sends.freed(tail)
				}
				sends, tail = s, s.tail
			}
			place := uint32(id) & sends.mask
			tail += (place-tail)&sends.mask + 1 // that of this one, and of those before it
			e := &sends.ents[place]
			out.WRID, out.Opcode = e.wrid, e.opcode
			out.SrcQP, out.Imm, out.ByteLen, out.Flags = 0, 0, 0, 0
			if e.opcode >= verbs.WCRDMARead {
				out.ByteLen = uint32(wc.byte_len)
			}
		case o.qp != nil:
			out.WRID = o.qp.received(uint32(id))
			fillReceive(out, wc, o.qp)
		case o.srq != nil:
			out.WRID = o.srq.received(uint32(id))
			fillReceive(out, wc, q.c.pair(out.QPNum))
		default:
			continue // of a queue that is closed
		}
		if out.Status != verbs.WCSuccess {
			if out.Status == verbs.WCLocQPOpErr && q.c.rxe {
				out.Status = q.c.rxeStatus()
			}
			if f := q.c.pair(out.QPNum); f != nil && f.known() != verbs.QPErr && !slices.Contains(failed, f) {
				failed = append(failed, f)
			}
		}
		n++
	}
	if sends != nil {
		sends.freed(tail)
	}
	return n, failed, nil
}

// rxeStatus is the status that InfiniBand has for what soft-RoCE calls a local QP
// operation error: a packet that could not be sent, or memory that is not there.
func (c *vcontext) rxeStatus() verbs.WCStatus {
	for port := 1; port <= c.attr.PhysPortCnt; port++ {
		if p, err := c.queryPort(port); err != nil || verbs.PortState(p.state) != verbs.PortActive {
			return verbs.WCRetryExcErr
		}
	}
	return verbs.WCLocProtErr
}

// fillReceive fills in what receives have beyond other completions. Whom a message
// is from libibverbs says of datagrams only.
func fillReceive(out *verbs.WC, wc *C.struct_sl_wc, q *qp) {
	out.SrcQP = 0
	if q != nil {
		out.SrcQP = q.dest.Load()
	}
	if out.Status == verbs.WCRemAccessErr { // so soft-RoCE calls it at both ends
		out.Status = verbs.WCLocAccessErr
	}
	out.Opcode = verbs.WCRecv
	if wc.status == 0 {
		out.Opcode = verbs.WCOpcode(wc.opcode)
	}
	out.ByteLen = uint32(wc.byte_len)
	out.Imm = 0
	if out.Flags != 0 {
		out.Imm = swap32(uint32(wc.imm_data))
	}
}

// purge drops the completions of a queue pair that the device has forgotten.
func (q *cq) purge(p *qp) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.wcs == nil {
		return
	}
	var rest []C.struct_sl_wc
	keep := func(list []C.struct_sl_wc) {
		for i := range list {
			if wc := &list[i]; uint32(wc.qp_num) != p.num {
				rest = append(rest, *wc)
			} else if id := uint64(wc.wr_id); id&receiveBit != 0 && p.srq != nil {
				p.srq.received(uint32(id))
			}
		}
	}
	keep(q.backlog)
	for {
		got := int(C.sl_poll_cq(q.h, pollBatch, C.uintptr_t(uintptr(unsafe.Pointer(q.wcs))), 1))
		if got <= 0 {
			break
		}
		keep(q.wcs[:got])
	}
	q.backlog = rest
}

// overrun: the device has said that there was no room for a completion.
func (q *cq) overrun() {
	q.broken.Store(true)
	q.mu.Lock()
	for p := range q.users {
		go p.failed()
	}
	q.mu.Unlock()
	q.channel.mu.Lock()
	q.channel.broken = append(q.channel.broken, q)
	q.channel.mu.Unlock()
	q.channel.src.nudge()
}

func (q *cq) ReqNotify(solicitedOnly bool) error {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.wcs == nil {
		return verbs.Errorf(q.c.device, "request notification", verbs.ErrClosed, "CQ")
	}
	var only C.int
	if solicitedOnly {
		only = 1
	}
	return failure(q.c.device, "request notification", C.sl_req_notify_cq(q.h, only), "")
}

// Block sleeps until an event, unless there is something already. Of several who
// wait, one reads events; each arms the queue and looks when it is its turn: there
// may be more than the one before has taken.
func (q *cq) Block(ctx context.Context) error {
	const op = "wait for completion"
	var result error
	err := q.channel.src.wait(ctx, func() bool {
		if q.broken.Load() {
			return true
		}
		var h C.uintptr_t
		switch errno := syscall.Errno(C.sl_get_cq_event(q.channel.h, &h)); errno {
		case 0:
			return true
		case syscall.EAGAIN, syscall.EINTR:
		default:
			result = failure(q.c.device, op, C.int(errno), "")
			return true
		}
		if result = q.ReqNotify(false); result != nil {
			return true
		}
		q.lock.Lock()
		defer q.lock.Unlock()
		if q.wcs != nil && len(q.backlog) == 0 {
			got := int(C.sl_poll_cq(q.h, pollBatch, C.uintptr_t(uintptr(unsafe.Pointer(q.wcs))), 1))
			q.backlog = append(q.backlog, q.wcs[:max(got, 0)]...)
		}
		return len(q.backlog) > 0
	})
	if err != nil {
		return closedErr(q.c.device, op, err)
	}
	return result
}

func (q *cq) Close() error {
	q.c.disown(q.h)
	q.lock.Lock()
	err := failure(q.c.device, "close CQ", C.sl_destroy_cq(q.h), "")
	C.free(unsafe.Pointer(q.wcs))
	q.wcs = nil
	q.lock.Unlock()
	if q.private {
		err = errors.Join(err, q.channel.Close())
	}
	return err
}

// swap32 turns network order into the host's, and back.
func swap32(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}
