package channel

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExchange: every rank gets what each has given, also alone.
func TestExchange(t *testing.T) {
	nodes := join(t, 3)
	got := make([][][]byte, len(nodes))
	errs := make([]error, len(nodes))
	done := make(chan struct{})
	for i, n := range nodes {
		go func() {
			got[i], errs[i] = n.Exchange(within(t), fmt.Append(nil, "of ", i))
			done <- struct{}{}
		}()
	}
	for range nodes {
		<-done
	}
	require.NoError(t, errors.Join(errs...))
	for i := range nodes {
		require.Equal(t, [][]byte{[]byte("of 0"), []byte("of 1"), []byte("of 2")}, got[i])
	}
	var e *Error
	_, err := nodes[0].Exchange(within(t), make([]byte, 1<<20+1))
	require.ErrorAs(t, err, &e)
	require.Equal(t, "exchange", e.Op)
	require.ErrorIs(t, err, ErrInvalid)

	require.NoError(t, nodes[1].Close())
	_, err = nodes[0].Exchange(within(t), nil)
	require.ErrorIs(t, err, ErrPeerLeft)
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Rank)

	alone := join(t, 1)[0]
	all, err := alone.Exchange(within(t), []byte("mine"))
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("mine")}, all)
	require.NoError(t, alone.Close())
	_, err = alone.Exchange(within(t), nil)
	require.ErrorIs(t, err, ErrClosed)
}
