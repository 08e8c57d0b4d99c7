//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"errors"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// srq is a shared receive queue. Its receives complete in any order.
type srq struct {
	c    *vcontext
	h    C.uintptr_t
	id   uint32
	attr verbs.SRQAttr

	lock  soft.Lock
	chain recvChain
	ids   []uint64 // the user's
	free  []uint32 // places
}

func (p *pd) CreateSRQ(attr verbs.SRQAttr) (verbs.ProviderSRQ, error) {
	const op = "create SRQ"
	c := p.c
	if attr.MaxSGE > c.srqSGE {
		return nil, verbs.Errorf(c.device, op, verbs.ErrInvalid, "%d SGEs, limit of this device's SRQs is %d", attr.MaxSGE, c.srqSGE)
	}
	a := C.struct_sl_srq_attr{max_wr: C.uint32_t(attr.MaxWR), max_sge: C.uint32_t(attr.MaxSGE)}
	var errno C.int
	s := &srq{c: c, h: C.sl_create_srq(p.h, &a, &errno), attr: attr}
	if s.h == 0 {
		return nil, failure(c.device, op, errno, "%+v", attr)
	}
	destroy := func(err error) error {
		return errors.Join(err, failure(c.device, op, C.sl_destroy_srq(s.h), ""))
	}
	if attr.Limit > 0 {
		if err := s.modify(attr.Limit); err != nil {
			return nil, destroy(err)
		}
	}
	var err error
	if s.id, err = c.enlist(owner{srq: s}); err != nil {
		return nil, destroy(err)
	}
	s.chain.init(s.id, attr.MaxSGE)
	s.ids = make([]uint64, attr.MaxWR)
	for i := range s.ids {
		s.free = append(s.free, uint32(i))
	}
	c.own(s.h, s)
	return s, nil
}

// received frees the place of a receive, and returns the user's id.
func (s *srq) received(place uint32) uint64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.free = append(s.free, place)
	return s.ids[place]
}

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	const op = "post SRQ receive"
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.chain.wrs == nil {
		return 0, verbs.Errorf(s.c.device, op, verbs.ErrClosed, "SRQ")
	}
	done := 0
	for done < len(wrs) {
		var err error
		n, last := 0, len(s.free)
		for n < min(len(wrs)-done, C.batch) {
			wr := &wrs[done+n]
			if err = checkRecv(s.c.device, s.attr.MaxSGE, wr); err != nil || n == last {
				break
			}
			place := s.free[last-1-n]
			s.ids[place] = wr.WRID
			s.chain.set(n, place, wr)
			n++
		}
		if n == 0 {
			return done, err
		}
		res := uint64(C.sl_post_srq_recv(s.h, s.chain.ptr(), C.int(n)))
		posted := int(uint32(res))
		s.free = s.free[:last-posted]
		done += posted
		if posted < n {
			return done, postError(s.c.device, op, C.int(res>>32))
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *srq) Modify(limit int) error {
	if limit < 0 || limit > s.attr.MaxWR {
		return verbs.Errorf(s.c.device, "modify SRQ", verbs.ErrInvalid, "limit %d, must be 0 to %d", limit, s.attr.MaxWR)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.chain.wrs == nil {
		return verbs.Errorf(s.c.device, "modify SRQ", verbs.ErrClosed, "SRQ")
	}
	return s.modify(limit)
}

func (s *srq) modify(limit int) error {
	return failure(s.c.device, "modify SRQ", C.sl_modify_srq(s.h, C.uint32_t(limit)), "limit %d", limit)
}

func (s *srq) Query() (verbs.SRQAttr, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.chain.wrs == nil {
		return verbs.SRQAttr{}, verbs.Errorf(s.c.device, "query SRQ", verbs.ErrClosed, "SRQ")
	}
	var a C.struct_sl_srq_attr
	err := failure(s.c.device, "query SRQ", C.sl_query_srq(s.h, &a), "")
	return verbs.SRQAttr{MaxWR: s.attr.MaxWR, MaxSGE: s.attr.MaxSGE, Limit: int(a.srq_limit)}, err
}

func (s *srq) Close() error {
	s.c.disown(s.h)
	s.lock.Lock()
	defer s.lock.Unlock()
	err := failure(s.c.device, "close SRQ", C.sl_destroy_srq(s.h), "")
	s.c.delist(s.id)
	s.chain.free()
	return err
}
