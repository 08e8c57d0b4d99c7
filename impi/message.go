package impi

import "math/bits"

// message is one of which at least the first packet has arrived and which no receive has matched.
type message struct {
	next, prev         *message // in order of arrival, from all processes
	nextFrom, prevFrom *message // from the same process
	src                int32    // rank in the job
	tag                int32
	sync               bool   // the sender wants to know of the match
	known              bool   // the sender uses Alloc memory
	length             uint64 // of the whole message
	srqid              uint64
	pair               *pair    // that it arrived on; nil within the host
	data               []byte   // of the first packet; of all, if it has been fetched
	sender             *request // within the host: not copied yet
	owed, acked        bool     // to be fetched; SYNCACK has been sent for that
	fetch              *request // the transfer of the rest; nil: none
	taker              *request // a receive that waits for the fetch
	takerGen           uint32
}

// messageCost is what a message without data counts towards the bound on waiting bytes.
const messageCost = 128

func (m *message) cost() int { return len(m.data) + messageCost }

// arrivals is a list of messages in order of arrival.
type arrivals struct{ head, tail *message }

// pushMessage appends m to both its lists.
func (c *matcher) pushMessage(m *message) {
	if m.prev = c.all.tail; m.prev != nil {
		m.prev.next = m
	} else {
		c.all.head = m
	}
	c.all.tail = m
	from := &c.from[m.src].arrived
	if m.prevFrom = from.tail; m.prevFrom != nil {
		m.prevFrom.nextFrom = m
	} else {
		from.head = m
	}
	from.tail = m
}

// takeMessage takes m out of both its lists.
func (c *matcher) takeMessage(m *message) {
	if m.prev != nil {
		m.prev.next = m.next
	} else {
		c.all.head = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	} else {
		c.all.tail = m.prev
	}
	from := &c.from[m.src].arrived
	if m.prevFrom != nil {
		m.prevFrom.nextFrom = m.nextFrom
	} else {
		from.head = m.nextFrom
	}
	if m.nextFrom != nil {
		m.nextFrom.prevFrom = m.prevFrom
	} else {
		from.tail = m.prevFrom
	}
	m.next, m.prev, m.nextFrom, m.prevFrom = nil, nil, nil, nil
}

// room pools memory for messages that no receive has matched, by powers of two, so that they cost
// no allocation in the long run.
type room struct {
	free [classes][][]byte
	msgs []*message
}

const (
	leastClass = 6 // 64 bytes
	classes    = 20
	// keepBytes bounds what each class keeps.
	keepBytes = 4 << 20
)

func classOf(n int) int { return max(bits.Len(uint(n-1)), leastClass) - leastClass }

// get returns n bytes, whose content is undefined.
func (r *room) get(n int) []byte {
	if n == 0 {
		return nil
	}
	c := classOf(n)
	if c >= classes {
		return make([]byte, n)
	}
	if list := r.free[c]; len(list) > 0 {
		b := list[len(list)-1]
		r.free[c] = list[:len(list)-1]
		return b[:n]
	}
	return make([]byte, n, 1<<(c+leastClass))
}

// put takes back what get returned.
func (r *room) put(b []byte) {
	if b == nil {
		return
	}
	c := classOf(cap(b))
	if c < classes && cap(b) == 1<<(c+leastClass) && (len(r.free[c])+1)*cap(b) <= keepBytes {
		r.free[c] = append(r.free[c], b[:0])
	}
}

func (r *room) message() *message {
	if n := len(r.msgs); n > 0 {
		m := r.msgs[n-1]
		r.msgs = r.msgs[:n-1]
		return m
	}
	return &message{}
}

const keepMessages = 4096

func (r *room) drop(m *message) {
	r.put(m.data)
	*m = message{}
	if len(r.msgs) < keepMessages {
		r.msgs = append(r.msgs, m)
	}
}
