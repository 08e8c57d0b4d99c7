//go:build cgo

package ibv

/*
#cgo noescape sl_post_send
#cgo nocallback sl_post_send
#cgo noescape sl_post_recv
#cgo nocallback sl_post_recv
#cgo noescape sl_post_srq_recv
#cgo nocallback sl_post_srq_recv
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

// postBatch is how many work requests one crossing into C posts.
const postBatch = 64

// A work request's id, as the device knows it: whose it is, and its place among
// those of that owner. The user's is kept there.
const receiveBit = 1 << 63

// sendQueue is what is posted to send, in the order of posting.
type sendQueue struct {
	q     *qp
	lock  soft.Lock
	id    uint64 // of its first work request
	chain *[postBatch]C.struct_sl_send_wr
	sges  []C.struct_sl_sge // MaxSendSGE for each of the chain
	room  []byte            // C memory, inline bytes of the chain
	ents  []sendEntry
	mask  uint32
	head  uint32 // posted
	tail  uint32 // of these, those whose places are free: written with the lock of the CQ
}

// sendEntry is what a completion needs to know of its work request.
type sendEntry struct {
	wrid   uint64
	opcode verbs.WCOpcode
}

// powerOf2 is the least that is not below n.
func powerOf2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func (s *sendQueue) init(q *qp) {
	n := powerOf2(q.cap.MaxSendWR)
	s.q, s.id = q, uint64(q.id)<<32
	s.ents, s.mask = make([]sendEntry, n), uint32(n-1)
	s.chain = (*[postBatch]C.struct_sl_send_wr)(C.calloc(postBatch, C.sizeof_struct_sl_send_wr))
	sges := max(1, q.cap.MaxSendSGE)
	s.sges = unsafe.Slice((*C.struct_sl_sge)(C.calloc(C.size_t(postBatch*sges), C.sizeof_struct_sl_sge)), postBatch*sges)
	if n := q.cap.MaxInlineData; n > 0 {
		s.room = unsafe.Slice((*byte)(C.calloc(postBatch, C.size_t(n))), postBatch*n)
	}
	for i := range s.chain {
		s.chain[i].sg_list = &s.sges[i*sges]
		if i+1 < postBatch {
			s.chain[i].next = &s.chain[i+1]
		}
	}
}

func (s *sendQueue) free() {
	C.free(unsafe.Pointer(s.chain))
	C.free(unsafe.Pointer(unsafe.SliceData(s.sges)))
	C.free(unsafe.Pointer(unsafe.SliceData(s.room)))
	s.chain, s.sges, s.room = nil, nil, nil
}

func (s *sendQueue) reset() { wait.StoreRelease32(&s.tail, s.head) }

// sent frees the place of a work request that is complete, and those before it,
// and returns what is known of it. The caller holds the lock of the CQ.
func (q *qp) sent(place uint32) sendEntry {
	s := &q.send
	wait.StoreRelease32(&s.tail, s.tail+(place-s.tail)&s.mask+1)
	return s.ents[place&s.mask]
}

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	s := &q.send
	s.lock.Lock()
	done := 0
	for {
		n, err := s.fill(wrs[done:])
		if n > 0 {
			posted, perr := s.post(n)
			done += posted
			if posted < n {
				s.lock.Unlock()
				return done, perr
			}
		}
		if err != nil || n == 0 || done == len(wrs) {
			s.lock.Unlock()
			return done, err
		}
	}
}

// post posts the first n work requests of the chain; fewer without an error
// means that the device has no room.
func (s *sendQueue) post(n int) (int, error) {
	r := uint64(C.sl_post_send(s.q.h, C.uintptr_t(uintptr(unsafe.Pointer(s.chain))), C.int(n)))
	posted := int(uint32(r))
	s.head += uint32(posted)
	return posted, postError(s.q.c.device, "post send", r)
}

// postError is the error in what a post has returned; nil for a full queue.
func postError(device, op string, r uint64) error {
	if errno := syscall.Errno(r >> 32); errno != 0 && errno != syscall.ENOMEM {
		return failure(device, op, C.int(errno), "")
	}
	return nil
}

// fill turns work requests into a chain, as many as there is room for, and says
// what is wrong with the next.
func (s *sendQueue) fill(wrs []verbs.SendWR) (n int, err error) {
	q := s.q
	switch q.known() {
	case verbs.QPRTS, verbs.QPSQD, verbs.QPErr:
	default:
		if q.gone {
			return 0, verbs.Errorf(q.c.device, "post send", verbs.ErrClosed, "QP")
		}
		return 0, verbs.Errorf(q.c.device, "post send", verbs.ErrState, "QP %#06x is in %v", q.num, q.known())
	}
	room := q.cap.MaxSendWR - int(s.head-atomic.LoadUint32(&s.tail))
	for n < min(len(wrs), postBatch) {
		wr := &wrs[n]
		if err := s.check(wr); err != nil || n == room {
			return n, err
		}
		c := &s.chain[n]
		place := s.head + uint32(n)
		e := &s.ents[place&s.mask]
		e.wrid, e.opcode = wr.WRID, wr.Opcode.WCOpcode()
		c.wr_id = C.uint64_t(s.id | uint64(place&s.mask))
		c.opcode = C.int(wr.Opcode)
		c.send_flags = C.uint(wr.Flags)
		c.imm_data = C.uint32_t(swap32(wr.Imm))
		c.remote_addr = C.uint64_t(wr.RemoteAddr)
		if wr.Opcode < verbs.OpAtomicCmpAndSwp {
			*(*uint32)(unsafe.Pointer(&c.u)) = wr.RKey
		} else {
			*(*uint64)(unsafe.Pointer(&c.u)) = wr.CompareAdd
			c.swap = C.uint64_t(wr.Swap)
			c.atomic_rkey = C.uint32_t(wr.RKey)
		}
		c.num_sge = C.int(len(wr.SGList))
		first := (*C.struct_sl_sge)(unsafe.Pointer(c.sg_list))
		switch {
		case wr.Inline != nil:
			b := s.room[n*q.cap.MaxInlineData:][:len(wr.Inline)]
			copy(b, wr.Inline)
			c.num_sge = 1
			first.addr, first.length = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), C.uint32_t(len(b))
		case len(wr.SGList) == 1:
			g := &wr.SGList[0]
			first.addr, first.length, first.lkey = C.uint64_t(g.Addr), C.uint32_t(g.Length), C.uint32_t(g.LKey)
		default:
			// An SGE is the same to Go and to C.
			copy(unsafe.Slice((*verbs.SGE)(unsafe.Pointer(first)), len(wr.SGList)), wr.SGList)
		}
		n++
	}
	return n, nil
}

// check says whether wr may be posted at all. That the result of an atomic
// operation has 8 bytes not every device makes sure of.
func (s *sendQueue) check(wr *verbs.SendWR) error {
	c := &s.q.cap
	if wr.Flags&verbs.SendInline == 0 && wr.Inline == nil && wr.Opcode < verbs.OpAtomicCmpAndSwp && len(wr.SGList) <= c.MaxSendSGE {
		return nil
	}
	if err := soft.CheckSend(s.q.c.device, c, wr); err != nil || wr.Opcode < verbs.OpAtomicCmpAndSwp {
		return err
	}
	n := uint64(0)
	for i := range wr.SGList {
		n += uint64(wr.SGList[i].Length)
	}
	if n != 8 {
		return verbs.Errorf(s.q.c.device, "post send", verbs.ErrInvalid, "%v of %d bytes, want 8", wr.Opcode, n)
	}
	return nil
}

// recvQueue is what is posted to receive, of a queue pair.
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
	wrs  *[postBatch]C.struct_sl_recv_wr
	sges []C.struct_sl_sge
	each int
}

func (c *recvChain) init(id uint32, sges int) {
	c.id, c.each = receiveBit|uint64(id)<<32, max(1, sges)
	c.wrs = (*[postBatch]C.struct_sl_recv_wr)(C.calloc(postBatch, C.sizeof_struct_sl_recv_wr))
	c.sges = unsafe.Slice((*C.struct_sl_sge)(C.calloc(C.size_t(postBatch*c.each), C.sizeof_struct_sl_sge)), postBatch*c.each)
	for i := range c.wrs {
		c.wrs[i].sg_list = &c.sges[i*c.each]
		if i+1 < postBatch {
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
		for n < min(len(wrs)-done, postBatch) {
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
			return done, postError(q.c.device, op, res)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func checkRecv(device string, sges int, wr *verbs.RecvWR) error {
	if len(wr.SGList) > sges {
		return verbs.Errorf(device, "post receive", verbs.ErrInvalid, "%d SGEs, queue has at most %d", len(wr.SGList), sges)
	}
	return nil
}
