package roce

import "time"

// pace is how fast a requester sends: a window in packets, after the congestion
// control of Swift (Kumar et al., "Swift: Delay is Simple and Effective for
// Congestion Control in the Datacenter", SIGCOMM 2020, algorithm 1): additive
// increase while the round trip is below a target, decrease in proportion to how
// far it is above, at most once in a round trip.
//
// Two things are otherwise. The target is relative to the shortest round trip seen,
// as nobody configures it here, with an allowance for peers without an adapter that
// answer when they are scheduled. And loss alone does not slow down: a window
// that is halved for each lost packet does not fill a link that loses one in a
// hundred, whatever the cause. Only if more than one in ten of a thousand is lost is
// that taken for a sign of congestion; and a time-out is, unless it turns out that the
// peer only had no CPU. So that the delay does not say the same of each loss, the round
// trip of a packet ends when the peer has it, not when it has what is missing before it.
//
// A path can become longer for good. Round trips that stay too long while little is on
// its way are taken for that, as nothing that the window does makes them shorter.
type pace struct {
	window float64
	limit  float64 // packets

	srtt, rttvar, least time.Duration
	sampled             bool
	timing              bool
	timedPSN            uint32
	timedAt             int64
	cutAt               int64 // when the window was decreased last

	before float64 // the window before the time-outs since the peer acknowledged something; 0: none

	longSince int64         // since when round trips are too long with a small window; 0: they are not
	longLeast time.Duration // the shortest of those

	sent, lost uint32 // packets since the loss was looked at last
}

// Parameters; those of Swift have its values.
const (
	aiPackets = 1.0 // additive increase in a round trip
	beta      = 0.8 // multiplicative decrease constant
	maxCut    = 0.5 // largest share of the window that one decrease takes away
	// slack is how much longer than the shortest round trip one may take without
	// being a sign of congestion.
	slack = 500 * time.Microsecond
	// lossPeriod is over how many packets the loss is looked at: of fewer, one in ten may
	// be missing by chance where one in twenty is lost.
	lossPeriod = 1024
	// lossLimit is the share above which it counts, as one in so many.
	lossLimit = 10
	// firstWindow is where a connection begins, in packets.
	firstWindow = 32
	// leastWindow is what loss and marks leave of a window, in packets. A delay and a
	// time-out leave more: either may be that of an end that has no CPU, which a smaller
	// window makes longer still; and time-outs that follow each other take longer each time.
	leastWindow   = 2
	leastDelayed  = 16
	leastTimedOut = 8
	// longFor is after how long the path is taken for a longer one: longer than a peer
	// without an adapter is somewhere else, of which the shortest round trip is free then.
	longFor = 100 * time.Millisecond
	// leastTimeout bounds the time after which packets are sent again: a peer without
	// an adapter may be somewhere else for so long.
	leastTimeout = 2 * time.Millisecond
)

func newPace(limit int) pace {
	l := float64(min(max(limit, 2), windowPackets-1))
	return pace{window: min(firstWindow, l), limit: l}
}

// packets is how many may be on their way.
func (p *pace) packets() uint32 { return uint32(p.window) }

// timed begins to measure the round trip of a packet, unless another one is.
func (p *pace) timed(psn uint32, now int64) {
	if !p.timing {
		p.timing, p.timedPSN, p.timedAt = true, psn, now
	}
}

func (p *pace) untime() { p.timing = false }

// sample ends the measurement if everything before psn is acknowledged and the
// packet is among that.
func (p *pace) sample(psn uint32, now int64) (time.Duration, bool) {
	if !p.timing || !before(p.timedPSN, psn) {
		return 0, !p.timing && p.sampled
	}
	p.timing = false
	rtt := time.Duration(max(now-p.timedAt, 1))
	if !p.sampled {
		p.sampled, p.srtt, p.rttvar, p.least = true, rtt, rtt/2, rtt
		return rtt, true
	}
	// RFC 6298.
	d := p.srtt - rtt
	if d < 0 {
		d = -d
	}
	p.rttvar += (d - p.rttvar) / 4
	p.srtt += (rtt - p.srtt) / 8
	p.least = min(p.least, rtt)
	return rtt, true
}

// acked adapts the window to n packets that were acknowledged after a round trip
// of rtt; 0: it was not measured.
func (p *pace) acked(n uint32, rtt time.Duration, now int64) {
	if lossy := p.lost > lossPeriod/lossLimit; lossy || p.sent >= lossPeriod {
		if lossy {
			p.cut(maxCut, leastWindow, now)
		}
		p.sent, p.lost = 0, 0
	}
	target := p.least + slack
	if rtt <= target {
		if rtt > 0 {
			p.longSince = 0
		}
		p.window = min(p.window+aiPackets*float64(n)/p.window*growth(p), p.limit)
		return
	}
	p.cut(min(beta*float64(rtt-target)/float64(rtt), maxCut), leastDelayed, now)
	p.relearn(rtt, now)
}

// relearn takes note of a round trip that was too long.
func (p *pace) relearn(rtt time.Duration, now int64) {
	switch {
	case p.window >= leastDelayed+2: // a cut leaves leastDelayed, and one or two come until the next
		p.longSince = 0
	case p.longSince == 0:
		p.longSince, p.longLeast = now, rtt
	default:
		p.longLeast = min(p.longLeast, rtt)
		if now-p.longSince >= int64(longFor) {
			p.least, p.longSince = p.longLeast, 0
		}
	}
}

// growth lets a window that is far below its limit grow faster: until the first
// decrease by as many packets as were acknowledged, as every slow start does.
func growth(p *pace) float64 {
	if p.cutAt == 0 {
		return p.window
	}
	return 1
}

// cut takes a share of the window away, once in a round trip, and leaves so many packets.
func (p *pace) cut(share, least float64, now int64) {
	if p.cutAt != 0 && now-p.cutAt < int64(p.srtt) {
		return
	}
	p.cutAt = now
	p.window = max(p.window*(1-share), min(least, p.window))
}

// congested: a router on the way has marked a packet.
func (p *pace) congested(now int64) { p.cut(maxCut/2, leastWindow, now) }

// timedOut: nothing came back for too long.
func (p *pace) timedOut() {
	p.untime()
	if p.before == 0 {
		p.before = p.window
	}
	p.window = max(p.window*(1-maxCut), min(leastTimedOut, p.window))
	p.sent, p.lost = 0, 0
}

// progressed: the peer has acknowledged something. Where that is more than was sent again, what had
// been sent before the time-outs has arrived: the peer had no CPU, and nothing is congested (RFC 5682
// tells spurious time-outs by the same sign).
func (p *pace) progressed(more bool) {
	if more {
		p.window = max(p.window, p.before)
	}
	p.before = 0
}

// timeout is how long to wait for an acknowledgement (RFC 6298).
func (p *pace) timeout() time.Duration {
	if !p.sampled {
		return leastTimeout
	}
	return max(p.srtt+4*p.rttvar, leastTimeout)
}
