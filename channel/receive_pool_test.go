package channel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStorm: more messages come at once, from more peers, than there are receives for.
// All arrive, in order, whether or not the pool may grow.
func TestStorm(t *testing.T) {
	const (
		peers, streams = 16, 2
		most           = (queueRecvs-reserve)/streams - 2 // messages that are over at once: there are credits for them
	)
	queued(t, func(t *testing.T, provider string) {
		for _, grows := range []bool{true, false} {
			rounds := most
			if !grows {
				// Half as many more as there are receives: with soft-RoCE of Linux 6.1 a queue
				// pair may stand still for ACK timeouts when much waits behind an RNR NAK.
				rounds = receiveSlab * 3 / 2 / (peers * streams)
			}
			t.Run(fmt.Sprint("grows ", grows), func(t *testing.T) {
				nodes := join(t, 1+peers, WithProviders(provider))
				var sends, receives []*Handle
				var outs, ins [][]byte
				for rank := 1; rank <= peers; rank++ {
					for stream := range streams {
						s, out := send(t, nodes[rank], 0, 4000, OnStream(stream))
						r, in := receive(t, nodes[0], rank, 4000, OnStream(stream))
						sends, receives = append(sends, s), append(receives, r)
						outs, ins = append(outs, out), append(ins, in)
					}
				}
				round := func(k int) {
					for i, r := range receives {
						require.NoError(t, r.Run(within(t)))
						require.EqualValues(t, k, binary.LittleEndian.Uint64(ins[i]), "message of rank %d", 1+i/streams)
					}
				}
				start := func(k int) {
					for i, s := range sends {
						binary.LittleEndian.PutUint64(outs[i], uint64(k))
						require.NoError(t, s.Run(within(t)))
					}
				}
				start(0)
				round(0)
				d := (*nodes[0].engines.Load())[0]
				require.NotNil(t, d.pool)
				require.Len(t, *d.pool.slabs.Load(), 1, "%d peers that are idle", peers)
				if !grows {
					d.pool.mu.Lock()
					d.pool.most = receiveSlab
					d.pool.mu.Unlock()
				}
				unattended(d, func() {
					for k := range rounds {
						start(1 + k)
					}
					if grows {
						eventually(t, func() bool { return len(*d.pool.slabs.Load()) > 1 })
					}
				})
				for k := range rounds {
					round(1 + k)
				}
				slabs := len(*d.pool.slabs.Load())
				t.Logf("%d receives for %d messages", slabs*receiveSlab, peers*streams*rounds)
				if !grows {
					require.Equal(t, 1, slabs)
				}
			})
		}
	})
}

// unattended calls f while the queues of a device are not polled.
func unattended(d *device, f func()) {
	d.mu.Lock()
	queues := slices.Collect(maps.Values(d.queues))
	d.mu.Unlock()
	for _, a := range queues {
		a.lock.Lock()
		defer a.lock.Unlock() // also if f fails: what cleans up needs them
	}
	f()
}
