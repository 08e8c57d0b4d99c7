package fanout

import (
	"errors"
	"math/bits"

	"github.com/sluice-hpc/sluice/impi"
)

// lease is memory that messages are received into. Its users are the chunks in it that have
// not been released, and the client itself while there is more to unpack.
type lease struct {
	c      *Client
	gen    uint32
	users  int
	memory []byte
	of     *impi.Memory // the Alloc memory that memory is in; nil: the heap
	out    []bool       // which chunks of a batch are with the user
}

// back records that a chunk has been released; false if it had been before.
func (l *lease) back(k Chunk) bool {
	if !k.numbered {
		return true // it is the only one
	}
	was := l.out[k.index]
	l.out[k.index] = false
	return was
}

// keepLeases is how much memory a client keeps beyond what it has lent.
const keepLeases = 64 << 20

// lease returns memory of n bytes.
func (c *Client) lease(n int) (*lease, error) {
	c.mu.Lock()
	l := c.unlent(n)
	c.mu.Unlock()
	if len(l.memory) >= n {
		return l, nil
	}
	spent := l.of
	err := l.allocate(n)
	if spent != nil {
		err = errors.Join(err, spent.Close())
	}
	return l, err
}

// unlent takes a free lease: one of n bytes if there is one, else one that is too small, or
// without memory.
func (c *Client) unlent(n int) *lease {
	// The last one given back is the one in the cache.
	i := len(c.free) - 1
	for i > 0 && len(c.free[i].memory) < n {
		i--
	}
	if i < 0 {
		return &lease{c: c}
	}
	l := c.free[i]
	c.free = append(c.free[:i], c.free[i+1:]...)
	c.memory -= len(l.memory)
	return l
}

// allocate gives the lease memory of n bytes, in place of what it has.
func (l *lease) allocate(n int) error {
	l.memory, l.of = nil, nil
	if l.c.o.maxChunk == 0 { // the next message may be longer
		n = roomFor(n)
	}
	if l.c.o.job == nil {
		l.memory = make([]byte, n)
		return nil
	}
	m, err := l.c.o.job.Alloc(n)
	if err != nil {
		return err
	}
	l.memory, l.of = m.Bytes(), m
	return nil
}

// roomFor returns how much memory to allocate for n bytes: the smallest power of two that
// holds them, at least 256. A message too long to be kept for a later one gets no more than
// it needs.
func roomFor(n int) int {
	if n > keepLeases {
		return n
	}
	return max(256, 1<<bits.Len(uint(max(n, 1)-1)))
}

// give takes back memory that has no chunk in use.
func (c *Client) give(l *lease) error {
	c.mu.Lock()
	l.users = 1
	spent := c.dropLocked(l)
	c.mu.Unlock()
	if spent != nil {
		return spent.Close()
	}
	return nil
}

// dropLocked removes a user of the memory. The caller closes what it returns, without the
// lock.
func (c *Client) dropLocked(l *lease) *impi.Memory {
	if l.users--; l.users > 0 {
		return nil
	}
	l.gen++
	l.out = l.out[:0]
	if c.closed == nil && c.memory+len(l.memory) <= keepLeases {
		c.memory += len(l.memory)
		c.free = append(c.free, l)
		return nil
	}
	spent := l.of
	l.memory, l.of = nil, nil
	return spent
}

// dropAll frees the memory that has no chunk in use.
func (c *Client) dropAll() error {
	c.mu.Lock()
	free := c.free
	c.free, c.memory = nil, 0
	c.mu.Unlock()
	var errs []error
	for _, l := range free {
		if l.of != nil {
			errs = append(errs, l.of.Close())
		}
		l.memory, l.of = nil, nil
	}
	return errors.Join(errs...)
}
