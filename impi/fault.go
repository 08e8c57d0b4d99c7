package impi

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// A member that waits in a collective for one that has failed must not wait for ever. A member that
// meets an error therefore notifies all others in the collective context, and a notified member
// runs no more collectives of this communicator. A member that dies notifies none: those that
// depend on it lose their connection to it and notify the others.

// errMember: another member has failed with an error that is not one of ours.
var errMember = errors.New("the member has failed")

// reasons are the errors in a notice, by number; 0: any other.
var reasons = []error{1: ErrMismatch, ErrPeerDied, reasonLeft: ErrPeerLeft, ErrUnreachable, ErrTimeout, ErrProtocol, ErrOverflow}

const reasonLeft = 3

// A notice of a fault is, big-endian, the rank at fault as uint32, a reason in one byte, and text.
const (
	noticeHead = 5
	noticeMost = 512
)

// appendNotice encodes the notice that a member, me, sends of an error that it has met.
func appendNotice(b []byte, me int, err error) []byte {
	rank, reason := me, uint8(0)
	if e := (*Error)(nil); errors.As(err, &e) && e.Rank >= 0 {
		rank = e.Rank
	}
	for i, r := range reasons {
		if r != nil && errors.Is(err, r) {
			reason = uint8(i)
			break
		}
	}
	if errors.Is(err, ErrClosed) { // closing the job is leaving
		reason = reasonLeft
	}
	text := err.Error()
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = append(b, reason)
	return append(b, text[:min(len(text), noticeMost-noticeHead)]...)
}

// parseNotice decodes the notice of a member, from, of size members.
func parseNotice(b []byte, from, size int) error {
	if len(b) < noticeHead || len(b) > noticeMost || int(b[4]) >= len(reasons) || binary.BigEndian.Uint32(b) >= uint32(size) {
		return &Error{Op: "collective", Rank: from, Tag: -1, Err: fmt.Errorf("%w: malformed fault notice of %d bytes", ErrProtocol, len(b))}
	}
	why := cmp.Or(reasons[b[4]], errMember)
	return &Error{Op: "collective", Rank: int(binary.BigEndian.Uint32(b)), Tag: -1, Err: fmt.Errorf("%w: rank %d reports: %s", why, from, b[noticeHead:])}
}

// fail ends the collectives of the communicator, unless err is nil, and notifies the other members.
// It returns err. The caller holds the lock.
func (c *Comm) fail(err error) error {
	if err == nil {
		return nil
	}
	if o := c.calls.outer; o != nil {
		if e := (*Error)(nil); errors.As(err, &e) && e.Rank >= 0 {
			err = &Error{Op: e.Op, Rank: o.rankOf(c.ranks[e.Rank]), Tag: e.Tag, Err: e.Err}
		}
		return o.fail(err)
	}
	k := &c.calls
	if k.fault != nil {
		return k.fault
	}
	k.fault, k.plans = err, nil
	c.e.log.Debug("impi: a communicator has failed", "size", len(c.ranks), "rank", c.me, "error", err)
	notice := appendNotice(nil, c.me, err)
	for i := range c.ranks {
		if i != c.me && !c.job.Foreign(int(c.ranks[i])) {
			if r, err := c.startSend(c.coll, notice, nil, i, tagFault, false); err == nil {
				c.abandon(r)
			}
		}
	}
	return err
}

// failed returns the error of a communicator that has failed.
func (c *Comm) failed() error {
	if o := c.calls.outer; o != nil {
		return o.failed()
	}
	return c.calls.fault
}

// toldOfFault says whether the communicator has failed, here or at another member. The caller holds
// the lock.
func (c *Comm) toldOfFault() bool {
	k := &c.calls
	if k.outer != nil {
		return k.outer.toldOfFault()
	}
	for k.fault == nil && c.e.broken == nil && len(c.ranks) > 1 {
		r := k.notice
		if r == nil {
			k.told = make([]byte, noticeMost)
			var err error
			if k.notice, err = c.startReceive(c.coll, k.told, nil, AnySource, tagFault); err != nil {
				if c.e.closing {
					k.fault, k.plans = jobError("collective", ErrClosed), nil
				}
				return k.fault != nil
			}
			continue
		}
		if r.state != done {
			return false
		}
		st, err := r.status, r.err
		c.e.release(r)
		k.notice = nil
		// A receive from any source fails for each member that is lost. That alone is no fault: the
		// member may have completed all collectives.
		if err == nil {
			k.fault, k.plans = parseNotice(k.told[:st.Len], st.Source, len(c.ranks)), nil
		}
	}
	return k.fault != nil
}

var _ coll.Carrier = courier{}
