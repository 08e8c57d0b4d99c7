package channel

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Counts counts the messages of one direction between this node and a peer.
type Counts struct {
	Messages uint64 // sends started, or receives completed without an error
	Bytes    uint64
	Eager    uint64 // of Messages: completed at the sender without its receiver, copied at both ends
	Packed   uint64 // of the others: packed by the sender, unpacked by the receiver, via intermediate memory
	Read     uint64 // of the others: read by the receiver through a queue pair (RDMA_READ)
	Waited   uint64 // sends that had a connection but had to wait for room
}

type counts struct{ Counts }

func (c *counts) add(h *Handle) {
	c.Messages++
	c.Bytes += uint64(h.shape.Len())
}

func (c *Counts) sum(o *Counts) {
	c.Messages += o.Messages
	c.Bytes += o.Bytes
	c.Eager += o.Eager
	c.Packed += o.Packed
	c.Read += o.Read
	c.Waited += o.Waited
}

// PeerStats describes the state of a peer and its traffic with this node.
type PeerStats struct {
	Rank           int
	Provider       string    // "self", empty before the wire-up
	Device         string    // of the provider, on this side; empty with "self"
	State          string    // "idle", "connecting", "up" or the error that ended it
	Refused        []Refusal // in the order in which they were tried
	Retries        uint64    // failed attempts to connect: addresses and providers
	Wakes          uint64    // how often this node woke the sleeping peer; not over a network
	Sent, Received Counts
}

// Refusal says why a provider, or a pair of RDMA devices of it, does not reach a peer,
// as far as this side knows; the peer may know more. Providers after the chosen one are
// not tried and not listed, nor are those without a device here ([verbs.Providers] has
// the reason).
type Refusal struct {
	Provider string
	Device   string // on this side; empty if the attempt reached no device
	Reason   string // at most 1024 bytes
}

// Bounds on the failed attempts that are kept: at the higher rank, the peer controls
// their number.
const (
	maxRefused = 32
	maxReason  = 1024
)

// refused records a failed attempt; identical ones are kept once. The caller holds mu.
func (p *peer) refused(r Refusal) {
	if len(r.Reason) > maxReason {
		r.Reason = strings.ToValidUTF8(r.Reason[:maxReason], "")
	}
	if len(p.refusals) < maxRefused && !slices.Contains(p.refusals, r) {
		p.refusals = append(p.refusals, r)
	}
}

// Stats describes the activity of a node so far.
type Stats struct {
	Sleeps uint64 // how often a waiting goroutine went to sleep
	Late   uint64 // sleeps that timed out although what they awaited was there: a defect of Sluice; please report it. Not counted over a network
	Peers  []PeerStats
}

// Stats returns the statistics of the node, with its peers in rank order.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	peers := n.allPeers()
	n.mu.Unlock()
	slices.SortFunc(peers, func(a, b *peer) int { return cmp.Compare(a.rank, b.rank) })
	s := Stats{Sleeps: n.sleeps.Load(), Late: n.sleepers.Late()}
	for _, p := range peers {
		s.Peers = append(s.Peers, p.stats())
	}
	return s
}

func (p *peer) stats() PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStats{Rank: p.rank, State: "idle", Refused: slices.Clone(p.refusals), Retries: p.retries.Load(), Wakes: p.bell.wakes.Load()}
	switch {
	case p.rank == p.node.rank:
		s.Provider = "self"
	case p.link != nil:
		s.Provider, s.Device = p.link.dev.provider(), p.link.dev.ctx.Device().Name()
	}
	switch p.state.Load() {
	case peerConnecting:
		s.State = "connecting"
	case peerUp:
		s.State = "up"
	case peerFailed:
		s.State = (*p.err.Load()).Error()
	}
	if q := p.queue; q != nil {
		q.lock.Lock()
		defer q.lock.Unlock()
		s.Sent.sum(&q.past.sent)
		s.Received.sum(&q.past.received)
		for _, o := range q.out {
			s.Sent.sum(&o.sent.Counts)
		}
		for _, i := range q.in {
			s.Received.sum(&i.received.Counts)
		}
		return s
	}
	s.Sent.sum(&p.past.sent)
	s.Received.sum(&p.past.received)
	for _, o := range p.sends {
		o.lock.Lock()
		s.Sent.sum(&o.sent.Counts)
		o.lock.Unlock()
	}
	for _, i := range p.receives {
		i.lock.Lock()
		s.Received.sum(&i.received.Counts)
		i.lock.Unlock()
	}
	return s
}

