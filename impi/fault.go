package impi

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// Who waits in a collective for a member that has failed must not wait for ever. So
// whoever meets an error tells all other members, in the collective context, and who
// is told does no more collectives of this communicator. Members that die tell
// nobody: who depends on one loses the connection to it and tells the others.

// errMember: another member has failed, with what is none of our errors.
var errMember = errors.New("the member has failed")

// reasons are the errors that members tell each other, by number; 0: another.
var reasons = []error{1: ErrMismatch, ErrPeerDied, reasonLeft: ErrPeerLeft, ErrUnreachable, ErrTimeout, ErrProtocol, ErrOverflow}

const reasonLeft = 3

// A notice of a fault is, big-endian, the rank whose fault it is as uint32, a reason in
// one byte, and text.
const (
	noticeHead = 5
	noticeMost = 512
)

// appendNotice appends what members are told of an error; me is the rank of who has
// met it.
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
	if errors.Is(err, ErrClosed) { // who closes its job leaves
		reason = reasonLeft
	}
	text := err.Error()
	b = binary.BigEndian.AppendUint32(b, uint32(rank))
	b = append(b, reason)
	return append(b, text[:min(len(text), noticeMost-noticeHead)]...)
}

// parseNotice reads what a member of so many has told.
func parseNotice(b []byte, from, size int) error {
	if len(b) < noticeHead || len(b) > noticeMost || int(b[4]) >= len(reasons) || binary.BigEndian.Uint32(b) >= uint32(size) {
		return &Error{Op: "collective", Rank: from, Tag: -1, Err: fmt.Errorf("%w: notice of %d bytes", ErrProtocol, len(b))}
	}
	why := cmp.Or(reasons[b[4]], errMember)
	return &Error{Op: "collective", Rank: int(binary.BigEndian.Uint32(b)), Tag: -1, Err: fmt.Errorf("%w: rank %d says: %s", why, from, b[noticeHead:])}
}

// fail ends the collectives of the communicator, unless err is nil: the others are
// told why. It returns err. The caller holds the lock.
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

// failed is the error of a communicator that has failed.
func (c *Comm) failed() error {
	if o := c.calls.outer; o != nil {
		return o.failed()
	}
	return c.calls.fault
}

// toldOfFault says whether the communicator has failed, here or at another member. The
// caller holds the lock.
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
				return false
			}
			continue
		}
		if r.state != done {
			return false
		}
		st, err := r.status, r.err
		c.e.release(r)
		k.notice = nil
		// A receive from anybody fails for each member that is lost. That alone is no
		// fault: it may have been through with all collectives.
		if err == nil {
			k.fault, k.plans = parseNotice(k.told[:st.Len], st.Source, len(c.ranks)), nil
		}
	}
	return k.fault != nil
}

var _ coll.Carrier = courier{}
