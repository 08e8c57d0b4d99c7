package fanout

import "github.com/sluice-hpc/sluice/impi"

// Chunk is a chunk that a client has received: a lease on its bytes. It is a value type;
// the zero Chunk has no bytes.
type Chunk struct {
	l        *lease
	gen      uint32
	bytes    []byte
	seq      uint64
	source   int
	index    int // in its batch
	numbered bool
	ack      bool // Release sends the supplier an acknowledgement
}

// Bytes returns the bytes of the chunk. One goroutine at a time may read and change them,
// until Release.
func (k Chunk) Bytes() []byte { return k.bytes }

// Seq returns the sequence number of the chunk at its supplier, from 0. It is set only if the
// client is [Numbered] or the supplier has [Redeliver] or [Collected].
func (k Chunk) Seq() uint64 { return k.seq }

// Supplier returns the rank that the chunk came from.
func (k Chunk) Supplier() int {
	if k.l == nil {
		return impi.AnySource
	}
	return k.l.c.sources[k.source].rank
}

// Release gives the bytes back and acknowledges the chunk if it has a number: call it when the
// chunk has been processed. Calling it again does nothing. Any goroutine may call it. The
// acknowledgement goes out with the next Receive, or at once if a Receive is waiting.
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
		// Memory that cannot be freed now, because its supplier has stopped, is freed when the
		// job is closed: the caller could do nothing about the error.
		_ = spent.Close()
	}
}

// acknowledge records that a chunk has been processed.
func (c *Client) acknowledge(k Chunk) {
	c.acks[k.source] = append(c.acks[k.source], k.seq)
	if c.receiving.Load() || len(c.acks[k.source]) == askMost {
		// It fails if the supplier is gone; Receive reports that.
		if err := c.ask(k.source, 0); err != nil {
			return
		}
	}
}
