package impi

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// letter is a message of a random exchange: the nth of its sender to its receiver in
// one communicator.
type letter struct {
	src, dest, comm, nth, tag, size int
}

const letterHead = 20

// write is what the message consists of; of short ones the beginning.
func (l letter) write() []byte {
	b := make([]byte, 0, letterHead+l.size)
	for _, v := range []int{l.src, l.dest, l.comm, l.nth, l.size} {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	for i := range l.size {
		b = append(b, byte(l.nth+i*i))
	}
	return b
}

// slot is a receive of a random exchange.
type slot struct {
	request  Request
	src, tag int
	buf      []byte
	got      *letter // nil: still waiting, or taken back
}

func (s *slot) takes(l letter) bool {
	return (s.src == AnySource || s.src == l.src) && (s.tag == AnyTag || s.tag == l.tag)
}

// mailbox is what one process does in a random exchange.
type mailbox struct {
	r     *rand.Rand
	comms []*Comm
	out   []letter // to be sent
	due   int      // messages to it
	sends []Request
	slots [][]*slot // by communicator, in the order of posting
	wait  []*slot
	got   int
}

const mailTags = 3

// exchange sends, receives, probes and tests at random until all has come.
func (m *mailbox) exchange(ctx context.Context) error {
	for len(m.out) > 0 || m.got < m.due {
		var err error
		switch k := m.r.IntN(10); {
		case k < 4 && len(m.out) > 0:
			err = m.send()
		case k < 7 && len(m.wait) < 30:
			err = m.receive(m.r.IntN(len(m.comms)), m.r.IntN(len(m.comms[0].ranks)+1)-1, m.r.IntN(mailTags+1)-1)
		case k < 8 && len(m.wait) < 30:
			err = m.probe(m.r.IntN(len(m.comms)))
		default:
			err = m.test()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if len(m.wait) >= 30 { // none of them may be for what is still to come
			m.wait[m.r.IntN(len(m.wait))].request.Cancel()
		}
	}
	for _, s := range m.wait {
		s.request.Cancel()
	}
	for _, s := range m.wait {
		if st, err := s.request.Wait(ctx); err != nil || !st.Cancelled {
			return fmt.Errorf("a receive too many: %+v, %w", st, err)
		}
	}
	return WaitAll(ctx, nil, m.sends...)
}

func (m *mailbox) send() error {
	l := m.out[0]
	m.out = m.out[1:]
	c := m.comms[l.comm]
	b := l.write()
	var q Request
	var err error
	at := m.r.IntN(len(b) + 1)
	switch m.r.IntN(4) {
	case 0:
		q, err = c.Issend(b, l.dest, l.tag)
	case 1:
		q, err = c.IsendVec([][]byte{b[:at], nil, b[at:]}, l.dest, l.tag)
	default:
		q, err = c.Isend(b, l.dest, l.tag)
	}
	m.sends = append(m.sends, q)
	return err
}

func (m *mailbox) receive(comm, src, tag int) error {
	s := &slot{src: src, tag: tag, buf: make([]byte, 50_000)}
	var err error
	s.request, err = m.comms[comm].Irecv(s.buf, src, tag)
	m.slots[comm] = append(m.slots[comm], s)
	m.wait = append(m.wait, s)
	return err
}

// probe receives what it has seen, and nothing else.
func (m *mailbox) probe(comm int) error {
	c := m.comms[comm]
	ok, seen, err := c.Iprobe(m.r.IntN(len(c.ranks)+1)-1, m.r.IntN(mailTags+1)-1)
	if err != nil || !ok {
		return err
	}
	if err := m.receive(comm, seen.Source, seen.Tag); err != nil {
		return err
	}
	s := m.wait[len(m.wait)-1]
	s.buf = s.buf[:seen.Len]
	m.wait = m.wait[:len(m.wait)-1]
	st, err := s.request.Wait(context.Background())
	if err != nil || st != seen {
		return fmt.Errorf("probed %+v, received %+v: %w", seen, st, err)
	}
	return m.accept(s, st)
}

// test looks at a receive.
func (m *mailbox) test() error {
	if len(m.wait) == 0 {
		return nil
	}
	i := m.r.IntN(len(m.wait))
	s := m.wait[i]
	ok, st, err := s.request.Test()
	if err != nil || !ok {
		return err
	}
	m.wait = slices.Delete(m.wait, i, i+1)
	if st.Cancelled {
		return nil
	}
	return m.accept(s, st)
}

// accept checks a message that has been received.
func (m *mailbox) accept(s *slot, st Status) error {
	var v [5]int
	for i := range v {
		v[i] = int(binary.BigEndian.Uint32(s.buf[4*i:]))
	}
	l := letter{src: v[0], dest: v[1], comm: v[2], nth: v[3], size: v[4], tag: st.Tag}
	if st.Source != l.src || st.Len != letterHead+l.size || !bytes.Equal(s.buf[:st.Len], l.write()) || !s.takes(l) {
		return fmt.Errorf("%+v received as %+v", l, st)
	}
	s.got = &l
	m.got++
	return nil
}

// checkOrder: of the messages from one process that a receive takes it has met the
// first that no receive posted before it has.
func checkOrder(t *testing.T, slots []*slot) {
	for i, late := range slots {
		if late.got == nil {
			continue
		}
		for _, early := range slots[:i] {
			if !early.takes(*late.got) || early.got == nil { // taken back
				continue
			}
			if early.got.src == late.got.src {
				require.Less(t, early.got.nth, late.got.nth, "received first: %+v, then %+v", early.got, late.got)
			}
		}
	}
}

// manyPlaces are places of several processes each.
func manyPlaces() []place {
	var list []place
	for _, p := range places {
		if p.hosts == 1 {
			p.processes = 3
			list = append(list, p)
			continue
		}
		apart, mixed := p, p
		apart.hosts, mixed.processes = 3, 2
		apart.name += "-apart" // with -short, too
		mixed.name += "-mixed"
		list = append(list, apart, mixed)
	}
	return list
}

// TestRandomExchange: whatever several processes send and receive in whatever order,
// every message comes once, whole, and in its order.
func TestRandomExchange(t *testing.T) {
	each := need.ByForm(15, 30, 200)
	for _, p := range manyPlaces() {
		t.Run(p.name, func(t *testing.T) {
			p.needs(t)
			if p.hosts > 1 && p.processes > 1 {
				need.Full(t)
				p.seldom(t)
			}
			p.config.PacketLen, p.config.AckMark, p.config.HiWater = 2000, 3, 5
			jobs := join(t, p)
			defer closeAll(t, jobs)
			var boxes []*mailbox
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			n := len(jobs) * len(jobs[0].worlds)
			out, due := letters(rand.New(rand.NewPCG(seed, 0)), n, each)
			for _, j := range jobs {
				for _, c := range j.worlds {
					boxes = append(boxes, newMailbox(j, c, out[c.Rank()], due[c.Rank()], seed))
				}
			}
			sides := make([]func() error, n)
			for i, m := range boxes {
				sides[i] = func() error { return m.exchange(within(t)) }
			}
			both(t, sides...)
			for _, m := range boxes {
				for _, s := range m.slots {
					checkOrder(t, s)
				}
			}
		})
	}
}

// letters returns random messages between n processes in two communicators, by sender, and how many
// each receives. In the second communicator ranks are reversed.
func letters(r *rand.Rand, n, each int) (out [][]letter, due []int) {
	out, due = make([][]letter, n), make([]int, n)
	nth := map[[3]int]int{}
	for range each * n {
		l := letter{src: r.IntN(n), dest: r.IntN(n), comm: r.IntN(2), tag: r.IntN(mailTags), size: r.IntN(100)}
		switch r.IntN(20) {
		case 0:
			l.size = r.IntN(40_000)
		case 1:
			l.size = r.IntN(9000)
		}
		way := [3]int{l.src, l.dest, l.comm}
		l.nth = nth[way]
		nth[way]++
		from, to := l.src, l.dest
		if l.comm == 1 {
			from, to = n-1-from, n-1-to
		}
		out[from] = append(out[from], l)
		due[to]++
	}
	return out, due
}

func newMailbox(j *Job, c *Comm, out []letter, due int, seed uint64) *mailbox {
	return &mailbox{r: rand.New(rand.NewPCG(seed, uint64(1+c.Rank()))), comms: []*Comm{c, backwards(j, c)}, out: out, due: due, slots: make([][]*slot, 2)}
}

// backwards makes a communicator of all processes, with ranks from the last on.
func backwards(j *Job, c *Comm) *Comm {
	ranks := slices.Clone(c.ranks)
	slices.Reverse(ranks)
	j.e.lock.Lock()
	defer j.e.lock.Unlock()
	return j.newComm(c.p, ranks, 1000)
}
