package impi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDone: the channel of a request is closed when that is complete, and not before, while no call polls.
func TestDone(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		closes(t, Request{}.Done())
		for _, n := range []int{0, 8, 5000, long} {
			var receives []Request
			for tag := range 3 {
				q := irecv(t, b, make([]byte, n), AnySource, tag)
				receives = append(receives, q)
				require.Equal(t, q.Done(), q.Done())
			}
			for _, tag := range []int{2, 0, 1} {
				open(t, receives[tag].Done())
				s := issend(t, a, pattern(n, 1), 1, tag)
				done := receives[tag].Done()
				closes(t, s.Done())
				closes(t, done)
				for _, q := range []Request{receives[tag], s} {
					require.True(t, q.Active())
					over, st := tested(t, q)
					require.True(t, over)
					require.Equal(t, tag, st.Tag)
					closes(t, q.Done())
				}
			}
		}
		require.Zero(t, a.e.notices)
		require.Zero(t, b.e.notices)
	})
}

// TestDoneCancelled: cancelling a request closes its channel.
func TestDoneCancelled(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		q := irecv(t, b, make([]byte, 8), 0, 0)
		done := q.Done()
		require.True(t, cancelled(t, q))
		closes(t, done)
	})
}

// TestDoneEnds: the end of the peer and that of the job close the channels, and the next Test says why.
func TestDoneEnds(t *testing.T) {
	for _, provider := range []string{"", "shm", "tcp"} {
		config := Config{Providers: []string{}}
		if provider != "" {
			config.Providers = []string{provider}
		}
		jobs := join(t, place{hosts: 3, processes: 1, config: config})
		c := jobs[2].World()
		var list []Request
		var channels []<-chan struct{}
		for rank := range 2 {
			q := irecv(t, c, make([]byte, 8), rank, 0)
			list, channels = append(list, q), append(channels, q.Done())
		}
		left := make(chan error, 1)
		go func() { left <- jobs[0].Close(context.Background()) }()
		closes(t, channels[0])
		over, _, err := list[0].Test()
		require.True(t, over)
		require.ErrorIs(t, err, ErrPeerLeft)
		open(t, channels[1])
		require.NoError(t, <-left)
		require.NoError(t, jobs[2].Close(within(t)))
		closes(t, channels[1])
		over, _, err = list[1].Test()
		require.True(t, over)
		require.ErrorIs(t, err, ErrClosed)
		closes(t, list[1].Done())
		require.NoError(t, jobs[1].Close(within(t)))
	}
}
