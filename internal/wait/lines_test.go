package wait

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTakeLines: one byte of each line is written, and nothing behind.
func TestTakeLines(t *testing.T) {
	for _, n := range []int{0, 1, 64, 65, 1000} {
		b := bytes.Repeat([]byte{7}, 1024)
		TakeLines(b[:n])
		for i, v := range b {
			if i < n && i%64 == 0 {
				require.Zero(t, v)
			} else {
				require.EqualValues(t, 7, v)
			}
		}
	}
}
