package main

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// One wrong bit anywhere, in the message or in the guard behind it, is found
// where it is.
func TestCheckPatternFindsFlippedByte(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 7, 8, 9, 63, 200} {
		b := make([]byte, n+guard)
		fillGuard(b)
		fillPattern(b[:n], seedFor(0, n, "send"))
		require.NoError(t, checkPattern("send", b, n, seedFor(0, n, "send")))
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				err := checkPattern("send", b, n, seedFor(0, n, "send"))
				var corrupt *CorruptError
				require.ErrorAs(t, err, &corrupt)
				require.Equal(t, CorruptError{Op: "send", Bytes: n, Offset: i, Got: b[i], Want: b[i] ^ 1<<bit}, *corrupt)
				b[i] ^= 1 << bit
			}
		}
	}
}

// What another rank, size or operation would have sent is not taken for the
// right message; nor are its blocks in another order.
func TestCheckPatternTellsMessagesApart(t *testing.T) {
	t.Parallel()
	const n = 256
	b := make([]byte, n+guard)
	fillGuard(b)
	fillPattern(b[:n], seedFor(0, n, "send"))
	for _, seed := range []uint64{seedFor(1, n, "send"), seedFor(0, n-1, "send"), seedFor(0, n, "write"), seedFor(0, n, "write-imm")} {
		require.Error(t, checkPattern("send", b, n, seed))
	}
	for i := 8; i < n; i += 8 {
		c := append(append(append([]byte{}, b[i:n]...), b[:i]...), b[n:]...)
		require.Error(t, checkPattern("send", c, n, seedFor(0, n, "send")), "rotated by %d", i)
	}
}

// Of atomics the word is looked at, and what the last of them found.
func TestCheckAtomic(t *testing.T) {
	t.Parallel()
	word := func(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
	p := pair{op: operationOf("fetch-add")}
	require.NoError(t, try(func() { p.checkWord(word(5), 5) }))
	var bad *CorruptError
	require.ErrorAs(t, try(func() { p.checkWord(word(4), 5) }), &bad)
	require.Equal(t, "fetch-add", bad.Op)
}

func TestPatternByte(t *testing.T) {
	t.Parallel()
	b := make([]byte, 21)
	fillPattern(b, 9)
	for i := range b {
		require.Equal(t, b[i], patternByte(9, i))
	}
}
