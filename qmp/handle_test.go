package qmp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
)

// toSelf makes a node alone with a send of some words to itself and their receive.
func toSelf(t *testing.T, words int) (c *Comm, s, r *Handle, out, in []uint64) {
	t.Helper()
	c = over(t, "shm", 1)[0].DefaultComm()
	out, in = make([]uint64, words), make([]uint64, words)
	for i := range out {
		out[i] = uint64(i + 1)
	}
	s = must(c.DeclareSendTo(must(DeclareMsgMem(out)), 0, 0))
	r = must(c.DeclareReceiveFrom(must(DeclareMsgMem(in)), 0, 0))
	return c, s, r, out, in
}

// TestStates: what may be done with a handle, and when.
func TestStates(t *testing.T) {
	_, s, r, out, in := toSelf(t, 1000)
	require.NoError(t, r.Wait(), "not active")
	done, err := r.IsComplete()
	require.True(t, done)
	require.NoError(t, err)
	require.Equal(t, StatusSuccess, r.ErrorNumber())
	require.Equal(t, "successful", r.ErrorString())

	require.NoError(t, r.Start())
	done, err = r.IsComplete()
	require.False(t, done)
	require.NoError(t, err)
	err = status(t, StatusInvalidOp, r.Start())
	require.ErrorIs(t, err, channel.ErrActive)
	require.ErrorContains(t, err, "qmp: start receive from 0: a sending/receiving operation applied in a wrong state: channel: ")
	require.Equal(t, StatusInvalidOp, r.ErrorNumber())
	require.Equal(t, err.Error(), r.ErrorString())
	require.Equal(t, StatusSuccess, s.ErrorNumber())
	require.Equal(t, StatusInvalidOp, (*Handle)(nil).ErrorNumber(), "the last of the process")
	require.Equal(t, err.Error(), (*Handle)(nil).ErrorString())
	require.Equal(t, err, LastError())
	status(t, StatusInvalidOp, r.Close())
	status(t, StatusInvalidOp, r.ChangeAddress(Bytes(in)))

	require.NoError(t, s.Start())
	require.NoError(t, LastError(), "of the last operation")
	require.Equal(t, StatusInvalidOp, r.ErrorNumber(), "of another handle")
	require.NoError(t, WaitAll(s, r))
	require.Equal(t, StatusSuccess, r.ErrorNumber(), "after a success")
	require.Equal(t, "successful", r.ErrorString())
	require.Equal(t, out, in)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	status(t, StatusInvalidOp, s.Start())
	status(t, StatusInvalidOp, s.Wait())
	_, err = DeclareMultiple(r, s)
	status(t, StatusInvalidArg, err)
	for _, h := range []*Handle{nil, {}} {
		status(t, StatusInvalidArg, h.Start())
		status(t, StatusInvalidArg, h.Wait())
		status(t, StatusInvalidArg, h.WaitTimeout(1))
		status(t, StatusInvalidArg, h.Close())
		status(t, StatusInvalidArg, h.CloseAll())
		status(t, StatusInvalidArg, h.ChangeAddress())
		status(t, StatusInvalidArg, h.ChangeAddressMultiple())
		status(t, StatusInvalidArg, h.ClearToSend(CTSReady))
		status(t, StatusInvalidArg, WaitAll(h))
		done, err := h.IsComplete()
		require.True(t, done)
		status(t, StatusInvalidArg, err)
	}
}

