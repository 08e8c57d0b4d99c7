package fanout

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// The wire format, byte by byte.
func TestWire(t *testing.T) {
	require.Equal(t,
		"03000000"+ // requests
			"00000000"+ // version
			"0201000000000000"+ // acknowledged
			"ffffffffffffffff",
		hex.EncodeToString(appendAsk(nil, 3, []uint64{0x102, 1<<64 - 1})))
	require.Equal(t,
		"0403020100000000"+ // sequence number
			"02000000000000"+ // bytes
			"03"+ // flags
			"6162",
		hex.EncodeToString(append(appendRecord(nil, 0x1020304, 2, wantsAck|unasked), "ab"...)))
}

// An ask has at most as many acknowledgements as its buffer holds, and asks for at most a window.
func TestAskBounds(t *testing.T) {
	for _, c := range []struct {
		requests, acks int
		ok             bool
	}{{0, 0, true}, {maxWindow, askMost, true}, {maxWindow + 1, 0, false}, {0, askMost + 1, false}} {
		n, acks, err := parseAsk(appendAsk(nil, c.requests, make([]uint64, c.acks)))
		require.Equal(t, c.ok, err == nil, "%d requests, %d acknowledgements: %v", c.requests, c.acks, err)
		if c.ok {
			require.Equal(t, []int{c.requests, 8 * c.acks}, []int{n, len(acks)})
		}
	}
}

// Chunks that come back are inserted in order; removing one anywhere leaves the others unchanged.
func TestChunksInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		var q chunks
		var want []uint64
		var list []*chunk
		for _, seq := range r.Perm(20) {
			c := &chunk{seq: uint64(seq), bytes: 1 + seq}
			i, _ := slices.BinarySearch(want, c.seq)
			want, list = slices.Insert(want, i, c.seq), slices.Insert(list, i, c)
			q.insert(c)
			switch r.IntN(4) {
			case 0:
				require.Same(t, list[0], q.pop())
				want, list = want[1:], list[1:]
			case 1:
				i := r.IntN(len(list))
				q.remove(list[i])
				want, list = slices.Delete(want, i, i+1), slices.Delete(list, i, i+1)
			}
			got, bytes := []uint64{}, 0
			for _, c := range q.list[q.head:] {
				got, bytes = append(got, c.seq), bytes+c.bytes
			}
			require.Equal(t, append([]uint64{}, want...), got)
			require.Equal(t, bytes, q.bytes)
		}
	}
}

// A message takes as many chunks as fit, to the byte; chunks that have come back go first.
func TestFollowing(t *testing.T) {
	var s Supplier
	first, next := &chunk{seq: 1, bytes: 100}, &chunk{seq: 2, bytes: 50}
	s.again.push(first)
	s.queue.push(next)
	for _, c := range []*chunk{first, next} {
		require.Nil(t, s.following(recordHeader+c.bytes-1))
		require.Same(t, c, s.following(recordHeader+c.bytes))
	}
	require.Nil(t, s.following(1<<62))
}

// An unasked chunk answers no request.
func TestUnasked(t *testing.T) {
	w := comms(t, "here", 2)
	ctx := ranks.Within(t)
	c := newClient(t, w[1], Numbered(), Window(8))
	b := append(appendRecord(nil, 0, 1, 0), 'a')
	b = append(appendRecord(b, 1, 1, unasked), 'b')
	require.NoError(t, w[0].Send(ctx, b, 1, TagNumbered))
	for seq := range uint64(2) {
		k := received(t, ctx, c)
		require.Equal(t, seq, k.Seq())
		require.Equal(t, 7, c.sources[0].asked, "requests that are not answered, after chunk %d", seq)
		k.Release()
	}
	require.NoError(t, c.Close())
}

func FuzzParseAsk(f *testing.F) {
	f.Add(appendAsk(nil, 1, nil))
	f.Add(appendAsk(nil, maxWindow, []uint64{1, 1 << 63}))
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0})
	f.Add(appendAsk(nil, 1, []uint64{5})[:15])
	f.Fuzz(func(t *testing.T, b []byte) {
		n, acks, err := parseAsk(b)
		if err != nil {
			return
		}
		var seqs []uint64
		for len(acks) > 0 {
			var seq uint64
			seq, acks = nextNumber(acks)
			seqs = append(seqs, seq)
		}
		require.Equal(t, b, appendAsk(nil, n, seqs))
	})
}

func FuzzParseRecord(f *testing.F) {
	record := func(seq uint64, b string, f flags) []byte {
		return append(appendRecord(nil, seq, len(b), f), b...)
	}
	f.Add(record(7, "chunk", 0))
	f.Add(append(record(1, "a", wantsAck), record(2, "b", unasked)...))
	f.Add(record(1, "a", allFlags+1))
	f.Add(record(1, "", 0))
	f.Add(record(1, "cut", 0)[:18])
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		for rest := b; len(rest) > 0; {
			seq, flags, chunk, next, err := parseRecord(rest)
			if err != nil {
				return
			}
			require.NotEmpty(t, chunk)
			again = append(again, record(seq, string(chunk), flags)...)
			rest = next
		}
		require.Equal(t, len(b), len(again))
		require.Equal(t, string(b), string(again))
	})
}

// The window follows Little's law.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		answer, service time.Duration
		most, want      int
	}{
		{0, time.Millisecond, 8, 1},
		{time.Microsecond, time.Second, 8, 2},
		{10 * time.Millisecond, 3 * time.Millisecond, 8, 5},
		{10 * time.Millisecond, 0, 8, 8},
	} {
		p := newPace(clientOptions{window: c.most, adaptive: true})
		if c.answer > 0 {
			p.sample(c.answer)
			p.sample(c.answer + 1) // the shortest counts
		}
		p.service = c.service
		require.Equal(t, c.want, p.fit(), "%v, %v", c.answer, c.service)
		for range 2 * paceEpoch { // what was short once is forgotten
			p.sample(time.Hour)
		}
		require.Equal(t, c.most, p.fit())
	}
	p := newPace(clientOptions{window: 3})
	p.idle()
	p.asked(1)
	p.came()
	require.Equal(t, 3, p.window)
}
