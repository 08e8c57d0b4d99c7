package impi

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/packet"
)

// What is matched with what, and how many packets may be where. A fault here has a job wait for
// what never comes; the tests of this file name it, and run before those of jobs.

// TestMatcher compares the matcher with a list of receives and one of messages that
// are looked through from the beginning: with a tag that no wildcard takes, and without.
func TestMatcher(t *testing.T) {
	type entry struct {
		src, tag int32
		m        *message
		r        *request
	}
	r := rand.New(rand.NewPCG(5, 5))
	const procs = 4
	for i := range 200 {
		c := &matcher{from: make([]source, procs), reserved: int32(i % 2)}
		takes := func(src, tag int32, m entry) bool {
			return (src < 0 || src == m.src) && (tag == m.tag || tag < 0 && (c.reserved == 0 || m.tag != c.reserved))
		}
		var posted, arrived []entry
		for range 200 {
			src, tag := r.Int32N(procs), r.Int32N(3)
			if r.IntN(2) == 0 { // a message comes
				i := slices.IndexFunc(posted, func(p entry) bool { return takes(p.src, p.tag, entry{src: src, tag: tag}) })
				got := c.take(src, tag)
				if i < 0 {
					require.Nil(t, got, "a receive takes a message from %d with tag %d, %d is reserved", src, tag, c.reserved)
					m := &message{src: src, tag: tag}
					c.pushMessage(m)
					arrived = append(arrived, entry{src: src, tag: tag, m: m})
					continue
				}
				require.Same(t, posted[i].r, got, "a message from %d with tag %d meets another receive", src, tag)
				posted = slices.Delete(posted, i, i+1)
				continue
			}
			if r.IntN(3) == 0 {
				src = AnySource
			}
			if r.IntN(3) == 0 {
				tag = AnyTag
			}
			i := slices.IndexFunc(arrived, func(m entry) bool { return takes(src, tag, m) })
			got := c.find(src, tag)
			if i < 0 {
				require.Nil(t, got, "a receive from %d of tag %d takes a message, %d is reserved", src, tag, c.reserved)
				q := &request{peer: src, tag: tag}
				c.post(q)
				posted = append(posted, entry{src, tag, nil, q})
			} else {
				require.Same(t, arrived[i].m, got, "a receive from %d of tag %d meets another message", src, tag)
				c.takeMessage(got)
				arrived = slices.Delete(arrived, i, i+1)
			}
			if len(posted) > 0 && r.IntN(5) == 0 { // one is taken back
				i := r.IntN(len(posted))
				posted[i].r.list.remove(posted[i].r)
				posted = slices.Delete(posted, i, i+1)
			}
		}
		for c.wild.head != nil { // those from any source end in their order
			i := slices.IndexFunc(posted, func(p entry) bool { return p.src < 0 })
			require.Same(t, posted[i].r, c.wild.pop(), "a receive posted later ends first")
			posted = slices.Delete(posted, i, i+1)
		}
	}
}

// tape is a carrier that notes what it is given, and has room for so many packets.
type tape struct {
	left int
	sent []noted
}

// noted is a packet: of a send, or an answer with its receive, or an acknowledgement.
type noted struct {
	t     packet.Type
	r     *request
	srqid uint64
	n     uint64
}

func (c *tape) note(p noted)                             { c.left--; c.sent = append(c.sent, p) }
func (c *tape) room() bool                               { return c.left > 0 }
func (c *tape) data(r *request, t packet.Type, n uint64) { c.note(noted{t: t, r: r, n: n}) }
func (c *tape) rest(*request) (counts, ok bool)          { return false, false }
func (c *tape) control(_ *pair, t packet.Type, srqid uint64, r *request) {
	c.note(noted{t: t, r: r, srqid: srqid})
}
func (c *tape) flush() {}
func (c *tape) fini()  {}
func (c *tape) close() {}

// flight is what a pair is to do, as a list that is looked through.
type flight struct {
	ackMark, hiWater uint32
	sends            []noted
	answers          []answer
	acks             int    // owed
	inFlight, came   uint32 // not acknowledged, of each way
}

