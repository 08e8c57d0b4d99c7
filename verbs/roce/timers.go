package roce

import (
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// armResend sets the timer after which what is not acknowledged is sent again.
func (q *qp) armResend(now int64) {
	r := &q.req
	if r.rnrUntil != 0 {
		return // that timer first
	}
	limit := int64(verbs.AckTimeout(q.Attr.Timeout))
	if limit == 0 {
		limit = int64(maxResend)
	}
	wait := firstResend
	if r.met {
		wait = r.pace.timeout()
	}
	after := int64(wait)
	if after < limit {
		after = min(after<<min(r.backoff, 16), limit)
	} else {
		after = limit
	}
	r.resendAt = now + after
	q.a.at(q, r.resendAt)
}

const (
	// firstResend is how soon the first packets of a connection are sent again: a
	// peer that is not in RTR yet drops them. It doubles each time.
	firstResend = time.Millisecond
	// maxResend bounds the time between two attempts where the QP has no timeout.
	maxResend = 500 * time.Millisecond
)

// armProbe sets the timer after which holes are filled again. That what filled them was lost
// too shows in later packets that arrive, but for when the window admits none: then a
// time-out would follow for each (RFC 8985 has its tail loss probe after as long for that).
func (q *qp) armProbe(now int64) {
	if r := &q.req; r.pace.sampled && r.rnrUntil == 0 {
		r.probeAt = now + int64(max(2*r.pace.srtt, leastProbe))
		q.a.at(q, r.probeAt)
	}
}

// leastProbe is less than a peer without an adapter may be somewhere else, but that costs no
// more than the packets of holes.
const leastProbe = 100 * time.Microsecond

// probe has all holes filled again.
func (q *qp) probe(now int64) {
	r := &q.req
	r.probeAt = 0
	for psn := r.una; before(psn, r.sackHigh); psn++ {
		if !r.has(psn) {
			r.sentAt[psn%windowPackets] = r.newest - reorder
		}
	}
	if before(r.una, r.sackHigh) {
		q.armProbe(now)
	}
}

// giveUpAt is when the peer counts as dead; 0: never. The architecture lets a timer
// run up to four times as long as its code says (9.7.6.1.3), which a peer without an
// adapter may need.
func (q *qp) giveUpAt() int64 {
	if q.Attr.Timeout == 0 {
		return 0
	}
	return q.req.progressAt + 4*int64(verbs.AckTimeout(q.Attr.Timeout))*int64(q.Attr.RetryCnt+1)
}

// expireRequester acts on the timers.
func (q *qp) expireRequester(s *soft.Sink, now int64) {
	r := &q.req
	if r.rnrUntil != 0 {
		if now >= r.rnrUntil {
			r.rnrUntil, r.progressAt = 0, now
		}
		return
	}
	if r.probeAt != 0 && now >= r.probeAt {
		q.probe(now)
	}
	if r.resendAt == 0 || now < r.resendAt {
		return
	}
	r.resendAt = 0
	if r.una == r.max {
		return
	}
	if until := q.giveUpAt(); until != 0 && now >= until {
		q.fail(s, verbs.WCRetryExcErr, vendorSilent)
		q.Events.Add(verbs.EventQPFatal, q)
		return
	}
	r.backoff++
	r.pace.timedOut()
	r.forgetArrived()
	q.goBack(r.una)
	q.armResend(now)
}

// unreachable: the peer's host says that nobody is there. It may be about to come, so
// that counts for little before the packet was sent some times.
func (q *qp) unreachable() {
	r := &q.req
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD || r.una == r.max {
		return
	}
	if r.refused++; r.refused > min(int(q.Attr.RetryCnt), enoughRefusals) {
		q.fail(nil, verbs.WCRetryExcErr, vendorGone)
		q.Events.Add(verbs.EventQPFatal, q)
	}
}

// peerGone: the peer's QP has left. That matters to what it has been asked for.
func (q *qp) peerGone(s *soft.Sink, psn uint32) {
	r := &q.req
	if st := q.State(); st != verbs.QPRTS && st != verbs.QPSQD {
		return
	}
	if p := extend(psn, r.una); !before(p, r.una) && before(p, r.max) {
		q.fail(s, verbs.WCRetryExcErr, vendorGone)
		q.Events.Add(verbs.EventQPFatal, q)
	}
}

// enoughRefusals is how often a host that has no such port is believed not to have
// it for a moment only.
const enoughRefusals = 3
