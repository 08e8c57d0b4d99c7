package fanout

import "github.com/sluice-hpc/sluice/impi"

// Chunk is a chunk that a client has received: a lease on its bytes. It is a value; the
// zero Chunk has no bytes.
type Chunk struct {
	l        *lease
	gen      uint32
	bytes    []byte
	seq      uint64
	source   int
	index    int // in its batch
	numbered bool
	ack      bool // the supplier is to hear of its Release
}

// Bytes are those of the chunk. They may be read and changed until Release, by one
// goroutine at a time.
func (k Chunk) Bytes() []byte { return k.bytes }

// Seq is the sequence number of the chunk at its supplier, from 0. Only with [Numbered],
// and of a supplier with [Redeliver] or [Collected].
func (k Chunk) Seq() uint64 { return k.seq }

// Supplier is the rank that the chunk came from.
func (k Chunk) Supplier() int {
	if k.l == nil {
		return impi.AnySource
	}
	return k.l.c.sources[k.source].rank
}

// Release gives the bytes back and, of a chunk with a number, acknowledges it: whoever
// calls it has done with it. Release again does nothing. It may be called from any
// goroutine. The acknowledgement goes out with the next Receive, or at once if one is
// waiting.
func (k Chunk) Release() {
	if k.l == nil {
		return
	}
	c := k.l.c
	c.mu.Lock()
	if k.l.gen != k.gen || !k.l.back(k) {
		c.mu.Unlock()
		return
	}
	spent := c.dropLocked(k.l)
	if k.ack && c.closed == nil {
		c.acknowledge(k)
	}
	c.mu.Unlock()
	if spent != nil {
		// What cannot be freed now, because its supplier has stopped, is when the job is
		// closed: there is nothing that who releases a chunk could do.
		_ = spent.Close()
	}
}

// acknowledge takes note that a chunk is done with.
func (c *Client) acknowledge(k Chunk) {
	c.acks[k.source] = append(c.acks[k.source], k.seq)
	if c.receiving.Load() || len(c.acks[k.source]) == askMost {
		// It fails if the supplier is gone, which Receive says.
		if err := c.ask(k.source, 0); err != nil {
			return
		}
	}
}
