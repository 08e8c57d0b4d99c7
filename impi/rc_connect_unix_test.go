//go:build unix

package impi

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// TestNextDevice: the first pair of devices cannot reach each other, although they say
// so: the next one is used, and none if there is none.
func TestNextDevice(t *testing.T) {
	need.Full(t)
	t.Parallel()
	all, err := verbs.Devices()
	require.NoError(t, err)
	tcp := slices.IndexFunc(all, func(d *verbs.Device) bool { return d.Provider() == "tcp" })
	require.GreaterOrEqual(t, tcp, 0)
	for _, devices := range []int{1, 2} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			t.Parallel() // it waits for the first pair
			var links [2]*link
			var setups [2]*rcSetup
			for me := range setups {
				e := &engine{log: slog.New(slog.DiscardHandler), me: me, procs: fuzzProcs, hostOf: []int32{0, 1}}
				e.processes = []*process{{e: e, rank: int32(me)}}
				s := &rcSetup{window: minWindow, j: &Job{e: e, roster: &roster{}, config: Config{Log: e.log, PeerTimeout: limit}}}
				for i := range devices {
					// Of the first pair one end knows another secret.
					s.j.roster = &roster{}
					if i == 0 {
						s.j.roster.secret = []byte{32: byte(me)}
					}
					d, err := s.j.openDevice(all[tcp], s.receives(1), 1)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, d.ctx.Close()) })
					s.devices = append(s.devices, d)
				}
				setups[me], links[me] = s, &link{e: e, host: 1 - me}
			}
			var conns [2]*net.TCPConn
			conns[0], conns[1] = connected(t)
			var carriers [2]*rcCarrier
			var errs [2]error
			var wg sync.WaitGroup
			for me, s := range setups {
				wg.Go(func() { carriers[me], errs[me] = s.negotiate(within(t), links[me], conns[me]) })
			}
			wg.Wait()
			for me, c := range carriers {
				require.NoError(t, errs[me])
				require.Equal(t, devices > 1, c != nil)
				if c != nil {
					require.Same(t, setups[me].devices[1], c.d)
				}
				conns[me].Close()
			}
		})
	}
}
