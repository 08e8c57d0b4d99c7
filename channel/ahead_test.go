package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// far is by how many starts sends are ahead of the receives, or the receives of the sends.
func far(sends bool) int {
	switch {
	case need.WantLong() && sends:
		return 100_000
	case testing.Short():
		return 3 * aheadMost / 2
	}
	return 3000
}

// heap returns the bytes of the Go heap that are in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC() // calls finalizers, of what the next one frees
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// aheadBytes and aheadRest bound the heap that starts which are ahead take, in both ranks, beside their
// handles: each, and in all.
const (
	aheadBytes = 300
	aheadRest  = 4 << 20
)

// TestFarAhead: sends that are far ahead of the first receive, and receives that are far ahead of the first
// send, are no error. They take little memory, and meet in their order.
func TestFarAhead(t *testing.T) {
	mark := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }
	everywhere(t, func(t *testing.T, a, b *Node) {
		for stream, size := range []int{8, 2000, 20_000} {
			for _, sendsAhead := range []bool{true, false} {
				// -short has those that lie in a ring, and those of which the other side is told.
				if testing.Short() && !(size == 20_000 || stream == 0 && sendsAhead) {
					continue
				}
				count := far(sendsAhead)
				ctx, cancel := context.WithTimeout(t.Context(), limit+time.Duration(count)*10*time.Millisecond)
				defer cancel()
				many, one := allocate(t, a, count+size, true), allocate(t, b, size, true)
				if !sendsAhead {
					many, one = allocate(t, b, size, true), allocate(t, a, size, true)
				}
				number := OnStream(stream)
				var handles []*Handle
				for i := range count {
					var h *Handle
					var err error
					if sendsAhead {
						h, err = a.DeclareSend(Contiguous(many[i:][:size]), b.Rank(), number)
					} else {
						h, err = b.DeclareReceive(Contiguous(many), a.Rank(), number)
					}
					require.NoError(t, err)
					handles = append(handles, h)
				}
				var h *Handle
				var err error
				if sendsAhead {
					h, err = b.DeclareReceive(Contiguous(one), a.Rank(), number)
					for i := range many {
						many[i] = byte(i*i>>3 + i>>8)
					}
				} else { // one after the other into the same memory
					h, err = a.DeclareSend(Contiguous(one), b.Rank(), number)
				}
				require.NoError(t, err)
				require.NoError(t, handles[0].Start()) // connects
				require.NoError(t, h.Run(within(t)))
				require.NoError(t, handles[0].WaitContext(within(t)))

				before := heap()
				startAll(t, handles...)
				for _, n := range [][2]*Node{{a, b}, {b, a}} { // what they tell has come when this has
					require.NoError(t, n[0].Send(within(t), []byte{1}, n[1].Rank(), OnStream(99)))
					require.NoError(t, n[1].Recv(within(t), make([]byte, 1), n[0].Rank(), OnStream(99)))
				}
				require.Less(t, heap()-before, count*aheadBytes+aheadRest)
				t.Logf("%d messages of %d bytes, sends ahead %v: %d bytes of heap each", count, size, sendsAhead, (heap()-before)/count)
				waited := make(chan error, count)
				go func() {
					for _, m := range handles {
						waited <- m.WaitContext(ctx)
					}
				}()
				for i := range handles {
					if !sendsAhead {
						copy(one, mark(i))
					}
					require.NoError(t, h.Run(ctx), "start %d", i)
					if sendsAhead {
						require.True(t, bytes.Equal(many[i:][:size], one), "start %d", i)
						continue
					}
					require.NoError(t, <-waited, "start %d", i)
					require.Equal(t, mark(i), many[:4], "start %d", i)
				}
				for i := 0; sendsAhead && i < count; i++ {
					require.NoError(t, <-waited)
				}
				for _, m := range handles {
					require.NoError(t, m.Close())
				}
				require.NoError(t, h.Close())
			}
		}
	})
}

// TestCompleteUnreceived: what the documentation promises of sends whose receives have not started is so on
// every provider, from either memory, and wherever in its ring a stream is.
func TestCompleteUnreceived(t *testing.T) {
	const promised, size = 15, 4 << 10
	everywhere(t, func(t *testing.T, a, b *Node) {
		for stream, alloc := range []bool{true, false} {
			number := OnStream(stream)
			declare := func(n int) (send, receive *Handle, out, in []byte) {
				out, in = allocate(t, a, n, alloc), allocate(t, b, n, alloc)
				send = declareSend(t, a, Contiguous(out), b.Rank(), number)
				receive = declareReceive(t, b, Contiguous(in), a.Rank(), number)
				return send, receive, out, in
			}
			before, taken, _, _ := declare(100)
			for range 2*window - 1 { // and the sender is not told of the last ones that they have been taken
				require.NoError(t, before.Run(within(t)))
				require.NoError(t, taken.Run(within(t)))
			}
			var receives []*Handle
			var ins [][]byte
			for i := range promised {
				s, r, out, in := declare(size)
				for k := range out {
					out[k] = byte(i + k + k>>8)
				}
				require.NoError(t, s.Run(within(t)), "send %d, alloc %v", i, alloc)
				clear(out)
				receives, ins = append(receives, r), append(ins, in)
			}
			for i, r := range receives {
				require.NoError(t, r.Run(within(t)))
				for k, v := range ins[i] {
					require.Equal(t, byte(i+k+k>>8), v, "byte %d of message %d", k, i)
				}
			}
		}
	})
}

// TestReceiverComputes: messages come into the receives that have been started, whether the ranks were
// connected then or not, while the receiver makes no call.
func TestReceiverComputes(t *testing.T) {
	everywhere(t, func(t *testing.T, a, b *Node) {
		if a == b {
			return // the waiting sender is the receiver
		}
		const size, count = 20_000, ringSlots
		out, in := allocate(t, a, size, true), allocate(t, b, count*size, true)
		s := declareSend(t, a, Contiguous(out), b.Rank())
		var receives []*Handle
		for i := range count {
			r := declareReceive(t, b, Contiguous(in[i*size:][:size]), a.Rank())
			require.NoError(t, r.Start())
			receives = append(receives, r)
		}
		for i := range count {
			out[size-1] = byte(i)
			require.NoError(t, s.Run(within(t)), "start %d", i)
		}
		for i, r := range receives {
			require.NoError(t, r.WaitContext(within(t)))
			require.EqualValues(t, byte(i), in[(i+1)*size-1])
		}
	})
}
