//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"math/bits"
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
	broken []*cq // whose overrun has not been reported yet
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
		} // else the CQ has been closed in the meantime
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

// cq is a completion queue.
type cq struct {
	c       *vcontext
	h       C.uintptr_t
	channel *compChannel
	private bool // the channel is the queue's own

	lock    soft.Lock
	wcs     *[C.batch]C.struct_sl_wc // C memory that completions are polled to
	backlog []C.struct_sl_wc         // polled ahead by a post: part of wcs, or left by purge
	fault   int                      // negative result of ibv_poll_cq in a post
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
	q.wcs = (*[C.batch]C.struct_sl_wc)(C.calloc(C.batch, C.sizeof_struct_sl_wc))
	c.own(q.h, q)
	return q, nil
}

func (q *cq) Poll(wcs []verbs.WC) (int, error) { return q.PollSpin(wcs, 1) }

// PollSpin polls up to looks times in one call into C.
func (q *cq) PollSpin(wcs []verbs.WC, looks int) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	q.lock.Lock()
	if q.wcs == nil {
		q.lock.Unlock()
		return 0, q.closedErr("poll CQ")
	}
	n, failed, err := q.poll(wcs, looks)
	q.lock.Unlock()
	for _, f := range failed {
		f.failed()
	}
	return n, err
}

//go:noinline
func (q *cq) closedErr(op string) error { return verbs.Errorf(q.c.device, op, verbs.ErrClosed, "CQ") }

// poll returns the number of completions taken, and the queue pairs that these show to be in
// ERR now. The caller holds the lock.
func (q *cq) poll(wcs []verbs.WC, looks int) (n int, failed []*qp, err error) {
	src := q.backlog
	switch {
	case len(src) > len(wcs):
		src, q.backlog = src[:len(wcs)], src[len(wcs):]
	case len(src) > 0:
		q.backlog = src[:0]
	default:
		got := q.fault
		if q.fault = 0; got == 0 {
			got = q.look(min(len(wcs), C.batch), looks)
		}
		if got <= 0 {
			return 0, nil, q.pollError(got)
		}
		src = q.wcs[:got]
	}
	owners := *q.c.owners.Load()
	for len(src) > 0 {
		id := uint64(src[0].wr_id)
		o := owners[id>>32&(maxOwners-1)]
		k, whole := 1, true
		if id&receiveBit == 0 && o.qp != nil {
			k, whole = o.qp.send.completed(src, wcs[n:])
			src = src[k:]
		} else {
			k, whole = q.received(o, &src[0], &wcs[n])
			src = src[1:]
		}
		if !whole {
			failed = q.failures(wcs[n:n+k], failed)
		}
		n += k
	}
	return n, failed, nil
}

// pollError returns the error of a poll that has taken nothing.
//
//go:noinline
func (q *cq) pollError(got int) error {
	switch {
	case q.broken.Load():
		return verbs.Errorf(q.c.device, "poll CQ", verbs.ErrCQOverrun, "")
	case got < 0:
		return verbs.Errorf(q.c.device, "poll CQ", syscall.EIO, "ibv_poll_cq returned %d", got)
	}
	return nil
}

// look takes up to n completions from the device to wcs. The caller holds the lock,
// and the backlog is not in wcs.
func (q *cq) look(n, looks int) int {
	return int(C.sl_poll_cq(q.h, C.int(n), C.uintptr_t(uintptr(unsafe.Pointer(q.wcs))), C.int(looks)))
}

// failures handles completions some of which failed: it adds their queue pairs to failed,
// unless they are known to be in ERR.
//
//go:noinline
func (q *cq) failures(wcs []verbs.WC, failed []*qp) []*qp {
	for i := range wcs {
		wc := &wcs[i]
		if wc.Status == verbs.WCSuccess {
			continue
		}
		if wc.Status == verbs.WCLocQPOpErr && q.c.rxe {
			wc.Status = q.c.rxeStatus()
		}
		if f := q.c.pair(wc.QPNum); f != nil && f.known() != verbs.QPErr && !slices.Contains(failed, f) {
			failed = append(failed, f)
		}
	}
	return failed
}

// rxeStatus returns InfiniBand's status for what soft-RoCE reports as a local QP operation
// error: a packet that could not be sent, or memory that is not registered.
func (c *vcontext) rxeStatus() verbs.WCStatus {
	for port := 1; port <= c.attr.PhysPortCnt; port++ {
		if p, err := c.queryPort(port); err != nil || verbs.PortState(p.state) != verbs.PortActive {
			return verbs.WCRetryExcErr
		}
	}
	return verbs.WCLocProtErr
}

// common fills in the fields that all completions have.
func common(out *verbs.WC, wc *C.struct_sl_wc) {
	out.Status = verbs.WCStatus(wc.status)
	out.VendorErr = uint32(wc.vendor_err)
	out.QPNum = uint32(wc.qp_num)
}

// received turns the completion of a receive into the user's; none if its queue is closed.
// libibverbs reports the sender's QP only for datagrams. The caller holds the lock.
func (q *cq) received(o owner, wc *C.struct_sl_wc, out *verbs.WC) (n int, success bool) {
	common(out, wc)
	from, place := o.qp, uint32(wc.wr_id)
	switch {
	case o.qp != nil:
		out.WRID = o.qp.received(place)
	case o.srq != nil:
		out.WRID = o.srq.received(place)
		from = q.c.pair(out.QPNum)
	default:
		return 0, true
	}
	out.SrcQP = 0
	if from != nil {
		out.SrcQP = from.dest.Load()
	}
	if out.Status == verbs.WCRemAccessErr { // soft-RoCE reports it so at both ends
		out.Status = verbs.WCLocAccessErr
	}
	out.Opcode = verbs.WCRecv
	if wc.status == 0 {
		out.Opcode = verbs.WCOpcode(wc.opcode)
	}
	out.ByteLen = uint32(wc.byte_len)
	out.Flags, out.Imm = verbs.WCFlags(wc.wc_flags)&verbs.WCWithImm, 0
	if out.Flags != 0 {
		out.Imm = swap32(uint32(wc.imm_data))
	}
	return 1, out.Status == verbs.WCSuccess
}

// purge drops the completions of a queue pair that the device has reset or destroyed.
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
		got := q.look(C.batch, 1)
		if got <= 0 {
			break
		}
		keep(q.wcs[:got])
	}
	q.backlog = rest
}

// overrun: the device reported that there was no room for a completion.
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
		return q.closedErr("request notification")
	}
	var only C.int
	if solicitedOnly {
		only = 1
	}
	return failure(q.c.device, "request notification", C.sl_req_notify_cq(q.h, only), "")
}

// Block sleeps until an event, unless a completion is already there. Of several waiting
// calls, one reads events; each, when its turn comes, arms the queue and looks: there may be
// more completions than the call before it has taken.
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
		if q.wcs != nil && len(q.backlog) == 0 && q.fault == 0 {
			if q.fault = q.look(C.batch, 1); q.fault > 0 {
				q.backlog, q.fault = q.wcs[:q.fault], 0
			}
		}
		return len(q.backlog) > 0 || q.fault != 0
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
	if C.big_endian != 0 {
		return v
	}
	return bits.ReverseBytes32(v)
}