// TestWaitTimeout: the message goes on when a timeout has passed.
func TestWaitTimeout(t *testing.T) {
	c, s, r, out, in := toSelf(t, 3)
	m := c.Machine()
	require.Equal(t, DefaultWaitTimeout, m.SetWaitTimeout(time.Millisecond))
	require.Equal(t, 10*time.Minute, DefaultWaitTimeout)
	require.NoError(t, r.Start())
	for _, wait := range []func() error{
		r.Wait, func() error { return r.WaitTimeout(1) }, func() error { return WaitAll(s, r) },
		func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 1)
			defer cancel()
			return r.WaitContext(ctx)
		},
	} {
		err := status(t, StatusTimeout, wait())
		require.ErrorIs(t, err, channel.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		status(t, StatusInvalidOp, r.Start())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, status(t, StatusError, r.WaitContext(ctx)), context.Canceled)
	require.NoError(t, s.Start())
	require.Equal(t, time.Millisecond, m.SetWaitTimeout(0))
	require.NoError(t, WaitAll(s, r))
	require.Equal(t, out, in)
	require.NoError(t, r.Start())
	require.NoError(t, s.Start())
	require.NoError(t, r.Wait(), "without end")
	require.NoError(t, s.WaitTimeout(0))
}

// TestMultiple: members may be waited for, come in any order, are flattened, and live on.
func TestMultiple(t *testing.T) {
	c := over(t, "shm", 1)[0].DefaultComm()
	require.NoError(t, c.DeclareLogicalTopology([]int{1, 1}))
	in := make([]int64, 4)
	var handles []*Handle
	for axis := range 2 {
		for i, dir := range []int{Plus, Minus} {
			handles = append(handles,
				must(c.DeclareSendRelative(must(DeclareMsgMem([]int64{int64(10*axis + dir)})), axis, dir, 1)),
				must(c.DeclareReceiveRelative(must(DeclareMsgMem(in[2*axis+i:][:1])), axis, -dir, 1)))
		}
	}
	pair, err := DeclareSendRecvPairs(handles[:2]...)
	require.NoError(t, err)
	all, err := DeclareMultiple(append([]*Handle{pair}, handles[2:]...)...)
	require.NoError(t, err)
	for range 3 {
		clear(in)
		require.NoError(t, all.Start())
		status(t, StatusInvalidOp, all.Start())
		require.NoError(t, handles[3].Wait())
		require.NoError(t, handles[3].Wait())
		require.NoError(t, all.Wait())
		require.NoError(t, all.Wait())
		require.Equal(t, []int64{1, -1, 11, 9}, in)
		require.NoError(t, pair.Start())
		require.NoError(t, WaitAll(pair, handles[7]))
	}
	require.NoError(t, handles[1].Start())
	status(t, StatusInvalidOp, all.Start())
	require.NoError(t, handles[0].Start())
	require.NoError(t, WaitAll(handles...))

	status(t, StatusInvalidOp, handles[0].Close())
	require.NoError(t, pair.Close())
	status(t, StatusInvalidOp, handles[0].Close())
	require.NoError(t, all.Start())
	require.NoError(t, all.Wait())
	require.NoError(t, all.CloseAll())
	for _, h := range handles {
		status(t, StatusInvalidOp, h.Start())
	}
	for _, wrong := range [][]*Handle{nil, {nil}, {{}}} {
		_, err := DeclareMultiple(wrong...)
		status(t, StatusInvalidArg, err)
	}
	s := must(c.DeclareSendTo(must(DeclareMsgMem(in)), 0, 0))
	_, err = DeclareMultiple(s, s)
	status(t, StatusInvalidArg, err)
	_, err = DeclareSendRecvPairs(s)
	status(t, StatusInvalidArg, err)
}

