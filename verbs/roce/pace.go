package roce

import "time"

// pace limits how fast a requester sends: a window in packets, after the congestion control of
// Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
// Datacenter", SIGCOMM 2020, algorithm 1). The window grows additively while the round trip is
// below a target. It shrinks in proportion to the excess, at most once in a round trip.
//
// Two things differ. First, the target is relative to the shortest round trip seen, as it is not
// configured here, with an allowance for peers without an adapter, which answer when they are
// scheduled. Second, loss alone does not slow down: a window halved for each lost packet does not
// fill a link that loses one in a hundred, whatever the cause. Only a loss of more than one in ten,
// over a thousand packets, counts as congestion. So does a timeout, unless it turns out that the
// peer only had no CPU. To keep each loss from showing as a delay, the round trip of a packet ends
// when the peer has it, not when the peer also has missing packets before it.
//
// A path can become longer permanently. Round trips that stay too long while little is in flight
// are taken to mean that, since no window makes them shorter.
type pace struct {
	window float64
	limit  float64 // packets

	srtt, rttvar, least time.Duration
	sampled             bool
	timing              bool
	timedPSN            uint32
	timedAt             int64
	cutAt               int64 // when the window was decreased last

	before float64 // the window before the timeouts since the peer acknowledged something; 0: none

	longSince int64         // since when round trips are too long with a small window; 0: they are not
	longLeast time.Duration // the shortest of those

	sent, lost uint32 // packets since the loss was last checked
}

// Parameters; those of Swift have its values.
const (
	aiPackets = 1.0 // additive increase in a round trip
	beta      = 0.8 // multiplicative decrease constant
	maxCut    = 0.5 // largest share of the window that one decrease takes away
	// slack is how much a round trip may exceed the shortest one without indicating
	// congestion.
	slack = 500 * time.Microsecond
	// lossPeriod is the number of packets over which loss is measured: of fewer, one in ten
	// may be missing by chance if one in twenty is lost.
	lossPeriod = 1024
	// lossLimit is the share above which loss counts, as one in lossLimit.
	lossLimit = 10
	// firstWindow is the initial window of a connection, in packets.
	firstWindow = 32
	// leastWindow is the smallest window that loss and marks leave, in packets. A delay and a
	// timeout leave more: either may come from an end without a CPU, which a smaller window
	// would prolong; and consecutive timeouts take longer each time anyway.
	leastWindow   = 2
	leastDelayed  = 16
	leastTimedOut = 8
	// longFor is the time after which the path is taken to be a longer one. A peer without an
	// adapter is not descheduled for so long, so the shortest round trip of that time is free
	// of that.
	longFor = 100 * time.Millisecond
	// leastTimeout is the shortest time after which packets are resent: a peer without an
	// adapter may be descheduled for so long.
	leastTimeout = 2 * time.Millisecond
)

func newPace(limit int) pace {
	l := float64(min(max(limit, 2), windowPackets-1))
	return pace{window: min(firstWindow, l), limit: l}
}

// packets returns how many packets may be in flight.
func (p *pace) packets() uint32 { return uint32(p.window) }

// timed starts to measure the round trip of a packet, unless one is being measured.
func (p *pace) timed(psn uint32, now int64) {
	if !p.timing {
		p.timing, p.timedPSN, p.timedAt = true, psn, now
	}
}

func (p *pace) untime() { p.timing = false }

// sample ends the measurement if the measured packet is before psn: everything before psn is
// acknowledged.
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

// acked adapts the window to n packets acknowledged after a round trip of rtt; 0: not measured.
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

// relearn records a round trip that was too long.
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

// growth lets a window far below its limit grow faster: until the first decrease, by as many
// packets as were acknowledged, as in any slow start.
func growth(p *pace) float64 {
	if p.cutAt == 0 {
		return p.window
	}
	return 1
}

// cut shrinks the window by a share, once in a round trip, but not below least packets.
func (p *pace) cut(share, least float64, now int64) {
	if p.cutAt != 0 && now-p.cutAt < int64(p.srtt) {
		return
	}
	p.cutAt = now
	p.window = max(p.window*(1-share), min(least, p.window))
}

// congested: a router on the way has marked a packet.
func (p *pace) congested(now int64) { p.cut(maxCut/2, leastWindow, now) }

// timedOut: there was no acknowledgement for too long.
func (p *pace) timedOut() {
	p.untime()
	if p.before == 0 {
		p.before = p.window
	}
	p.window = max(p.window*(1-maxCut), min(leastTimedOut, p.window))
	p.sent, p.lost = 0, 0
}

// progressed: the peer has acknowledged packets. If these are more than were resent, packets sent
// before the timeouts have arrived: the peer had no CPU, and there is no congestion (RFC 5682
// detects spurious timeouts in the same way).
func (p *pace) progressed(more bool) {
	if more {
		p.window = max(p.window, p.before)
	}
	p.before = 0
}

// timeout returns how long to wait for an acknowledgement (RFC 6298).
func (p *pace) timeout() time.Duration {
	if !p.sampled {
		return leastTimeout
	}
	return max(p.srtt+4*p.rttvar, leastTimeout)
}
