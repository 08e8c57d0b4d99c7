//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// The id of a work request, as the device knows it, has the owner's number and the place
// among the owner's entries, where the user's id is kept.
const receiveBit = 1 << 63

// sendQueue holds the posted send work requests, in posting order.
type sendQueue struct {
	q    *qp
	lock soft.Lock
	mark uint32             // mark in the CQ's lock when held for a post
	id   uint64             // of the first work request
	all  bool               // every work request is signalled (SQSigAll)
	c    *C.struct_sl_sends // C memory
	sges []C.struct_sl_sge  // MaxSendSGE for each of the chain
	room []byte             // C memory, inline bytes of the chain
	ents []sendEntry
	mask uint32
	head uint32 // posted
	tail uint32 // those of them whose places are free again; written with the lock of the CQ

	// Posts look for completions; see lockBoth.
	pass uint32 // remaining posts that do not look; read without the lock
	gap  uint32 // posts that will not look after the next one that finds nothing
}

// sendEntry is what a completion needs from its work request.
type sendEntry struct {
	wrid   uint64
	opcode verbs.WCOpcode
}

// powerOf2 returns the smallest power of 2 not below n.
func powerOf2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func (s *sendQueue) init(q *qp, all bool) {
	n := powerOf2(q.cap.MaxSendWR)
	s.q, s.id, s.all, s.mark = q, uint64(q.id)<<32, all, q.id+2
	s.ents, s.mask = make([]sendEntry, n), uint32(n-1)
	s.c = (*C.struct_sl_sends)(C.calloc(1, C.sizeof_struct_sl_sends))
	// C pointers that are integers in Go.
	*(*C.uintptr_t)(unsafe.Pointer(&s.c.qp)), *(*C.uintptr_t)(unsafe.Pointer(&s.c.cq)) = q.h, q.sendCQ.h
	s.c.wcs = &q.sendCQ.wcs[0]
	sges := max(1, q.cap.MaxSendSGE)
	s.sges = unsafe.Slice((*C.struct_sl_sge)(C.calloc(C.size_t(C.batch*sges), C.sizeof_struct_sl_sge)), C.batch*sges)
	if n := q.cap.MaxInlineData; n > 0 {
		s.room = unsafe.Slice((*byte)(C.calloc(C.batch, C.size_t(n))), C.batch*n)
	}
	for i := range s.c.chain {
		s.c.chain[i].sg_list = &s.sges[i*sges]
		if i+1 < C.batch {
			s.c.chain[i].next = &s.c.chain[i+1]
		}
	}
}

func (s *sendQueue) free() {
	C.free(unsafe.Pointer(s.c))
	C.free(unsafe.Pointer(unsafe.SliceData(s.sges)))
	C.free(unsafe.Pointer(unsafe.SliceData(s.room)))
	s.c, s.sges, s.room = nil, nil, nil
}

func (s *sendQueue) reset() { wait.StoreRelease32(&s.tail, s.head) }

// completed turns the leading completions of src that belong to this queue into the user's,
// and frees the places of their work requests and of those before them. The caller holds the
// lock of the CQ.
func (s *sendQueue) completed(src []C.struct_sl_wc, wcs []verbs.WC) (n int, success bool) {
	var status C.uint32_t
	tail, mask, ents := s.tail, s.mask, s.ents
	for ; n < len(src) && uint64(src[n].wr_id)&^(1<<32-1) == s.id; n++ {
		wc, out := &src[n], &wcs[n]
		common(out, wc)
		status |= wc.status
		place := uint32(wc.wr_id) & mask
		tail += (place-tail)&mask + 1 // the place of this one, and of those before it
		e := &ents[place]
		out.WRID, out.Opcode = e.wrid, e.opcode
		out.SrcQP, out.Imm, out.ByteLen, out.Flags = 0, 0, 0, 0
		if e.opcode >= verbs.WCRDMARead {
			out.ByteLen = uint32(wc.byte_len)
		}
	}
	wait.StoreRelease32(&s.tail, tail) // the entries have been read
	return n, status == 0
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	s := &q.send
	cq := q.sendCQ
	both := cq.private && atomic.LoadUint32(&s.pass) == 0 && s.lockBoth(wrs)
	if !both {
		s.lockAlone(wrs)
	}
	done := 0
	for {
		n, err := s.fill(wrs[done:])
		if n > 0 {
			posted, perr := s.post(n, both)
			done += posted
			if posted < n {
				n, err = 0, perr
			}
		}
		if err != nil || n == 0 || done == len(wrs) {
			if both {
				cq.lock.Unlock()
			} else {
				s.lock.Unlock()
			}
			return done, err
		}
	}
}