// TestChangeAddress: the same layout over other memory; never of a handle that is active.
func TestChangeAddress(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		each(t, over(t, provider, 2), func(c *Comm) error {
			const n = 3000 // words: above the eager size
			other := 1 - c.NodeNumber()
			fields := [3][]uint64{}
			for f := range fields {
				fields[f] = make([]uint64, 4*n)
				for i := range fields[f] {
					fields[f][i] = uint64(f*100_000 + i)
				}
			}
			array := []Strided{{Base: Bytes(fields[0]), BlockSize: 8, Blocks: n, Stride: 16}, {Base: Bytes(fields[0]), Offset: 8, BlockSize: 8, Blocks: n, Stride: 16}}
			s := must(c.DeclareSendTo(must(DeclareStridedArrayMsgMem(array)), other, 0))
			in := [2][]uint64{make([]uint64, 2*n), make([]uint64, 2*n)}
			r := must(c.DeclareReceiveFrom(must(DeclareMsgMem(in[0])), other, 0))
			both := must(DeclareMultiple(s, r))
			exchange := func(into []uint64, evens, odds int) error {
				if err := both.Start(); err != nil {
					return err
				}
				if c.NodeNumber() == 0 { // in flight, or at least not waited for
					if err := r.ChangeAddress(Bytes(in[1])); !errors.Is(err, StatusInvalidOp) {
						return fmt.Errorf("in flight: %v", err)
					}
					if err := both.ChangeAddressMultiple(Bytes(fields[1]), Bytes(fields[1]), Bytes(in[1])); !errors.Is(err, StatusInvalidOp) {
						return fmt.Errorf("in flight: %v", err)
					}
				}
				if err := both.Wait(); err != nil {
					return err
				}
				for i := range n {
					if err := errors.Join(want("even", into[i], uint64(evens*100_000+2*i)), want("odd", into[n+i], uint64(odds*100_000+2*i+1))); err != nil {
						return err
					}
				}
				return nil
			}
			for range 2 {
				err := errors.Join(exchange(in[0], 0, 0),
					both.ChangeAddressMultiple(Bytes(fields[1]), Bytes(fields[2]), Bytes(in[1])), exchange(in[1], 1, 2),
					s.ChangeAddress(Bytes(fields[2]), Bytes(fields[2])), exchange(in[1], 2, 2),
					s.ChangeAddress(Bytes(fields[0]), Bytes(fields[0])), r.ChangeAddress(Bytes(in[0])))
				if err != nil {
					return err
				}
			}
			for status, err := range map[Status]error{
				StatusBadMemory:  s.ChangeAddress(Bytes(fields[0]), Bytes(fields[0][:2*n-1])),
				StatusInvalidArg: s.ChangeAddress(Bytes(fields[0])),
			} {
				if !errors.Is(err, status) {
					return fmt.Errorf("%v in place of %v", err, status)
				}
			}
			for _, err := range []error{both.ChangeAddress(Bytes(in[0])), both.ChangeAddressMultiple(Bytes(in[0])), r.ChangeAddressMultiple(Bytes(in[0]))} {
				if !errors.Is(err, StatusInvalidArg) {
					return err
				}
			}
			return exchange(in[0], 0, 0) // as if nothing had happened
		})
	})
}

// TestClearToSend: a receive that is ready takes its message before it is started, and
// its place on the stream.
func TestClearToSend(t *testing.T) {
	_, s, r, out, in := toSelf(t, 2)
	both := must(DeclareMultiple(s, r))
	status(t, StatusInvalidArg, r.ClearToSend(2))
	status(t, StatusInvalidOp, s.ClearToSend(CTSReady))
	for _, cts := range []ClearToSend{CTSNotReady, CTSDisabled, CTSReady, CTSReady} {
		require.NoError(t, r.ClearToSend(cts))
	}
	status(t, StatusInvalidOp, r.ClearToSend(CTSNotReady))
	status(t, StatusInvalidOp, r.ClearToSend(CTSDisabled))
	status(t, StatusInvalidOp, r.Close())
	status(t, StatusInvalidOp, r.ChangeAddress(Bytes(in)))
	require.NoError(t, r.Wait(), "it has not been started")
	done, err := r.IsComplete()
	require.True(t, done)
	require.NoError(t, err)
	require.NoError(t, s.Start())
	require.NoError(t, s.Wait())
	require.NoError(t, r.Start())
	status(t, StatusInvalidOp, r.ClearToSend(CTSReady))
	require.NoError(t, r.Wait())
	require.Equal(t, out, in)

	for range 3 {
		clear(in)
		require.NoError(t, both.ClearToSend(CTSReady))
		require.NoError(t, both.Start())
		status(t, StatusInvalidOp, both.Start())
		require.NoError(t, both.Wait())
		require.Equal(t, out, in)
		require.NoError(t, both.ClearToSend(CTSReady))
		require.NoError(t, both.Start())
		require.NoError(t, both.WaitTimeout(0))
		clear(in)
		require.NoError(t, both.Start(), "as ever")
		require.NoError(t, both.Wait())
		require.Equal(t, out, in)
	}
	require.NoError(t, both.ClearToSend(CTSReady))
	require.NoError(t, both.Start())
	for done := false; !done; {
		done, err = both.IsComplete()
		require.NoError(t, err)
	}
	require.NoError(t, both.CloseAll())
	require.Zero(t, r.watch.Load())
}

