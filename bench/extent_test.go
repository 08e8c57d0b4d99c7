package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A message in blocks is found wrong where one byte of a block is, between the blocks, or
// behind them.
func TestExtentCheck(t *testing.T) {
	t.Parallel()
	for _, s := range []extent{{48, 0}, {48, 8}, {48, 16}, {48, 48}, {0, 0}} {
		buf := make([]byte, s.span()+guard)
		fillGuard(buf)
		s.fill(buf, 7)
		require.NoError(t, s.check("op", buf, 7), "%+v", s)
		for i := range buf {
			buf[i] ^= 1
			var bad *CorruptError
			require.ErrorAs(t, s.check("op", buf, 7), &bad, "%+v: byte %d", s, i)
			buf[i] ^= 1
		}
		if s.bytes > 0 {
			require.Error(t, s.check("op", buf, 8), "another message")
		}
	}
}
