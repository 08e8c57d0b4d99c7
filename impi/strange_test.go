package impi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// ahead makes a communicator that others do not have yet.
func ahead(c *Comm, cid uint64, ranks ...int32) *Comm {
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	return c.job.newComm(c.p, ranks, cid)
}

// TestStrangeContexts: a process that sends in too many unknown contexts uses up its own allowance,
// and not that of others.
func TestStrangeContexts(t *testing.T) {
	jobs := join(t, place{"", 3, 1, Config{Providers: []string{}}})
	var w []*Comm
	for _, j := range jobs {
		w = append(w, j.World())
	}
	for i := range uint64(maxStrange) {
		require.NoError(t, ahead(w[0], firstCID+2*i, 0, 1, 2).Send(within(t), []byte{1}, 2, 0))
	}
	settle(t, w[0], w[2])
	const cid = firstCID + 10_000
	require.NoError(t, ahead(w[1], cid, 0, 1, 2).Send(within(t), []byte("mine"), 2, 0))
	settle(t, w[1], w[2])
	got := make([]byte, 4)
	received(t, ahead(w[2], cid, 0, 1, 2), got, 1, 0)
	require.Equal(t, "mine", string(got))
	// A context that is known by now counts no more; one too many does.
	received(t, ahead(w[2], firstCID, 0, 1, 2), got, 0, 0)
	for i := range uint64(2) {
		require.NoError(t, ahead(w[0], firstCID+20_000+2*i, 0, 1, 2).Send(within(t), nil, 2, 0))
	}
	_, err := w[2].Recv(within(t), nil, 0, 0)
	requireError(t, err, ErrOverflow, 0)
	settle(t, w[1], w[2])
	closeAll(t, jobs)
}

// TestStrangeMember: a message came from a process that is not a member of the communicator, before
// the members were known.
func TestStrangeMember(t *testing.T) {
	jobs := join(t, place{"", 3, 1, Config{Providers: []string{}}})
	var w []*Comm
	for _, j := range jobs {
		w = append(w, j.World())
	}
	require.NoError(t, ahead(w[0], firstCID, 0, 1, 2).Send(within(t), []byte("not mine"), 2, 0))
	require.NoError(t, ahead(w[1], firstCID, 1, 2).Send(within(t), []byte("mine"), 1, 0))
	settle(t, w[0], w[2])
	settle(t, w[1], w[2])
	c := ahead(w[2], firstCID, 1, 2)
	got := make([]byte, 8)
	require.Equal(t, Status{Source: 0, Tag: 0, Len: 4}, received(t, c, got, AnySource, 0))
	require.Equal(t, "mine", string(got[:4]))
	_, err := w[2].Recv(within(t), nil, 0, 0)
	requireError(t, err, ErrProtocol, 0)
	settle(t, w[1], w[2])
	closeAll(t, jobs)
}