// TestClearToSendPair: a multiple of which one receive has no message yet is not over,
// and a timeout leaves it so.
func TestClearToSendPair(t *testing.T) {
	c, s, r, _, _ := toSelf(t, 1)
	second := make([]uint64, 1)
	q := must(c.DeclareReceiveFrom(must(DeclareMsgMem(second)), 0, 0))
	both := must(DeclareMultiple(r, q))
	require.NoError(t, q.ClearToSend(CTSReady))
	require.NoError(t, both.Start())
	require.NoError(t, s.Start())
	require.NoError(t, q.Wait())
	status(t, StatusTimeout, both.WaitTimeout(1))
	status(t, StatusInvalidOp, both.Start())
	status(t, StatusInvalidOp, both.Close())
	require.NoError(t, s.Wait())
	require.NoError(t, s.Start())
	require.NoError(t, both.Wait())
	require.Equal(t, []uint64{1}, second)

	require.NoError(t, r.Start())
	require.NoError(t, q.ClearToSend(CTSReady))
	status(t, StatusInvalidOp, both.Start())
	require.NoError(t, q.Start())
	for range 2 {
		require.NoError(t, s.Wait())
		require.NoError(t, s.Start())
	}
	require.NoError(t, WaitAll(r, q, s))
}

// TestDeclareErrors: what cannot be declared.
func TestDeclareErrors(t *testing.T) {
	c := over(t, "shm", 1)[0].DefaultComm()
	b := make([]uint64, 4)
	mm := must(DeclareMsgMem(b))
	declare := []func(mm *MsgMem, axis, dir int) (*Handle, error){
		func(mm *MsgMem, axis, dir int) (*Handle, error) { return c.DeclareSendRelative(mm, axis, dir, 0) },
		func(mm *MsgMem, axis, dir int) (*Handle, error) { return c.DeclareReceiveRelative(mm, axis, dir, 0) },
	}
	for _, d := range declare {
		_, err := d(mm, 0, Plus)
		require.ErrorContains(t, status(t, StatusNoNeighborInfo, err), "relative: topology neighboring information error: no topology has been declared")
	}
	require.NoError(t, c.DeclareLogicalTopology([]int{1, 1}))
	freed := must(DeclareMsgMem(b))
	freed.Free()
	require.Zero(t, freed.Len())
	require.Equal(t, 32, mm.Len())
	for _, d := range declare {
		for _, at := range [][2]int{{-1, Plus}, {2, Plus}, {0, 0}, {0, 2}} {
			_, err := d(mm, at[0], at[1])
			status(t, StatusInvalidArg, err)
		}
		for _, mm := range []*MsgMem{nil, freed} {
			_, err := d(mm, 0, Plus)
			status(t, StatusBadMemory, err)
		}
	}
	for _, node := range []int{-1, 1} {
		_, err := c.DeclareSendTo(mm, node, 0)
		require.EqualError(t, status(t, StatusNodeOutRange, err), fmt.Sprintf("qmp: declare send to: remote node number is out of range: node %d of 1", node))
		_, err = c.DeclareReceiveFrom(mm, node, 0)
		status(t, StatusNodeOutRange, err)
	}
	overlapping := must(DeclareStridedMsgMem(b, 16, 2, 8))
	_, err := c.DeclareReceiveFrom(overlapping, 0, 0)
	status(t, StatusBadMemory, err)
	_, err = c.DeclareSendTo(overlapping, 0, 0)
	require.NoError(t, err)
}

