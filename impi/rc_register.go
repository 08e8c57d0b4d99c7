package impi

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/verbs"
)

// registerAside is the number of bytes from which memory is registered by a goroutine without the
// lock, if the device pins memory: pinning a few MiB takes a millisecond.
const registerAside = 16 << 20

// unkeyed is a piece of a request's memory, with its keys or still to be registered.
type unkeyed struct {
	keyed
	b  []byte  // nil with keys
	of *Memory // to be registered as a whole, for all messages; nil: b, for this one
}

// unkeyed lists the next n bytes of a request's memory. The caller holds the lock.
func (c *rcCarrier) unkeyed(r *request, n uint64) (list []unkeyed) {
	for i, from := r.piece, r.within; i < len(r.vec) && n > 0; i, from = i+1, 0 {
		b := r.vec[i][from:]
		if len(b) == 0 {
			continue
		}
		b = b[:min(uint64(len(b)), n)]
		n -= uint64(len(b))
		m := c.l.e.find(b)
		if m != nil {
			if k, ok := c.d.keyedOf(b, m); ok {
				list = append(list, unkeyed{keyed: k})
				continue
			}
			c.d.makeRoom()
		}
		list = append(list, unkeyed{b: b, of: m})
	}
	return list
}

// unregistered returns how many bytes are to be registered for the next n bytes of a request's memory: all
// of Alloc memory that others have made. The caller holds the lock.
func (c *rcCarrier) unregistered(r *request, n uint64) (count uint64) {
	for i, from := r.piece, r.within; i < len(r.vec) && n > 0; i, from = i+1, 0 {
		b := r.vec[i][from:]
		b = b[:min(uint64(len(b)), n)]
		n -= uint64(len(b))
		if len(b) == 0 {
			continue
		}
		if m := c.l.e.find(b); m == nil {
			count += uint64(len(b))
		} else if _, ok := m.regs.On(c.d); !ok {
			count += uint64(len(m.buf))
		}
	}
	return count
}

// register registers the pieces without keys. It does not need the lock.
func (d *rcDevice) register(t *rcTransfer, list []unkeyed, access verbs.AccessFlags) error {
	if len(list) > maxRCPieces {
		return fmt.Errorf("the memory has too many pieces: %d", len(list))
	}
	for _, u := range list {
		var err error
		switch {
		case u.b == nil:
		case u.of != nil:
			if _, err = u.of.regs.Add(d, func() (*verbs.MR, error) { return d.regMR(u.of.buf, verbs.AccessAll) }); err == nil {
				u.keyed, _ = d.keyedOf(u.b, u.of)
			}
		default:
			var mr *verbs.MR
			if mr, err = d.regMR(u.b, access); err == nil {
				t.mrs = append(t.mrs, mr)
				u.keyed = keyed{mr.Addr(), uint64(mr.Len()), mr.LKey(), mr.RKey()}
			}
		}
		if err != nil {
			t.free()
			t.local = nil
			return err
		}
		t.local = append(t.local, u.keyed)
	}
	return nil
}

// registered records the outcome of register and reports whether it succeeded.
func (c *rcCarrier) registered(t *rcTransfer, err error) bool {
	if err != nil {
		c.l.e.log.Debug("impi: memory cannot be registered", "error", err)
		return false
	}
	c.l.e.stats.Registered += uint64(len(t.mrs))
	return true
}

// registerNow determines the keys of the next n bytes of a request's memory and registers the
// pieces without keys.
func (c *rcCarrier) registerNow(t *rcTransfer, r *request, n uint64, access verbs.AccessFlags) bool {
	list := c.unkeyed(r, n)
	err := c.d.register(t, list, access)
	if c.refused(err, r, n) {
		err = c.d.register(t, list, access)
	}
	return c.registered(t, err)
}

// refused says whether to try again after a registration has failed: the device has had no room, and idle
// registrations have been given up for it. The caller holds the lock.
func (c *rcCarrier) refused(err error, r *request, n uint64) bool {
	return errors.Is(err, verbs.ErrNoMemory) && c.d.spare(int(c.unregistered(r, n)))
}

// registerThen does the same without the lock if it takes long, and then calls then with the lock
// held, unless the link is lost meanwhile. It returns false, having done nothing, if registration
// is quick. Until then is called the request does not change or complete.
func (c *rcCarrier) registerThen(t *rcTransfer, r *request, n uint64, access verbs.AccessFlags, then func(ok bool)) bool {
	if c.d.maps || c.unregistered(r, n) < registerAside {
		return false
	}
	e, list := c.l.e, c.unkeyed(r, n)
	r.fencing = true
	e.fences++
	e.wg.Go(func() {
		err := c.d.register(t, list, access)
		e.lock.Lock()
		defer e.lock.Unlock()
		if c.refused(err, r, n) {
			e.lock.Unlock()
			err = c.d.register(t, list, access)
			e.lock.Lock()
		}
		r.fencing = false
		e.fences--
		defer e.ring()
		ok := c.registered(t, err)
		if c.l.err != nil {
			t.free()
			r.transfer = nil
			e.finish(r, c.l.err)
			return
		}
		then(ok)
		c.l.push()
	})
	return true
}

// syncAck tells the sender of a message that a receive has matched it.
func (p *pair) syncAck(srqid uint64, r *request) {
	if c, ok := p.link.carrier.(*rcCarrier); ok && p.link.err == nil && r.moved < r.length && r.moved < r.total {
		t := &rcTransfer{}
		if c.registerThen(t, r, min(r.length, r.total)-r.moved, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, func(ok bool) {
			if ok {
				r.transfer = t
			}
			p.answer(packet.SyncAck, srqid, r)
		}) {
			return
		}
	}
	p.answer(packet.SyncAck, srqid, r)
}