// Report writes one line for each pending operation (peer, stream, number of the start,
// length, state, age), for each call of World, Split and Exchange that waits for other
// ranks and what it waits for, for each group in which a goroutine sleeps with its
// collective, and for each peer that is not idle.
func (n *Node) Report(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d of %d:\n", n.rank, n.size)
	for _, p := range n.Stats().Peers {
		fmt.Fprintf(&b, "  rank %d, %s %s: sent %d messages, %d bytes; received %d, %d bytes; %d waited for room; woken %d times, %d failed attempts to connect\n", p.Rank, p.Provider, p.State,
			p.Sent.Messages, p.Sent.Bytes, p.Received.Messages, p.Received.Bytes, p.Sent.Waited, p.Wakes, p.Retries)
	}
	for _, line := range n.pending() {
		b.WriteString("  " + line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

var phaseNames = map[uint32]string{
	phasePending: "waits for the connection or for room", phaseOffered: "waits for the receiver", phaseWaiting: "waits for the sender",
}

// describeState says what an active handle waits for; empty if it has completed.
func (h *Handle) describeState(now uint32) string {
	unlock := h.lockStream()
	defer unlock()
	state, active := phaseNames[h.phase.Load()]
	if !active {
		return ""
	}
	if h.copying || h.kind == kindSend && h.out.busy == h {
		state = "is being copied here"
	}
	prep, stream := "to", uint32(0)
	if h.kind == kindReceive {
		prep, stream = "from", h.in.number
	} else {
		stream = h.out.number
	}
	return fmt.Sprintf("%v %s rank %d, stream %d, start %d, %d bytes: %s, for %d s", h.kind, prep, h.peer().rank, stream, h.k, h.shape.Len(), state, max(now, h.began)-h.began)
}

// lockStream takes the lock that guards the handle's starts.
func (h *Handle) lockStream() (unlock func()) {
	lock := func(q *queue, l *wait.Lock) func() {
		if q != nil {
			l = &q.lock
		}
		l.Lock()
		return l.Unlock
	}
	if h.kind == kindSend {
		return lock(h.out.q.Load(), &h.out.lock)
	}
	return lock(h.in.q.Load(), &h.in.lock)
}

// begin numbers a start. The caller holds the lock of the stream.
func (h *Handle) begin(k uint64) {
	h.k = k
	wait.StoreRelaxed32(&h.began, h.node.ticks.Load())
}

// oversee counts seconds, frees what other members of closed groups have left since, and writes the
// report on a signal or when progress stalls.
func (n *Node) oversee(signals chan os.Signal) {
	defer signal.Stop(signals)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last Counts
	still := time.Now()
	for {
		select {
		case <-n.life.Done():
			return
		case <-signals:
			n.Report(n.opt.report)
		case now := <-tick.C:
			n.ticks.Add(1)
			if err := n.freeSegments(); err != nil {
				n.log.Warn("channel: free the memory of a closed group", "error", err)
			}
			n.tendSpares()
			if err := n.endRests(true); err != nil {
				n.log.Warn("channel: free the memory of a stream", "error", err)
			}
			if n.opt.stall <= 0 {
				continue
			}
			var sum Counts
			for _, p := range n.Stats().Peers {
				sum.sum(&p.Sent)
				sum.sum(&p.Received)
			}
			switch {
			case sum != last || len(n.pending()) == 0:
				last, still = sum, now
			case now.Sub(still) >= n.opt.stall:
				n.Report(n.opt.report)
				still = now
			}
		}
	}
}