// TestLengths: the two ends of a message differ in length.
func TestLengths(t *testing.T) {
	c, s, _, out, in := toSelf(t, 5)
	short := must(c.DeclareReceiveFrom(must(DeclareMsgMem(in[:4])), 0, 0))
	require.NoError(t, short.Start())
	require.NoError(t, s.Start())
	require.ErrorIs(t, status(t, StatusMemSizeErr, WaitAll(short, s)), channel.ErrLength)
	require.Equal(t, make([]uint64, 5), in)
	require.NotEqual(t, out, in)
}

// TestLeft: a node that has left is an error with the error of package channel inside.
func TestLeft(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		list := over(t, provider, 2)
		c := list[0].DefaultComm()
		r := must(c.DeclareReceiveFrom(must(DeclareMsgMem(make([]byte, 8))), 1, 0))
		s := must(list[1].DefaultComm().DeclareSendTo(must(DeclareMsgMem(make([]byte, 8))), 0, 0))
		for range 2 { // connected
			require.NoError(t, r.Start())
			require.NoError(t, s.Start())
			require.NoError(t, WaitAll(s, r))
		}
		require.NoError(t, r.Start())
		require.NoError(t, list[1].Finalize())
		require.NoError(t, list[1].Node().Close())
		require.ErrorIs(t, status(t, StatusError, r.Wait()), channel.ErrPeerLeft)
		require.Equal(t, StatusError, r.ErrorNumber())
	})
}

// TestErrorFunction: it sees every error, and what was set before comes back.
func TestErrorFunction(t *testing.T) {
	c, _, r, _, _ := toSelf(t, 1)
	var seen []error
	require.Nil(t, SetErrorFunction(func(err error) { seen = append(seen, err) }))
	first := r.Close()
	require.NoError(t, first)
	errs := []error{c.DeclareLogicalTopology(nil), r.Start()}
	_, err := c.DeclareSendTo(nil, 0, 0)
	old := SetErrorFunction(nil)
	require.Equal(t, append(errs, err), seen)
	require.NotNil(t, old)
	require.Error(t, r.Start())
	require.Len(t, seen, 3)
	require.Nil(t, SetErrorFunction(nil))
}

// TestStatus: numbers and words are those of the C API.
func TestStatus(t *testing.T) {
	require.Equal(t, Status(0x1001), StatusError)
	require.Equal(t, Status(0x1002), StatusNotInited)
	require.Equal(t, Status(0x100a), StatusTopologyExists)
	require.Equal(t, Status(0x1010), StatusInvalidTopology)
	require.Equal(t, Status(0x1019), StatusTimeout)
	require.Equal(t, int(StatusTimeout-StatusError)+1, len(statusStrings))
	require.Equal(t, "successful", ErrorString(StatusSuccess))
	require.Equal(t, "general QMP error", ErrorString(StatusError))
	require.Equal(t, "invalid declared topology", ErrorString(StatusInvalidTopology))
	require.Equal(t, "remote node number is out of range", ErrorString(StatusNodeOutRange))
	require.Equal(t, "communication time out", ErrorString(StatusTimeout))
	require.Equal(t, "unknown error code 4122", ErrorString(StatusTimeout+1))
	require.Equal(t, "unknown error code -1", ErrorString(-1))
	require.Equal(t, StatusSuccess, StatusOf(nil))
	require.Equal(t, StatusError, StatusOf(errors.New("else")))
	require.Equal(t, StatusTimeout, StatusOf(fmt.Errorf("around: %w", StatusTimeout)))
	require.Equal(t, StatusChTimeout, StatusOf(channel.ErrUnreachable))
	require.NotErrorIs(t, &Error{Op: "x", Status: StatusTimeout}, StatusError)
	seen := slices.Clone(statusStrings[:])
	slices.Sort(seen)
	require.Len(t, slices.Compact(seen), len(statusStrings))
}
