package impi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/vast"
)

// TestBeyond4GiB: a message of 5 GiB and some bytes, of which each is checked.
func TestBeyond4GiB(t *testing.T) {
	need.Long(t)
	need.Memory(t, 6)
	for _, p := range places {
		if p.name != "tcp" && p.name != "shm" { // a plain copy; as shm, but slowly
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			w := worlds(t, p)
			src, period := vast.Source(t)
			dst := vast.Sink(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*limit)
			defer cancel()
			var st Status
			both(t, func() error { return w[0].Send(ctx, src, 1, 1) },
				func() (err error) { st, err = w[1].Recv(ctx, dst, 0, 1); return err })
			require.Equal(t, Status{Tag: 1, Len: vast.Len}, st)
			vast.Check(t, dst, period)
		})
	}
}
