package impi

// matcher is where the messages of one context (a communicator, or its collectives) meet the
// receives of one process. Messages from one process are matched in the order in which they were
// sent, receives in the order in which they were posted.
type matcher struct {
	p     *process
	cid   uint64
	comm  *Comm // nil until this process has the communicator
	by    int32 // rank of the first sender, until then
	from  []source
	wild  requests // from any source
	all   arrivals
	order uint64 // receives posted so far

	reserved int32 // tag that no wildcard meets; 0: none

	gone   []int32 // members that have left or are otherwise lost
	untold []int32 // lost members that no receive from any source has reported yet
	parts  bool    // departures are reported, too: see Comm.NotifyLeft
}

// source is the state of one process of the job as a sender.
type source struct {
	posted  requests
	arrived arrivals
}

// requests is an ordered list of requests.
type requests struct{ head, tail *request }

func (l *requests) push(r *request) {
	r.list = l
	if r.prev = l.tail; r.prev != nil {
		r.prev.next = r
	} else {
		l.head = r
	}
	l.tail = r
}

func (l *requests) remove(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.head = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.tail = r.prev
	}
	r.next, r.prev, r.list = nil, nil, nil
}

// pop removes the first.
func (l *requests) pop() *request {
	r := l.head
	l.remove(r)
	return r
}

// post adds a receive.
func (c *matcher) post(r *request) {
	c.order++
	r.order = c.order
	if r.peer < 0 {
		c.wild.push(r)
	} else {
		c.from[r.peer].posted.push(r)
	}
}

// meets says whether a request for a tag, or any tag, matches a message with this one.
func (c *matcher) meets(want, tag int32) bool {
	return want == tag || want == AnyTag && (c.reserved == 0 || tag != c.reserved)
}

// take removes the receive that a message from src matches: of several, the one that was posted
// first. nil if there is none.
func (c *matcher) take(src, tag int32) *request {
	r := c.from[src].posted.head
	for r != nil && !c.meets(r.tag, tag) {
		r = r.next
	}
	w := c.wild.head
	for w != nil && !c.meets(w.tag, tag) {
		w = w.next
	}
	if r == nil || w != nil && w.order < r.order {
		r = w
	}
	if r != nil {
		r.list.remove(r)
	}
	return r
}

// find returns the first message that a receive would match.
func (c *matcher) find(src, tag int32) *message {
	if src < 0 {
		m := c.all.head
		for m != nil && !c.meets(tag, m.tag) {
			m = m.next
		}
		return m
	}
	m := c.from[src].arrived.head
	for m != nil && !c.meets(tag, m.tag) {
		m = m.nextFrom
	}
	return m
}
