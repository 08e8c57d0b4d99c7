package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// pinned is how many bytes a device has for messages to be sent from and received into.
func pinned(d *device) (n int) {
	for _, mr := range append(*d.sends.slabs.Load(), *d.pool.slabs.Load()...) {
		n += mr.Len()
	}
	return n
}

// freeSends returns the number of free buffers, and of all.
func freeSends(d *device) (free, all int) {
	d.sends.mu.Lock()
	defer d.sends.mu.Unlock()
	return len(d.sends.free), len(*d.sends.slabs.Load()) * sendSlab
}

// TestIdlePeers: peers that are connected and idle pin nothing.
func TestIdlePeers(t *testing.T) {
	const peers = 8
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 1+peers, WithProviders(provider))
		talk(t, nodes[0], nodes[1])
		d := (*nodes[0].engines.Load())[0]
		first := pinned(d)
		for rank := 2; rank <= peers; rank++ {
			s, _ := send(t, nodes[0], rank, 4000)
			r, _ := receive(t, nodes[rank], 0, 4000)
			pass(t, s, r, r)
		}
		require.Equal(t, first, pinned(d))
		t.Logf("%d KiB for 1 peer and for %d", first>>10, peers)
		require.Eventually(t, func() bool { free, all := freeSends(d); return free == all }, limit, time.Millisecond, "an idle queue keeps buffers")
	})
}

// TestNoSendBuffers: with a handful of buffers for all its peers a node sends what it
// has to, if later; when they may become more they do.
func TestNoSendBuffers(t *testing.T) {
	const peers, messages, few = 4, 200, 3
	queued(t, func(t *testing.T, provider string) {
		for _, grows := range []bool{false, true} {
			nodes := join(t, 1+peers, WithProviders(provider))
			for rank := 1; rank <= peers; rank++ {
				talk(t, nodes[0], nodes[rank])
			}
			d := (*nodes[0].engines.Load())[0]
			require.Eventually(t, func() bool { free, all := freeSends(d); return free == all }, limit, time.Millisecond)
			d.sends.mu.Lock()
			held := d.sends.free[few:]
			d.sends.free = d.sends.free[:few:few]
			if !grows {
				d.sends.most = 1
			}
			d.sends.mu.Unlock()
			ended := make(chan error, 2*peers) // do not wait for the others if one fails
			for rank := 1; rank <= peers; rank++ {
				s, out := send(t, nodes[0], rank, 4000)
				r, in := receive(t, nodes[rank], 0, 4000)
				go func() {
					for k := range messages {
						out[0] = byte(k)
						err := s.Start()
						if err == nil {
							err = s.WaitContext(within(t))
						}
						if err != nil {
							ended <- err
							return
						}
					}
					ended <- nil
				}()
				go func() {
					for k := range messages {
						err := r.Start()
						if err == nil {
							err = r.WaitContext(within(t))
						}
						if err == nil && in[0] != byte(k) {
							err = ErrProtocol
						}
						if err != nil {
							ended <- err
							return
						}
					}
					ended <- nil
				}()
			}
			for range 2 * peers {
				require.NoError(t, <-ended)
			}
			d.sends.give(held)
			require.Eventually(t, func() bool { free, all := freeSends(d); return free == all }, limit, time.Millisecond)
			_, all := freeSends(d)
			if !grows {
				require.Equal(t, sendSlab, all)
			}
		}
	})
}

// TestSignalled: over RDMA few of the sends of a queue in use ask for a completion, and
// what they have used comes back all the same.
func TestSignalled(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes, q, _ := joinQueue(t, provider)
		s, r := sendReceive(t, nodes[0], nodes[1], 4000)
		const rounds = 20 * signalEvery
		asked, watched := 0, 0
		for range rounds {
			require.NoError(t, r.Start())
			q.lock.Lock()
			w, before := q.watched, q.outstanding.posted
			q.lock.Unlock()
			require.NoError(t, s.Start())
			q.lock.Lock()
			if w && q.watched && q.outstanding.posted == before+1 {
				watched++
				if q.wrs[0].Flags&verbs.SendSignaled != 0 {
					asked++
				}
			}
			q.lock.Unlock()
			require.NoError(t, s.WaitContext(within(t)))
			require.NoError(t, r.WaitContext(within(t)))
			q.progress()
		}
		t.Logf("%d of %d sends, %d of them while the engine watches", asked, rounds, watched)
		if provider == "ibv" {
			require.LessOrEqual(t, asked, watched/signalEvery+watched/4)
		} else {
			require.Equal(t, watched, asked)
		}
		d := q.link.dev
		require.Eventually(t, func() bool { free, all := freeSends(d); return free == all }, limit, time.Millisecond)
		q.lock.Lock()
		defer q.lock.Unlock()
		require.Equal(t, q.outstanding.posted, q.outstanding.done)
	})
}

// TestForgotten: of a peer that has failed nothing stays with the device: neither its
// queue, nor buffers that it sent from.
func TestForgotten(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		nodes := join(t, 4, WithProviders(provider))
		for _, n := range nodes[1:] {
			talk(t, nodes[0], n)
		}
		d := (*nodes[0].engines.Load())[0]
		of := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.queues)
		}
		require.Equal(t, 3, of())
		s, _ := send(t, nodes[0], 1, 4000) // without receives
		for range window / 2 {
			require.NoError(t, s.Run(within(t)))
		}
		q := queueTo(t, nodes[0], 1)
		q.lock.Lock()
		q.broken(ErrProtocol)
		q.lock.Unlock()
		closeAll(t, nodes[2:3])
		require.Eventually(t, func() bool { return of() == 1 }, limit, time.Millisecond)
		require.Eventually(t, func() bool { free, all := freeSends(d); return free == all }, limit, time.Millisecond)
		s, _ = send(t, nodes[0], 3, 4000)
		r, _ := receive(t, nodes[3], 0, 4000)
		pass(t, s, r, r)
	})
}
