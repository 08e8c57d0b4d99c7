package channel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// timedOut checks the error of a deadline that has passed: what was waited for says
// so itself, and is still active.
func timedOut(t *testing.T, h *Handle, err error, want Error) {
	t.Helper()
	require.ErrorIs(t, err, ErrTimeout)
	var e *Error
	require.ErrorAs(t, err, &e)
	want.Err = e.Err
	require.Equal(t, want, *e)
	require.ErrorIs(t, h.Start(), ErrActive)
	require.ErrorIs(t, h.Close(), ErrActive)
}

// TestDeadline: a deadline ends the waiting, not the message: it can be waited for
// again, and then succeeds.
func TestDeadline(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		for _, size := range []int{8, 1000, 300_000} {
			s, r, out, in := sendReceiveBytes(t, a, b, size, OnStream(4))
			for i := range 5 {
				require.NoError(t, r.Start())
				k := r.k
				for range 3 {
					timedOut(t, r, r.WaitContext(brief(t)), Error{Op: "wait receive", Rank: a.Rank(), Stream: 4, Start: k})
				}
				out[size-1] = byte(i + 1)
				require.NoError(t, s.Start())
				require.NoError(t, r.WaitContext(within(t)))
				require.Equal(t, byte(i+1), in[size-1])
				require.NoError(t, s.WaitContext(within(t)))
				require.NoError(t, r.WaitContext(brief(t)), "idle")
			}
		}
		// A send without a matching receive.
		s, _ := send(t, a, b.Rank(), 300_000, OnStream(5))
		require.NoError(t, s.Start())
		for range 3 {
			timedOut(t, s, s.WaitContext(brief(t)), Error{Op: "wait send", Rank: b.Rank(), Stream: 5, Start: s.k})
		}
		r, _ := receive(t, b, a.Rank(), 300_000, OnStream(5))
		require.NoError(t, r.Start())
		arrives(t, s, r)
	})
}

// TestDeadlineOfMultiple: the same of a multiple, of its members, and of WaitAll.
func TestDeadlineOfMultiple(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		var sends, receives []*Handle
		for i, size := range []int{8, 1000, 300_000} {
			s, r := sendReceive(t, a, b, size, OnStream(i))
			sends, receives = append(sends, s), append(receives, r)
		}
		all, err := b.Multiple(receives...)
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, all.Start())
			for range 3 {
				timedOut(t, all, all.WaitContext(brief(t)), Error{Op: "wait", Rank: -1, Stream: -1})
				for i, r := range receives {
					timedOut(t, r, r.WaitContext(brief(t)), Error{Op: "wait receive", Rank: a.Rank(), Stream: i, Start: r.k})
				}
				err := WaitAllContext(brief(t), receives...)
				list, unknown := causes(err)
				require.NoError(t, unknown)
				require.Len(t, list, len(receives), "%v", err)
			}
			// One of three comes: it can be waited for alone, the others cannot.
			require.NoError(t, sends[1].Start())
			require.NoError(t, receives[1].WaitContext(within(t)))
			timedOut(t, all, all.WaitContext(brief(t)), Error{Op: "wait", Rank: -1, Stream: -1})
			startAll(t, sends[0], sends[2])
			sent := make(chan error)
			go func() { sent <- WaitAllContext(within(t), sends...) }()
			require.NoError(t, all.WaitContext(within(t)))
			require.NoError(t, <-sent)
		}
		require.NoError(t, all.Close())
	})
}
