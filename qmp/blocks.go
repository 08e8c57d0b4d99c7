package qmp

import (
	"context"
	"math/bits"
	"sync"

	"github.com/sluice-hpc/sluice/channel"
)

// blockStreams is the number of streams of a communicator: one for messages by node
// number, then two for each axis.
const blockStreams = 1 + 2*MaxDimensions + 1

// maxComms is the number of communicators of a node at a time.
const maxComms = (channel.MaxStream + 1) / blockStreams

// blocks manages the blocks of streams of a node. A communicator holds one until it has been freed
// and all handles declared on it have been closed.
//
// The k-th send on a stream meets the k-th receive, whatever the communicator. A block may
// therefore be reused only if nodes have started as many receives of each other's messages as
// sends: a message left over from an earlier communicator would meet a receive of the next one.
type blocks struct {
	mu   sync.Mutex
	used [maxComms / 64]uint64
	left [maxComms]map[int]uint64 // by peer: the started sends, less the receives; see balance
}

func (b *blocks) has(block int) bool { return b.used[block/64]>>(block%64)&1 != 0 }

func (b *blocks) flip(block int) { b.used[block/64] ^= 1 << (block % 64) }

// release gives a block back.
func (b *blocks) release(block int) {
	b.mu.Lock()
	b.flip(block)
	b.mu.Unlock()
}

// balance is the contribution of a message from one rank to another on a stream. Its sender adds it
// and its receiver subtracts it, so the sum over a block is 0 if all messages have met, and
// otherwise 0 only by chance, one in 2^64.
func balance(from, to, stream int) uint64 {
	x := (uint64(from)<<40 | uint64(to)<<20 | uint64(stream)) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hold counts n more handles of a communicator. The last handle to be closed returns the block if
// the communicator has been freed.
func (c *Comm) hold(n int) {
	b := &c.m.blocks
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.handles += n; c.handles == 0 && c.closed.Load() && !c.released {
		c.released = true
		b.flip(c.block)
	}
}

// forget accounts for what a handle that is being closed has started.
func (h *Handle) forget() {
	b, c := &h.m.blocks, h.comm
	from, to, times := c.nodes[c.me], h.peer, h.starts
	if h.kind == kindReceive {
		from, to, times = to, from, -times
	}
	b.leave(c.block, h.peer, balance(from, to, h.stream)*times)
	c.hold(-1)
}

// leave adds to the balance with a peer.
func (b *blocks) leave(block, peer int, sum uint64) {
	if sum == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left[block] == nil {
		b.left[block] = map[int]uint64{}
	}
	b.left[block][peer] += sum
}

// agree finds a block of streams that no communicator of any node uses and in which no message is
// left; others may be split at the same time. The nodes take the first block that all have free,
// and vote on whether all of them can use it.
func (c *Comm) agree(ctx context.Context) (int, error) {
	b := &c.m.blocks
	var tried [maxComms / 64]uint64
	for {
		b.mu.Lock()
		taken := b.used
		b.mu.Unlock()
		for i := range taken {
			taken[i] |= tried[i]
		}
		if err := c.group.Run(ctx, channel.Allreduce(channel.Or, taken[:], taken[:])); err != nil {
			return 0, err
		}
		// Splits at the same time begin their searches at different blocks.
		block := -1
		for i := range taken {
			at := (c.block + i) % len(taken)
			if free := ^taken[at]; free != 0 {
				block = 64*at + bits.TrailingZeros64(free)
				break
			}
		}
		if block < 0 {
			return 0, &Error{Op: "comm split", Status: StatusNoPorts}
		}
		b.mu.Lock()
		mine := !b.has(block)
		state := []uint64{0, 0} // nodes that have it already; what is left
		if mine {
			b.flip(block)
		} else {
			state[0] = 1
		}
		for _, rank := range c.nodes {
			state[1] += b.left[block][rank]
		}
		b.mu.Unlock()
		err := c.group.Run(ctx, channel.Allreduce(channel.Sum, state, state))
		if err == nil && state[0] == 0 && state[1] == 0 {
			return block, nil
		}
		if mine {
			b.release(block)
		}
		if err != nil {
			return 0, err
		}
		tried[block/64] |= 1 << (block % 64)
	}
}