// post posts the first n work requests of the chain. Fewer without an error means that the
// device has no room.
func (s *sendQueue) post(n int, both bool) (int, error) {
	c := s.c
	look := C.int(0)
	if both && s.signals(uint32(c.chain[n-1].send_flags)) {
		look = 1
	}
	C.sl_post_send(C.uintptr_t(uintptr(unsafe.Pointer(c))), C.int(n), look)
	if look != 0 {
		s.found(int(c.got))
	}
	posted := int(c.posted)
	s.head += uint32(posted)
	if posted == n {
		return n, nil
	}
	return posted, postError(s.q.c.device, "post send", c.err)
}

// postError returns the error of a post; nil for a full queue.
func postError(device, op string, errno C.int) error {
	if errno != 0 && syscall.Errno(errno) != syscall.ENOMEM {
		return failure(device, op, errno, "")
	}
	return nil
}

// A post whose last work request is signalled is likely to be followed by a poll. It looks
// for completions in the same call into C, and leaves those that it finds in the backlog of
// the CQ, so that the next Poll need not call C. If it finds none, as with a slow device,
// posts look ever more rarely: up to maxGap posts between two that look.
//
// The guarantees of Poll do not change. The lock of the CQ is held from before the post until
// after the look, and the backlog was empty, so the device's order is kept. Polls during the
// post wait for it; a post does not wait for a running poll, and does not look then. A call
// that sleeps in Block has armed the queue, then looked at the backlog and at the device: a
// completion that a post takes later has raised an event, one that it took earlier was seen.
// Posts do not look at a CQ with a user's channel: after arming it, a user may conclude from
// a short Poll that the CQ is empty, as ibv_poll_cq(3) says. For a queue pair that is closed
// or reset, purge removes the completions from the device and the backlog after the device
// has destroyed or reset it. The CQ itself is closed after its queue pairs.
//
// A post that looks holds the lock of the CQ with the mark of its send queue, and has seen
// that the lock of the send queue is free; code that takes that lock waits until the mark is
// gone. The two locks thus cost one atomic instruction, 6 ns, instead of two.

const maxGap = 63

// lockBoth takes the locks of the CQ and of the queue for a post that looks, if both are
// free.
func (s *sendQueue) lockBoth(wrs []verbs.SendWR) bool {
	n, q := len(wrs), s.q.sendCQ
	if uint(n-1) >= C.batch || !s.signals(uint32(wrs[n-1].Flags)) || !q.lock.TryLockAs(s.mark) {
		return false
	}
	if s.lock.Held() || len(q.backlog) > 0 || q.fault != 0 {
		q.lock.Unlock()
		return false
	}
	return true
}

// lockAlone takes the lock of the queue for a post that does not look.
func (s *sendQueue) lockAlone(wrs []verbs.SendWR) {
	s.hold()
	if n := len(wrs); s.pass > 0 && n > 0 && s.signals(uint32(wrs[n-1].Flags)) {
		wait.StoreRelaxed32(&s.pass, s.pass-1)
	}
}

// hold takes the lock of the queue.
func (s *sendQueue) hold() {
	s.lock.Lock()
	s.q.sendCQ.lock.Avoid(s.mark)
}

// signals says whether a work request with these flags generates a completion.
func (s *sendQueue) signals(flags uint32) bool {
	return s.all || flags&uint32(verbs.SendSignaled) != 0
}

// found records the result of ibv_poll_cq in a post that looked.
func (s *sendQueue) found(got int) {
	q := s.q.sendCQ
	if got > 0 {
		q.backlog = q.wcs[:got]
		s.gap = 0
		return
	}
	q.fault = got
	s.gap = min(2*s.gap+1, maxGap)
	wait.StoreRelaxed32(&s.pass, s.gap)
}

