package channel

import (
	"bytes"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// across joins two nodes, each with an RDMA device of its own, so that what they say
// to each other goes over the veth pair of the guest.
func across(t *testing.T, opts ...Option) []*Node {
	inGuest(t)
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
	stop        func() int // after as many messages
}

// begin starts a flow and returns when a few messages are through.
func begin(t *testing.T, nodes []*Node, size int) *flow {
	f := &flow{there: make(chan error, 1), back: make(chan error, 1)}
	over, few := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	passed := 0
	f.stop = sync.OnceValue(func() int {
		close(over)
		mu.Lock()
		defer mu.Unlock()
		return passed
	})
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

// outages are ways in which the network is away, and comes back.
var outages = []struct {
	name     string
	away, on []string
}{
	{"loss", []string{
		"tc qdisc add dev v0 clsact; tc filter add dev v0 ingress protocol ip flower ip_proto udp dst_port 4791 action drop",
		"tc qdisc add dev v1 clsact; tc filter add dev v1 ingress protocol ip flower ip_proto udp dst_port 4791 action drop",
	}, []string{"tc qdisc del dev v0 clsact", "tc qdisc del dev v1 clsact"}},
	{"link", []string{linkDown}, []string{linkUp}},
}

// What takes the link away and brings it back, with the route that goes with it.
const (
	linkDown = "ip link set v0 down"
	linkUp   = "ip link set v0 up; ip route add 10.0.0.2 dev v0 src 10.0.0.1 table 100"
)

func shell(t testing.TB, commands []string) {
	t.Helper()
	for _, c := range commands {
		system(t, "sh", "-c", c)
	}
}

// TestOutage: a network that is away for less than the retries take delays messages;
// one that stays away ends them, with an error that names the rank, within the peer
// timeout. Where its own link is down soft-RoCE does not retry: that ends them at once,
// with the same error.
func TestOutage(t *testing.T) {
	inGuest(t)
	for _, o := range outages {
		for _, size := range []int{1000, 300_000} {
			t.Run(o.name+" for a moment", func(t *testing.T) {
				f := begin(t, across(t), size)
				shell(t, o.away)
				time.Sleep(300 * time.Millisecond)
				shell(t, o.on)
				time.Sleep(300 * time.Millisecond)
				passed := f.stop()
				for _, ended := range []chan error{f.there, f.back} {
					if err := <-ended; o.name == "loss" {
						require.NoError(t, err)
					} else if err != nil {
						require.ErrorIs(t, err, ErrPeerDied)
					}
				}
				t.Log(passed, "messages")
			})
		}
		t.Run(o.name+" for good", func(t *testing.T) {
			const most = 5 * time.Second
			f := begin(t, across(t, WithPeerTimeout(most)), 300_000)
			start := time.Now()
			shell(t, o.away)
			defer shell(t, o.on)
			for i, ended := range []chan error{f.there, f.back} {
				err := <-ended
				require.True(t, errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable), err)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Contains(t, []int{0, 1}, e.Rank, i)
			}
			took := time.Since(start)
			require.Less(t, took, most+2*verdictTime)
			t.Log("ended after", took)
		})
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
