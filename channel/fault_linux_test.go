package channel

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// across joins two nodes, each with an RDMA device of its own, so that what they say
// to each other goes over the veth pair of the guest.
func across(t *testing.T, opts ...Option) []*Node {
	need.Guest(t)
	nodes, errs := tryJoinEach(t, 2, func(rank int) []Option {
		return append(opts, WithProviders("ibv"), WithDevices([]string{"rxe0", "rxe1"}[rank]))
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() { closeAll(t, nodes) })
	return nodes
}

// flow is messages from one node to another and back, one after the other.
type flow struct {
	there, back chan error // what ended each direction
	passed      func() int // messages so far
	stop        func()
}

// begin starts a flow and returns when a few messages are through.
func begin(t *testing.T, nodes []*Node, size int) *flow {
	f := &flow{there: make(chan error, 1), back: make(chan error, 1)}
	over, few := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	passed := 0
	f.stop = sync.OnceFunc(func() { close(over) })
	f.passed = func() int {
		mu.Lock()
		defer mu.Unlock()
		return passed
	}
	ctx := within(t)
	for i, ended := range []chan error{f.there, f.back} {
		s, out := send(t, nodes[i], 1-i, size)
		r, in := receive(t, nodes[1-i], i, size)
		message := func(k int) error {
			out[0], out[size-1] = byte(k), byte(k>>8)
			if err := r.Start(); err != nil {
				return err
			}
			sent := make(chan error, 1)
			go func() {
				err := s.Start()
				if err == nil {
					err = s.WaitContext(ctx)
				}
				sent <- err
			}()
			err := r.WaitContext(ctx)
			if serr := <-sent; err != nil || serr != nil {
				return errors.Join(err, serr)
			}
			if !bytes.Equal(in, out) {
				return errors.New("wrong bytes")
			}
			return nil
		}
		go func() {
			for k := 0; ; k++ {
				if err := message(k); err != nil {
					ended <- err
					return
				}
				mu.Lock()
				if passed++; passed == 20 {
					close(few)
				}
				mu.Unlock()
				select {
				case <-over:
					ended <- nil
					return
				default:
				}
			}
		}()
	}
	select {
	case <-few:
	case err := <-f.there:
		require.NoError(t, err)
	case err := <-f.back:
		require.NoError(t, err)
	}
	return f
}

// outage is a way in which the network is away, and comes back.
type outage struct{ away, on string }

var (
	loss    = outage{lossy("v0") + lossy("v1"), "tc qdisc del dev v0 clsact; tc qdisc del dev v1 clsact"}
	severed = outage{linkDown, linkUp}
)

// lossy drops what comes in. Dropped on their way out soft-RoCE would send the packets
// again at once, without end.
func lossy(dev string) string {
	return fmt.Sprintf("tc qdisc add dev %[1]s clsact; tc filter add dev %[1]s ingress protocol ip flower ip_proto udp dst_port 4791 action drop; ", dev)
}

// What takes the link away and brings it back, with the route that goes with it.
const (
	linkDown = "ip link set v0 down"
	linkUp   = "ip link set v0 up; ip route add 10.0.0.2 dev v0 src 10.0.0.1 table 100"
)

func shell(t testing.TB, commands string) {
	t.Helper()
	system(t, "sh", "-c", commands)
}

// TestOutage: a network that is away for less than the retries take delays messages;
// one that stays away ends them, with an error that names the rank, within the peer
// timeout. Where its own link is down soft-RoCE does not try again: that ends them at
// once, with the same error.
//
// To take the network away and bring it back takes a busy guest up to three seconds:
// with the default peer timeout the retries would be over by then.
func TestOutage(t *testing.T) {
	need.Guest(t)
	need.Full(t)
	for _, size := range []int{1000, 300_000} {
		t.Run("loss for a moment", func(t *testing.T) {
			f := begin(t, across(t, WithPeerTimeout(time.Minute)), size)
			shell(t, loss.away)
			time.Sleep(300 * time.Millisecond) // the moment
			shell(t, loss.on)
			before := f.passed()
			eventually(t, func() bool { return f.passed() > before+2 || len(f.there)+len(f.back) > 0 })
			f.stop()
			require.NoError(t, <-f.there)
			require.NoError(t, <-f.back)
		})
	}
	for name, o := range map[string]outage{"loss": loss, "link": severed} {
		t.Run(name+" for good", func(t *testing.T) {
			const most = 5 * time.Second
			f := begin(t, across(t, WithPeerTimeout(most)), 300_000)
			shell(t, o.away)
			defer shell(t, o.on)
			start := time.Now()
			for _, ended := range []chan error{f.there, f.back} {
				err := <-ended
				require.True(t, errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable), err)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Contains(t, []int{0, 1}, e.Rank)
			}
			requireInTime(t, time.Since(start), most)
		})
	}
}

// TestSilence: a peer whose queue pair does not answer, though its process lives, is
// found dead within the peer timeout.
func TestSilence(t *testing.T) {
	const most = 5 * time.Second
	nodes := across(t, WithPeerTimeout(most))
	talk(t, nodes[0], nodes[1])
	require.NoError(t, queueTo(t, nodes[1], 0).link.qp.Modify(&verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState))
	start := time.Now()
	r, _ := receive(t, nodes[0], 1, 100_000) // says so
	require.NoError(t, r.Start())
	err := r.WaitContext(within(t))
	requireInTime(t, time.Since(start), most)
	require.ErrorIs(t, err, ErrPeerDied)
	require.ErrorContains(t, err, "from rank 1")
}

// requireInTime judges, in the long form, what the peer timeout bounds.
func requireInTime(t *testing.T, took, most time.Duration) {
	t.Helper()
	t.Log("ended after", took)
	if need.WantLong() {
		require.Less(t, took, 4*most) // the guest emulates its CPUs
	}
}

// TestDeviceGone: a device that is taken away under load ends what goes through it, or
// goes when the nodes do: the kernel has soft-RoCE wait for them.
func TestDeviceGone(t *testing.T) {
	nodes := across(t, WithPeerTimeout(5*time.Second))
	f := begin(t, nodes, 100_000)
	gone := make(chan error, 1)
	go func() { gone <- exec.Command("rdma", "link", "delete", "rxe0").Run() }()
	over := time.AfterFunc(3*time.Second, func() { f.stop() })
	defer over.Stop()
	for _, ended := range []chan error{f.there, f.back} {
		if err := <-ended; err != nil {
			require.True(t, errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable), err)
		}
	}
	closeAll(t, nodes)
	select {
	case err := <-gone:
		require.NoError(t, err)
	case <-within(t).Done():
		t.Fatal("the device is still there")
	}
	system(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "v0")
}