// fill turns as many work requests into a chain as there is room for, and returns the error
// of the next one.
func (s *sendQueue) fill(wrs []verbs.SendWR) (n int, err error) {
	q := s.q
	switch q.known() {
	case verbs.QPRTS, verbs.QPSQD, verbs.QPErr:
	default:
		return 0, s.unready()
	}
	room := q.cap.MaxSendWR - int(s.head-atomic.LoadUint32(&s.tail))
	most := min(len(wrs), C.batch)
	chain, ents, sges, taken := &s.c.chain, s.ents, q.cap.MaxSendSGE, min(most, room)
	for n = range taken {
		wr, c := &wrs[n], &chain[n]
		c.num_sge = C.int(len(wr.SGList))
		c.send_flags = C.uint(wr.Flags)
		c.remote_addr = C.uint64_t(wr.RemoteAddr)
		if len(wr.SGList) == 1 && sges > 0 && wr.Inline == nil && wr.Flags&verbs.SendInline == 0 && wr.Opcode < verbs.OpAtomicCmpAndSwp {
			g, first := &wr.SGList[0], (*C.struct_sl_sge)(unsafe.Pointer(c.sg_list))
			first.addr, first.length, first.lkey = C.uint64_t(g.Addr), C.uint32_t(g.Length), C.uint32_t(g.LKey)
			*(*uint32)(unsafe.Pointer(&c.u)) = wr.RKey
		} else if err := s.unusual(n, wr); err != nil {
			return n, err
		}
		c.opcode = C.int(wr.Opcode)
		c.imm_data = C.uint32_t(swap32(wr.Imm))
		place := (s.head + uint32(n)) & s.mask
		c.wr_id = C.uint64_t(s.id | uint64(place))
		e := &ents[place]
		e.wrid, e.opcode = wr.WRID, wcOpcodes[wr.Opcode]
	}
	if taken < most { // full, but an invalid work request is still an error
		return taken, s.check(&wrs[taken])
	}
	return taken, nil
}

// unusual checks a work request and fills in what depends on its kind; fill does that itself
// for the usual kinds.
//
//go:noinline
func (s *sendQueue) unusual(n int, wr *verbs.SendWR) error {
	if err := s.check(wr); err != nil {
		return err
	}
	c := &s.c.chain[n]
	if wr.Opcode < verbs.OpAtomicCmpAndSwp {
		*(*uint32)(unsafe.Pointer(&c.u)) = wr.RKey
	} else {
		*(*uint64)(unsafe.Pointer(&c.u)) = wr.CompareAdd
		c.swap = C.uint64_t(wr.Swap)
		c.atomic_rkey = C.uint32_t(wr.RKey)
	}
	first := (*C.struct_sl_sge)(unsafe.Pointer(c.sg_list))
	if wr.Inline == nil {
		// An SGE has the same layout in Go and C.
		copy(unsafe.Slice((*verbs.SGE)(unsafe.Pointer(first)), len(wr.SGList)), wr.SGList)
		return nil
	}
	b := s.room[n*s.q.cap.MaxInlineData:][:len(wr.Inline)]
	copy(b, wr.Inline)
	c.num_sge = 1
	first.addr, first.length = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.uint32_t(len(b))
	return nil
}

// unready returns the error of a post in a state that does not allow it. Like others here it
// is a separate function to leave the registers to the short path.
//
//go:noinline
func (s *sendQueue) unready() error {
	q := s.q
	if q.gone {
		return verbs.Errorf(q.c.device, "post send", verbs.ErrClosed, "QP")
	}
	return verbs.Errorf(q.c.device, "post send", verbs.ErrState, "QP %#06x is in %v", q.num, q.known())
}

// wcOpcodes are the opcodes of completions, by those of work requests.
var wcOpcodes = func() (t [verbs.OpAtomicFetchAndAdd + 1]verbs.WCOpcode) {
	for i := range t {
		t[i] = verbs.Opcode(i).WCOpcode()
	}
	return t
}()

// check says whether wr may be posted at all. Not every device checks that the result of an
// atomic operation has 8 bytes.
func (s *sendQueue) check(wr *verbs.SendWR) error {
	c := &s.q.cap
	if err := soft.CheckSend(s.q.c.device, c, wr); err != nil || wr.Opcode < verbs.OpAtomicCmpAndSwp {
		return err
	}
	n := uint64(0)
	for i := range wr.SGList {
		n += uint64(wr.SGList[i].Length)
	}
	if n != 8 {
		return verbs.Errorf(s.q.c.device, "post send", verbs.ErrInvalid, "%v has %d bytes, want 8", wr.Opcode, n)
	}
	return nil
}

// recvQueue holds the posted receives of a queue pair.
type recvQueue struct {
	device string
	lock   soft.Lock
	chain  recvChain
	ids    []uint64 // the user's
	mask   uint32
	size   int
	head   uint32
	tail   uint32 // written with the lock of the CQ
}

