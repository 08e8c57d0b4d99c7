package fanout

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What goes over the wire, byte by byte.
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
