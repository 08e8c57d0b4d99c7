package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// The driver finishes a response that polling has started, once polling stops.
func TestDriverCatchesUp(t *testing.T) {
	ends := connect(t, 4<<20, func(int) *verbs.Context {
		dev, err := verbs.Find("roce_lo")
		require.NoError(t, err)
		ctx, err := dev.Open(verbs.Config{Address: "127.0.0.1"})
		require.NoError(t, err)
		return ctx
	})
	for i := range ends[1].mem.Bytes() {
		ends[1].mem.Bytes()[i] = byte(i) + byte(i>>12)
	}
	want := string(ends[1].mem.Bytes())
	var wcs [1]verbs.WC
	rounds := need.InLong(5, 20)
	for range rounds {
		clear(ends[0].mem.Bytes())
		n, err := ends[0].qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{ends[0].mem.SGE(0, 4<<20)}, RemoteAddr: ends[1].mem.Addr(), RKey: ends[1].mem.RKey()}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for range 100 {
			_, err := ends[1].cq.Poll(wcs[:])
			require.NoError(t, err)
		}
		n, err = ends[0].cq.Wait(t.Context(), wcs[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, wcs[0].Err())
		require.Equal(t, want, string(ends[0].mem.Bytes()))
	}
}
