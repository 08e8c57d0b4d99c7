package logbuf

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// Lines of several writers come whole, while another looks.
func TestBuffer(t *testing.T) {
	var b Buffer
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				fmt.Fprintln(&b, "one line")
			}
		})
	}
	seen := 0
	for range 100 {
		n := len(b.String())
		require.GreaterOrEqual(t, n, seen)
		seen = n
	}
	writers.Wait()
	require.Equal(t, strings.Repeat("one line\n", 400), b.String())
}
