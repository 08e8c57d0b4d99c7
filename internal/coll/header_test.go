package coll

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeader: a golden vector.
func TestHeader(t *testing.T) {
	t.Parallel()
	shape := Shape{Kind: Reduce, Size: 9, Root: 5, Elem: 8, Count: 4}
	h := Header{Sequence: 0x01020304, Fault: 7, Signature: Sign(&shape, Rabenseifner, 0xab, 0x7f)}
	wire, err := h.AppendBinary(nil)
	require.NoError(t, err)
	require.Equal(t, "04030201"+ // sequence
		"07000000"+ // fault
		"20000050"+"00ffd522", // signature: 2, 5 (algorithm), ab, 7f, 005, 0000020
		hex.EncodeToString(wire))
	parsed, err := ParseHeader(wire)
	require.NoError(t, err)
	require.Equal(t, h, parsed)
	_, err = ParseHeader(wire[:15])
	require.ErrorIs(t, err, ErrShort)
}

// TestSignature: what is signed comes out again, and what differs is named; what
// not all members know is not signed.
func TestSignature(t *testing.T) {
	t.Parallel()
	shape := Shape{Kind: Reduce, Size: 9, Root: 5, Elem: 8, Count: 4}
	s := Sign(&shape, Rabenseifner, 255, 127)
	require.Equal(t, Reduce, s.Kind())
	require.Equal(t, Rabenseifner, s.Algorithm())
	require.EqualValues(t, 255, s.Operation())
	require.EqualValues(t, 127, s.Type())
	require.Equal(t, 5, s.Root())
	bytes, ok := s.Length()
	require.True(t, ok)
	require.Equal(t, 32, bytes)
	require.Equal(t, "reduce by rabenseifner, operation 255, type 127, root 5, 32 bytes", s.String())
	require.Equal(t, "nothing differs", s.Differ(s, Names{}, "us", "them"))
	require.Equal(t, "algorithm: us has rabenseifner, them has linear", s.Differ(Sign(&shape, Linear, 255, 127), Names{}, "us", "them"))

	counts := Shape{Kind: Gather, Size: 2, Rank: 1, Elem: 1, Counts: []int{1, 2}}
	other := counts
	other.Counts = []int{2, 1}
	require.Equal(t, Sign(&counts, Linear, 0, 0), Sign(&other, Linear, 0, 0))
	counts.Agreed, other.Agreed = true, true
	require.NotEqual(t, Sign(&counts, Linear, 0, 0), Sign(&other, Linear, 0, 0))
	require.Regexp(t, "^bytes: us has by member, hash [0-9a-f]{7}, them has by member, hash", Sign(&counts, Linear, 0, 0).Differ(Sign(&other, Linear, 0, 0), Names{}, "us", "them"))

	sends := Shape{Kind: Alltoall, Size: 2, Elem: 1, SendCounts: []int{1, 2}, RecvCounts: []int{1, 3}}
	require.Equal(t, Sign(&Shape{Kind: Alltoall, Size: 2, Elem: 1}, Pairwise, 0, 0), Sign(&sends, Pairwise, 0, 0))
	require.Equal(t, "barrier by linear", Sign(&Shape{Kind: Barrier, Size: 2, Root: 1}, Linear, 0, 0).String())
}

func FuzzParseHeader(f *testing.F) {
	wire, _ := Header{1, 2, 3}.AppendBinary(nil)
	f.Add(wire)
	f.Add(wire[:15])
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			require.ErrorIs(t, err, ErrShort)
			return
		}
		again, err := h.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b[:HeaderSize], again)
		require.NotEmpty(t, h.Signature.String())
		require.Equal(t, "nothing differs", h.Signature.Differ(h.Signature, Names{}, "us", "them"))
		require.NotEmpty(t, (&MismatchError{From: 1, Via: 2, Got: h}).Error())
	})
}
