//go:build unix

package impi

import (
	"fmt"
	"io"
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
				setups[me], links[me] = newSetup(me)
				for i := range devices {
					// Of the first pair one end knows another secret.
					var secret []byte
					if i == 0 {
						secret = []byte{32: byte(me)}
					}
					setups[me].open(t, all[tcp], secret)
				}
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

// newSetup is the setup of a host of a job of two.
func newSetup(me int) (*rcSetup, *link) {
	e := &engine{log: slog.New(slog.DiscardHandler), me: me, procs: fuzzProcs, hostOf: []int32{0, 1}}
	e.processes = []*process{{e: e, rank: int32(me)}}
	return &rcSetup{window: minWindow, j: &Job{e: e, roster: &roster{}, config: Config{Log: e.log, PeerTimeout: limit}}}, &link{e: e, host: 1 - me}
}

func (s *rcSetup) open(t *testing.T, dev *verbs.Device, secret []byte) *rcDevice {
	s.j.roster = &roster{secret: secret}
	d, err := s.j.openDevice(dev, s.window, s.receives(1), 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.ctx.Close()) })
	s.devices = append(s.devices, d)
	return d
}

// heldUp is a connection of which the reader gets the first byte when the second has come.
type heldUp struct {
	net.Conn
	rest []byte
}

func (h *heldUp) Read(b []byte) (int, error) {
	if h.rest == nil {
		h.rest = make([]byte, 2)
		if _, err := io.ReadFull(h.Conn, h.rest); err != nil {
			return 0, err
		}
	}
	if len(h.rest) == 0 {
		return h.Conn.Read(b)
	}
	b[0], h.rest = h.rest[0], h.rest[1:]
	return 1, nil
}

// TestLateProbe: a host that is held up until the other has given up a probe does not make the queue
// pair fail.
func TestLateProbe(t *testing.T) {
	need.Full(t)
	t.Parallel() // it waits for that
	for _, provider := range []string{"tcp", "shm"} {
		t.Run(provider, func(t *testing.T) {
			need.Provider(t, provider)
			t.Parallel()
			all, err := verbs.Devices()
			require.NoError(t, err)
			dev := all[slices.IndexFunc(all, func(d *verbs.Device) bool { return d.Provider() == provider })]
			var setups [2]*rcSetup
			var carriers [2]*rcCarrier
			var ends [2]verbs.Endpoint
			for me := range setups {
				s, l := newSetup(me)
				carriers[me], err = s.open(t, dev, []byte{32: 1}).newCarrier(l, []int32{int32(1 - me)}, s.receives(1))
				require.NoError(t, err)
				ends[me], err = carriers[me].qp.Endpoint()
				require.NoError(t, err)
				setups[me] = s
			}
			a, b := connected(t)
			defer a.Close()
			defer b.Close()
			conns := []net.Conn{a, &heldUp{Conn: b}}
			works := make(chan bool)
			for me, s := range setups {
				go func() {
					ok, err := s.try(within(t), conns[me], carriers[me], ends[1-me])
					works <- ok && err == nil
				}()
			}
			require.True(t, <-works)
			require.True(t, <-works)
		})
	}
}