// recvChain is a chain of receives for the device.
type recvChain struct {
	id   uint64 // of the first place
	wrs  *[C.batch]C.struct_sl_recv_wr
	sges []C.struct_sl_sge
	each int
}

func (c *recvChain) init(id uint32, sges int) {
	c.id, c.each = receiveBit|uint64(id)<<32, max(1, sges)
	c.wrs = (*[C.batch]C.struct_sl_recv_wr)(C.calloc(C.batch, C.sizeof_struct_sl_recv_wr))
	c.sges = unsafe.Slice((*C.struct_sl_sge)(C.calloc(C.size_t(C.batch*c.each), C.sizeof_struct_sl_sge)), C.batch*c.each)
	for i := range c.wrs {
		c.wrs[i].sg_list = &c.sges[i*c.each]
		if i+1 < C.batch {
			c.wrs[i].next = &c.wrs[i+1]
		}
	}
}

func (c *recvChain) free() {
	C.free(unsafe.Pointer(c.wrs))
	C.free(unsafe.Pointer(unsafe.SliceData(c.sges)))
	c.wrs, c.sges = nil, nil
}

// set makes wr the i-th of the chain.
func (c *recvChain) set(i int, place uint32, wr *verbs.RecvWR) {
	w := &c.wrs[i]
	w.wr_id = C.uint64_t(c.id | uint64(place))
	w.num_sge = C.int(len(wr.SGList))
	copy(unsafe.Slice((*verbs.SGE)(unsafe.Pointer(w.sg_list)), len(wr.SGList)), wr.SGList)
}

func (c *recvChain) ptr() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(c.wrs))) }

func (r *recvQueue) init(device string, id uint32, wrs, sges int) {
	n := powerOf2(wrs)
	r.device, r.ids, r.mask, r.size = device, make([]uint64, n), uint32(n-1), wrs
	r.chain.init(id, sges)
}

func (r *recvQueue) free()  { r.chain.free() }
func (r *recvQueue) reset() { wait.StoreRelease32(&r.tail, r.head) }

// received frees the place of a receive, and returns the user's id. The caller
// holds the lock of the CQ.
func (q *qp) received(place uint32) uint64 {
	r := &q.recv
	id := r.ids[place&r.mask]
	wait.StoreRelease32(&r.tail, r.tail+(place-r.tail)&r.mask+1)
	return id
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post receive"
	if q.srq != nil {
		return 0, verbs.Errorf(q.c.device, op, verbs.ErrInvalid, "QP %#06x has an SRQ", q.num)
	}
	n, err := q.postRecv(op, wrs)
	if n > 0 && q.known() == verbs.QPErr {
		q.flushLate()
	}
	return n, err
}

func (q *qp) postRecv(op string, wrs []verbs.RecvWR) (int, error) {
	r := &q.recv
	r.lock.Lock()
	defer r.lock.Unlock()
	switch {
	case r.chain.wrs == nil:
		return 0, verbs.Errorf(q.c.device, op, verbs.ErrClosed, "QP")
	case q.known() == verbs.QPReset:
		return 0, verbs.Errorf(q.c.device, op, verbs.ErrState, "QP %#06x is in %v", q.num, verbs.QPReset)
	}
	done := 0
	for done < len(wrs) {
		var err error
		n, room := 0, r.size-int(r.head-atomic.LoadUint32(&r.tail))
		for n < min(len(wrs)-done, C.batch) {
			wr := &wrs[done+n]
			if err = checkRecv(q.c.device, q.cap.MaxRecvSGE, wr); err != nil || n == room {
				break
			}
			place := (r.head + uint32(n)) & r.mask
			r.ids[place] = wr.WRID
			r.chain.set(n, place, wr)
			n++
		}
		if n == 0 {
			return done, err
		}
		res := uint64(C.sl_post_recv(q.h, r.chain.ptr(), C.int(n)))
		posted := int(uint32(res))
		r.head += uint32(posted)
		done += posted
		if posted < n {
			return done, postError(q.c.device, op, C.int(res>>32))
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func checkRecv(device string, sges int, wr *verbs.RecvWR) error {
	if len(wr.SGList) > sges {
		return verbs.Errorf(device, "post receive", verbs.ErrInvalid, "%d SGEs, limit of the queue is %d", len(wr.SGList), sges)
	}
	return nil
}
