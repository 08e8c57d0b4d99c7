package colltest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
)

// pair is a send and a receive of the same stream.
func pair(t *testing.T, n *Network, out, in []byte) (send, receive coll.Message) {
	send, err := n.Carrier(0).DeclareSend(1, out[:2], out[2:])
	require.NoError(t, err)
	receive, err = n.Carrier(1).DeclareReceive(0, in[:2], in[2:])
	require.NoError(t, err)
	return send, receive
}

func over(t *testing.T, m coll.Message) bool {
	done, err := m.Test()
	require.NoError(t, err)
	return done
}

// TestModes: an eager send is over at once, another when its receive has begun; in
// both cases the receive gets what was there at the start of the send.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Eager, Rendezvous} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			n := NewNetwork(2, mode)
			out, in := []byte("message"), make([]byte, 7)
			send, receive := pair(t, n, out, in)
			for range 3 {
				require.NoError(t, send.Start())
				require.Equal(t, mode == Eager, over(t, send))
				if mode == Eager {
					copy(out, "another")
				} else {
					require.ErrorIs(t, send.Start(), ErrActive)
				}
				require.NoError(t, receive.Start())
				require.True(t, over(t, receive))
				require.True(t, over(t, send))
				require.Equal(t, "message", string(in))
				copy(out, "message")

				copy(in, "       ")
				require.NoError(t, receive.Start())
				require.False(t, over(t, receive))
				require.NoError(t, send.Start())
				require.True(t, over(t, send))
				require.True(t, over(t, receive))
				require.Equal(t, "message", string(in))
			}
			require.Equal(t, Counts{Messages: 6, Bytes: 42, Most: 6, Depth: 1}, n.Counts())
			require.Equal(t, Counts{}, n.Counts())
		})
	}
}

// TestOrder: the k-th send of a stream meets its k-th receive.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Eager, Rendezvous} {
		n := NewNetwork(2, mode)
		in := [2][]byte{make([]byte, 4), make([]byte, 4)}
		firstSend, firstReceive := pair(t, n, []byte("1st."), in[0])
		secondSend, secondReceive := pair(t, n, []byte("2nd."), in[1])
		for _, m := range []coll.Message{firstSend, secondSend, firstReceive, secondReceive} {
			require.NoError(t, m.Start())
		}
		require.True(t, over(t, secondReceive))
		require.True(t, over(t, firstReceive))
		require.Equal(t, "1st.2nd.", string(in[0])+string(in[1]))
	}
}

// TestErrors: of a wrong length, of a stream that is cut, of a closed message, of a
// member that there is not.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Eager, Rendezvous} {
		n := NewNetwork(2, mode)
		send, receive := pair(t, n, []byte("too long"), make([]byte, 7))
		require.NoError(t, send.Start())
		require.NoError(t, receive.Start())
		_, err := receive.Test()
		require.ErrorIs(t, err, ErrLength)
		require.True(t, over(t, send))

		gone := errors.New("gone")
		n.Cut(0, 1, gone)
		require.ErrorIs(t, send.Start(), gone)

		require.NoError(t, send.Close())
		require.ErrorIs(t, send.Close(), ErrClosed)
		require.ErrorIs(t, send.Start(), ErrClosed)
		_, err = n.Carrier(0).DeclareSend(2)
		require.Error(t, err)
		_, err = n.Carrier(0).DeclareReceive(-1)
		require.Error(t, err)
	}
}

// TestClosed: a message that is closed in flight matches no other.
func TestClosed(t *testing.T) {
	t.Parallel()
	n := NewNetwork(2, Rendezvous)
	in := make([]byte, 4)
	send, receive := pair(t, n, []byte("1st."), in)
	require.NoError(t, send.Start())
	require.NoError(t, send.Close())
	require.NoError(t, receive.Start())
	require.False(t, over(t, receive))
	require.NoError(t, receive.Close())
	send, receive = pair(t, n, []byte("2nd."), in)
	require.NoError(t, receive.Start())
	require.NoError(t, send.Start())
	require.True(t, over(t, receive))
	require.Equal(t, "2nd.", string(in))
}

// TestStalled: a group that cannot go on is found out.
func TestStalled(t *testing.T) {
	t.Parallel()
	n := NewNetwork(3, Eager)
	all := make([]*coll.Run, 3)
	for rank := range all {
		a := coll.Dissemination
		if rank == 0 {
			a = coll.Linear // waits for 1, which waits for 0
		}
		s, err := coll.Build(a, &coll.Shape{Kind: coll.Barrier, Rank: rank, Size: 3})
		require.NoError(t, err)
		all[rank], err = coll.NewRun(n.Carrier(rank), s, nil, nil, make([]byte, coll.ScratchSize(s)), nil)
		require.NoError(t, err)
	}
	errs := n.Drive(all, make([]coll.Header, 3), nil)
	require.ErrorIs(t, errors.Join(errs...), ErrStalled)
}
