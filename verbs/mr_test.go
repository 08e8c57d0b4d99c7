package verbs

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSGE: SGE returns the element requested, or one that every post refuses. The test
// does not register regions of more than 4 GiB.
func TestSGE(t *testing.T) {
	t.Parallel()
	const addr, size, lkey = 1 << 40, 1 << 34, 7
	mr := &MR{addr: addr, length: size, lkey: lkey}
	for _, c := range []struct {
		offset, length int64
		want           SGE
	}{
		{0, 0, SGE{addr, 0, lkey}},
		{0, maxSGELength, SGE{addr, maxSGELength, lkey}},
		{size - maxSGELength, maxSGELength, SGE{addr + size - maxSGELength, maxSGELength, lkey}},
		{1<<32 + 5, 8, SGE{addr + 1<<32 + 5, 8, lkey}},
		{size, 0, SGE{addr + size, 0, lkey}},
		{0, maxSGELength + 1, SGE{maxSGELength + 1, badLength, lkey}},
		{0, 1 << 32, SGE{1 << 32, badLength, lkey}},
		{5, 1<<32 + 8, SGE{1<<32 + 8, badLength, lkey}},
		{0, size, SGE{size, badLength, lkey}},
		{0, -1, SGE{math.MaxUint64, badLength, lkey}},
		{-1, 0, SGE{math.MaxUint64, badOffset, lkey}},
		{-8, 8, SGE{math.MaxUint64 - 7, badOffset, lkey}},
		{size + 1, 0, SGE{size + 1, badOffset, lkey}},
		{size, 1, SGE{size + 1, badEnd, lkey}},
		{size - maxSGELength + 1, maxSGELength, SGE{size + 1, badEnd, lkey}},
	} {
		if c.offset != int64(int(c.offset)) || c.length != int64(int(c.length)) {
			continue // an int of 32 bits has no such value
		}
		got := mr.SGE(int(c.offset), int(c.length))
		require.Equal(t, c.want, got, "%d bytes at %d", c.length, c.offset)
		require.Equal(t, got.Length >= badEnd, refused([]SGE{{}, got}) != nil, "%d bytes at %d", c.length, c.offset)
	}
}

// TestTooLargeMR: the error says in bytes, and readably, how large a region may be.
func TestTooLargeMR(t *testing.T) {
	ctx, err := openFake(&fakeContext{})
	require.NoError(t, err)
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	_, err = pd.AllocMR(1<<30+1, AccessAll)
	require.ErrorIs(t, err, ErrInvalid)
	require.EqualError(t, err, "verbs fake0: allocate MR: invalid argument: 1073741825 bytes: want at most 1073741824 (1 GiB) for one region")
	require.NoError(t, pd.Close())
	require.NoError(t, ctx.Close())
}
