package fanout

import "github.com/sluice-hpc/sluice/impi"

// chunk is a chunk that the supplier keeps: in its queue, or given to a worker and not yet
// acknowledged.
type chunk struct {
	seq     uint64
	bytes   int
	parts   [][]byte
	memory  []byte // the supplier's own copy, which parts point into
	release func() // tells the user that parts are no longer read
	worker  int    // that has it; -1: none
	given   bool   // at least once
	acked   bool
	watched bool // its worker reports when it begins with it
	begun   bool // its worker has reported it
	deaths  int  // workers that went without acknowledging it
	sends   int  // messages in flight that read it
	free    *chunk
}

// message is a message in flight to a worker.
type message struct {
	to     int
	chunks []*chunk
	vec    [][]byte
	heads  []byte // of the chunks, which have numbers; a chunk may be in two messages
	short  []byte // all of it, if it is short
	req    impi.Request
	free   *message
}

// chunks is a queue of chunks.
type chunks struct {
	list  []*chunk
	head  int
	bytes int
}

func (q *chunks) len() int { return len(q.list) - q.head }

func (q *chunks) first() *chunk {
	if q.len() == 0 {
		return nil
	}
	return q.list[q.head]
}

func (q *chunks) push(c *chunk) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, c)
	q.bytes += c.bytes
}

func (q *chunks) pop() *chunk {
	c := q.list[q.head]
	q.list[q.head] = nil
	q.bytes -= c.bytes
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return c
}

// insert puts c where its sequence number belongs.
func (q *chunks) insert(c *chunk) {
	q.push(c)
	for i := len(q.list) - 1; i > q.head && q.list[i-1].seq > c.seq; i-- {
		q.list[i], q.list[i-1] = q.list[i-1], q.list[i]
	}
}

// remove takes c out, wherever it is.
func (q *chunks) remove(c *chunk) {
	for i := q.head; i < len(q.list); i++ {
		if q.list[i] == c {
			copy(q.list[i:], q.list[i+1:])
			q.list[len(q.list)-1] = nil
			q.list = q.list[:len(q.list)-1]
			q.bytes -= c.bytes
			return
		}
	}
}