// next returns what is sent next: acknowledgements, which do not count, then answers, then messages.
func (f *flight) next() (p noted, ok bool) {
	switch {
	case f.acks > 0:
		f.acks--
		return noted{t: packet.ProtoAck}, true
	case f.inFlight == f.hiWater:
		return noted{}, false
	case len(f.answers) > 0:
		a := f.answers[0]
		f.answers = f.answers[1:]
		p = noted{t: a.t, srqid: a.srqid}
		if a.r != nil && a.r.gen == a.gen { // else it is over
			p.r = a.r
		}
	case len(f.sends) > 0:
		p, f.sends = f.sends[0], f.sends[1:]
	default:
		return noted{}, false
	}
	f.inFlight++
	return p, true
}

// TestPair has a pair send, answer and receive at random, over a carrier that has room now and
// then: the packets are those of a list, in its order and as soon as they may go; neither way has
// more in flight than the bound, or acknowledges more than there is.
func TestPair(t *testing.T) {
	const packetLen = 100
	r := rand.New(rand.NewPCG(6, 6))
	for i := range 100 {
		bound := flows[i%len(flows)]
		f := flight{ackMark: bound.ackMark, hiWater: bound.hiWater}
		c := &tape{left: 1 << 20}
		l := &link{e: &engine{}, carrier: c, packetLen: packetLen, first: packetLen, rest: packetLen, ackMark: f.ackMark, hiWater: f.hiWater}
		p := l.newPair(&process{}, 1)
		var receives []*request
		for step := range 300 {
			switch r.IntN(6) {
			case 0:
				q := &request{pair: p, kind: sending, length: packetLen + uint64(r.IntN(3)) - 1, sync: r.IntN(4) == 0}
				s := noted{t: packet.Data, r: q, n: min(q.length, packetLen)}
				if q.sync || q.length > packetLen {
					s.t = packet.DataSync
				}
				require.Equal(t, s.t == packet.Data, l.mild(q), "%d bytes", q.length)
				f.sends = append(f.sends, s)
				p.send(q)
			case 1:
				a := answer{t: packet.SyncAck, srqid: uint64(1000 + step), r: &request{state: moving}}
				receives = append(receives, a.r)
				f.answers = append(f.answers, a)
				p.answer(a.t, a.srqid, a.r)
			case 2:
				if len(receives) > 0 { // one is over, and its request of another message
					receives[r.IntN(len(receives))].gen++
				}
			case 3:
				if f.came == f.hiWater {
					break
				}
				f.came++
				require.NoError(t, p.received(), "%d packets not acknowledged, bound %+v", f.came, bound)
				if f.came-uint32(f.acks)*f.ackMark == f.ackMark {
					f.acks++
				}
			case 4:
				if f.inFlight < f.ackMark {
					require.ErrorIs(t, p.acknowledged(), ErrProtocol, "%d packets in flight, bound %+v", f.inFlight, bound)
					break
				}
				require.NoError(t, p.acknowledged(), "%d packets in flight, bound %+v", f.inFlight, bound)
				f.inFlight -= f.ackMark
			default:
				c.left = []int{0, 1, 2, 1 << 20}[r.IntN(4)]
			}
			room := len(c.sent)
			if r.IntN(3) > 0 { // else what waits stays before what is started meanwhile
				room += c.left
				l.push()
			}
			var want []noted
			for room > 0 {
				next, ok := f.next()
				if !ok {
					break
				}
				if next.t == packet.ProtoAck {
					f.came -= f.ackMark
				}
				want = append(want, next)
				room--
			}
			require.Equal(t, want, c.sent, "bound %+v", bound)
			c.sent = nil
			require.Equal(t, f.inFlight, p.inFlight, "bound %+v", bound)
		}
		c.left = 0
		for ; f.came < f.hiWater; f.came++ {
			require.NoError(t, p.received(), "%d packets not acknowledged, bound %+v", f.came+1, bound)
		}
		require.ErrorIs(t, p.received(), ErrProtocol, "bound %+v", bound)
	}
}
