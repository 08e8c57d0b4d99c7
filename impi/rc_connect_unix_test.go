//go:build unix

package impi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
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
	return &rcSetup{window: minWindow, ranks: machine.Population{machine.Self()}, j: &Job{e: e, roster: &roster{}, config: Config{Log: e.log, PeerTimeout: limit}}}, &link{e: e, host: 1 - me}
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
			result := make(chan bool, 2)
			for me, s := range setups {
				go func() {
					why, err := s.try(within(t), conns[me], carriers[me], ends[1-me])
					result <- why == nil && err == nil
				}()
			}
			require.True(t, <-result)
			require.True(t, <-result)
		})
	}
}

// TestHeldLater: a host that is stopped when it has connected is waited for.
func TestHeldLater(t *testing.T) {
	for slow := range 2 {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			d := newDancing(t, 2, "")
			d.apart()
			a, b := connected(t)
			conns := [][]*net.TCPConn{{nil, a}, {b, nil}}
			joinHeld(t, slow, func(i int, c Config) (*Job, error) { return newJob(within(t), d.rosters[i], conns[i], c) })
		})
	}
}

// TestVerdicts: what the peer says, and the end of the connection, which ends a probe.
func TestVerdicts(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	for _, c := range []struct {
		says []byte
		is   verdict
		err  error
	}{{[]byte{0}, broken, nil}, {[]byte{1}, late, nil}, {[]byte{2}, works, nil}, {[]byte{3}, broken, ErrProtocol}, {nil, broken, io.EOF}} {
		a, b := net.Pipe()
		go func() {
			b.Write(c.says)
			io.ReadFull(b, make([]byte, 1))
			b.Close()
		}()
		mine, theirs, err := swapVerdicts(within(t), a, nothing)
		require.Equal(t, works, mine)
		require.Equal(t, c.is, theirs)
		require.ErrorIs(t, err, c.err)
		a.Close()
	}
	a, b := net.Pipe()
	require.NoError(t, b.Close())
	_, _, err := swapVerdicts(within(t), a, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, io.EOF)
}

// TestWindow: receives and sends of all pairs fit the memory, or are the fewest.
func TestWindow(t *testing.T) {
	for window := range uint32(2 * maxWindow) {
		n := slots(window)
		require.Equal(t, 1, bits.OnesCount32(n))
		require.True(t, n >= rcSlotsMin && n <= rcSlots)
		require.True(t, n == rcSlotsMin || n <= window/2)
	}
	j := &Job{roster: &roster{hosts: []member{{}, {}}}}
	for pairs := 1; pairs < 5000; pairs = pairs*5/4 + 1 {
		w := j.window(pairs)
		require.True(t, w >= minWindow && w <= maxWindow && w%4 == 0)
		if w > minWindow {
			require.LessOrEqual(t, uint64(pairs)*uint64(w+rcSpare+slots(w))*mappedSlot, rcPinned)
		}
	}
	require.EqualValues(t, maxWindow, j.window(1))
	require.EqualValues(t, minWindow, j.window(5000))
}

// TestNear: hosts with the same addresses, in any order.
func TestNear(t *testing.T) {
	at := func(addrs ...string) (m member) {
		for i, a := range addrs {
			m.addrs = append(m.addrs, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(i)))
		}
		return m
	}
	r := &roster{me: 1, hosts: []member{at("::ffff:10.0.0.1", "fd00::1"), at("fd00::1", "10.0.0.1"), at("fd00::1"), at("10.0.0.1", "fd00::2")}}
	require.Equal(t, []bool{true, true, false, false}, []bool{r.near(0), r.near(1), r.near(2), r.near(3)})
	require.Equal(t, 2, r.beside())
}

// TestFewest: messages of all sizes with the smallest windows and the fewest slots.
func TestFewest(t *testing.T) {
	defer func(was uint64) { rcPinned = was }(rcPinned)
	rcPinned = 0
	eachWay(t, func(t *testing.T, a, b *Comm) {
		sizes := []int{0, 8, 100, 300, 3000, 8000, 60_000, 200_000}
		const rounds = 60
		ctx := within(t)
		each := func(c *Comm, peer int) error {
			var list []Request
			var check []func() error
			for i := range rounds * len(sizes) {
				n := sizes[i*7%len(sizes)]
				in, out := make([]byte, n), bytes.Repeat([]byte{byte(i)}, n)
				r := irecv(t, c, in, peer, i)
				s := isend(t, c, out, peer, i)
				list = append(list, r, s)
				check = append(check, func() error {
					if !bytes.Equal(in, out) {
						return fmt.Errorf("message %d of %d bytes", i, n)
					}
					return nil
				})
			}
			for _, q := range list {
				if _, err := q.Wait(ctx); err != nil {
					return err
				}
			}
			for _, c := range check {
				if err := c(); err != nil {
					return err
				}
			}
			return nil
		}
		w := []*Comm{a, b}
		ranks.Each(t, 2, func(i int) error { return each(w[i], 1-i) })
	})
}
