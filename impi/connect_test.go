package impi

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// assembling is a job whose hosts are about to connect.
type assembling struct {
	rosters   []*roster
	listeners []net.Listener
}

func newDancing(t testing.TB, hosts int, secret string) *assembling {
	d := &assembling{}
	var list []member
	for i := range hosts {
		l := ranks.Listen(t)
		d.listeners = append(d.listeners, l)
		list = append(list, member{client: i, packetLen: 1000, ackMark: 1, hiWater: 1, addrs: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()},
			procs: []packet.Proc{{Host: startup.HostIDOf(netip.MustParseAddr("127.0.0.1")), PID: int64(i)}}})
	}
	for i := range hosts {
		d.rosters = append(d.rosters, &roster{hosts: list, me: i, secret: []byte(secret), job: "job", tagUB: 1 << 20,
			finished: func() error { return nil }, abandon: func() {}})
	}
	return d
}

func (d *assembling) dial(t testing.TB, host int) net.Conn {
	conn := ranks.Dial(t, d.listeners[host].Addr().String())
	return conn
}

// host connects to the others and makes a job of that.
func (d *assembling) host(ctx context.Context, i int, timeout time.Duration) (*Job, error) {
	c, err := Config{PeerTimeout: timeout, Providers: []string{}, Log: slog.New(slog.DiscardHandler)}.complete()
	if err != nil {
		return nil, err
	}
	return assemble(ctx, "join", d.rosters[i], d.listeners[i], c)
}

// refused: the other end closes the connection, without a word.
func refused(t testing.TB, conn net.Conn) {
	t.Helper()
	b, err := io.ReadAll(conn)
	if err != nil {
		require.False(t, isTimeout(err), "%v", err) // it may be reset
	}
	require.Empty(t, b)
}

func isTimeout(err error) bool {
	n, ok := err.(net.Error)
	return ok && n.Timeout()
}

// number is what a connection begins with.
func number(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// TestStrangers: a connection that does not come from a host of the job is refused, or ignored
// until the hosts have connected, and does not delay them.
func TestStrangers(t *testing.T) {
	const secret = "a secret of some length"
	d := newDancing(t, 3, secret)
	jobs, errs := make([]*Job, 3), make([]error, 3)
	var hosts sync.WaitGroup
	start := func(i int) { hosts.Go(func() { jobs[i], errs[i] = d.host(within(t), i, limit) }) }
	start(0)
	var slow []net.Conn
	for _, say := range [][]byte{nil, {0}, number(2), append(number(1), "SLUICE"...)} { // and nothing more
		conn := d.dial(t, 0)
		_, err := conn.Write(say)
		require.NoError(t, err)
		slow = append(slow, conn)
	}
	for _, say := range [][]byte{number(0), number(3), number(1<<32 - 1), []byte("GET / HTTP/1.1\r\n\r\n")} {
		conn := d.dial(t, 0)
		_, err := conn.Write(say)
		require.NoError(t, err)
		refused(t, conn)
	}
	for _, key := range []string{"", "another secret"} {
		conn := d.dial(t, 0)
		_, err := conn.Write(number(1))
		require.NoError(t, err)
		_, err = proof.Dial(conn, proof.Params{Secret: []byte(key), Insecure: key == "", Protocol: "sluice-impi", Major: wireMajor, Job: "job", Self: number(1)}, number(0))
		require.Error(t, err)
	}
	// A peer that knows the secret but not its own number.
	conn := d.dial(t, 0)
	_, err := conn.Write(number(1))
	require.NoError(t, err)
	_, err = proof.Dial(conn, proof.Params{Secret: []byte(secret), Protocol: "sluice-impi", Major: wireMajor, Job: "job", Self: number(2)}, number(0))
	require.Error(t, err)
	start(1)
	start(2)
	hosts.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	for _, conn := range slow { // they have had their time
		b, err := io.ReadAll(conn)
		require.False(t, isTimeout(err), "%v", err)
		require.Empty(t, b)
	}
	a, b := jobs[1].World(), jobs[2].World()
	both(t, func() error { return a.Ssend(within(t), nil, 2, 0) }, func() error { _, err := b.Recv(within(t), nil, 1, 0); return err })
	closeAll(t, jobs)
}

// closing is a listener that says when no more hosts are awaited.
type closing struct {
	*net.TCPListener
	said func()
}

func (c closing) SetDeadline(t time.Time) error {
	defer c.said()
	return c.TCPListener.SetDeadline(t)
}

// TestTwice: of two connections of one host the second is refused.
func TestTwice(t *testing.T) {
	d := newDancing(t, 3, "")
	var jobs [3]*Job
	var errs [3]error
	var hosts sync.WaitGroup
	ctx, cancel := context.WithCancel(within(t)) // until host 0 has all its connections
	d.listeners[0] = closing{d.listeners[0].(*net.TCPListener), cancel}
	hosts.Go(func() { jobs[0], errs[0] = d.host(within(t), 0, limit) })
	known := proof.Params{Insecure: true, Protocol: "sluice-impi", Major: wireMajor, Job: "job", Self: number(1)}
	first := d.dial(t, 0)
	_, err := first.Write(number(1))
	require.NoError(t, err)
	_, err = proof.Dial(first, known, number(0))
	require.NoError(t, err)
	// The second may be taken first, as long as the other is refused.
	second := d.dial(t, 0)
	_, err = second.Write(number(1))
	require.NoError(t, err)
	_, err = proof.Dial(second, known, number(0))
	require.NoError(t, err)
	ended := make(chan net.Conn, 2)
	for _, conn := range []net.Conn{first, second} {
		go func() {
			io.Copy(io.Discard, conn)
			ended <- conn
		}()
	}
	loser := <-ended
	winner := first
	if loser == first {
		winner = second
	}
	winner.Close()
	<-ended
	// Host 2 connects to 0; what was host 1 is dead, and host 1 cannot come any more.
	hosts.Go(func() { jobs[2], errs[2] = d.host(ctx, 2, limit) })
	hosts.Wait()
	require.ErrorIs(t, errs[2], ErrUnreachable)
	if errs[0] == nil {
		closeAll(t, jobs[:1])
	}
}

// refusing is a listener that closes its first connections.
type refusing struct {
	*net.TCPListener
	n int
}

func (r *refusing) Accept() (net.Conn, error) {
	for ; r.n > 0; r.n-- {
		conn, err := r.TCPListener.Accept()
		if err != nil {
			return nil, err
		}
		conn.Close()
	}
	return r.TCPListener.Accept()
}

// TestRefused: a host that is refused, as one is for want of room, tries again, but not for ever.
func TestRefused(t *testing.T) {
	for _, n := range []int{refusals, refusals + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			d := newDancing(t, 2, "")
			d.listeners[0] = &refusing{d.listeners[0].(*net.TCPListener), n}
			ctx, cancel := context.WithCancel(within(t))
			var jobs [2]*Job
			var errs [2]error
			var hosts sync.WaitGroup
			hosts.Go(func() { jobs[0], errs[0] = d.host(ctx, 0, limit) })
			jobs[1], errs[1] = d.host(within(t), 1, limit)
			if n > refusals {
				cancel()
				hosts.Wait()
				requireError(t, errs[1], ErrUnreachable, 0)
				return
			}
			hosts.Wait()
			cancel()
			require.Equal(t, [2]error{}, errs)
			closeAll(t, jobs[:])
		})
	}
}

// apart has two hosts be on different machines, as far as their addresses tell.
func (d *assembling) apart() {
	h := &d.rosters[0].hosts[1]
	h.addrs = append(h.addrs, netip.MustParseAddrPort("127.0.0.2:1"))
}

// TestAbsent: a host that never comes is named.
func TestAbsent(t *testing.T) {
	t.Run("foreign", func(t *testing.T) {
		d := newDancing(t, 2, "")
		d.rosters[0].hosts[1].foreign = true
		ctx := within(t)
		_, err := d.host(ctx, 0, 50*time.Millisecond)
		requireError(t, err, ErrUnreachable, 1)
		require.ErrorContains(t, err, "not connected within 50ms")
		require.NoError(t, ctx.Err())
	})
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprint("above, apart: ", apart), func(t *testing.T) {
			d := newDancing(t, 2, "")
			if apart {
				d.apart()
			}
			d.listeners[1].Close()
			c, err := Config{Log: slog.New(slog.DiscardHandler), Providers: []string{}, warnAfter: time.Millisecond}.complete()
			require.NoError(t, err)
			_, err = assemble(within(t), "join", d.rosters[0], d.listeners[0], c)
			requireError(t, err, ErrUnreachable, 1)
			require.ErrorContains(t, err, "refused")
		})
	}
	t.Run("no listener", func(t *testing.T) {
		d := newDancing(t, 2, "")
		d.listeners[0].Close()
		_, err := d.host(within(t), 1, limit)
		requireError(t, err, ErrUnreachable, 0)
	})
	t.Run("ended", func(t *testing.T) {
		d := newDancing(t, 2, "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := d.host(ctx, 0, limit)
		requireError(t, err, ErrUnreachable, 1)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestHeld: a process that is stopped before it connects is waited for, without a rendezvous too.
func TestHeld(t *testing.T) {
	for i := range 4 {
		slow, apart := i%2, i/2 > 0
		t.Run(fmt.Sprint(slow, apart), func(t *testing.T) {
			d := newDancing(t, 2, "")
			if apart {
				d.apart()
			}
			joinHeld(t, slow, func(i int, c Config) (*Job, error) {
				return assemble(within(t), "join", d.rosters[i], d.listeners[i], c)
			})
		})
	}
}

// joinHeld has two hosts join a job, of which slow starts when the other has waited for it.
func joinHeld(t *testing.T, slow int, join func(i int, c Config) (*Job, error)) {
	h := &held{nil, quietConfig().Handler(), make(chan struct{})}
	over, cancel := context.WithCancel(t.Context()) // the other has joined, or failed
	defer cancel()
	var jobs [2]*Job
	var errs [2]error
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			c, err := Config{Log: slog.New(h), Providers: []string{}, warnAfter: 50 * time.Millisecond}.complete()
			require.NoError(t, err)
			if i != slow {
				defer cancel()
			} else {
				select {
				case <-h.let:
				case <-over.Done():
				}
			}
			jobs[i], errs[i] = join(i, c)
		})
	}
	wg.Wait()
	require.Equal(t, [2]error{}, errs)
	closeAll(t, jobs[:])
}

// TestListening: the listener of a host that has yet to connect is asked over one connection, which is
// replaced if it is closed.
func TestListening(t *testing.T) {
	for _, comes := range []bool{false, true} {
		t.Run(fmt.Sprint(comes), func(t *testing.T) {
			d := newDancing(t, 2, "")
			h := &counter{Handler: quietConfig().Handler()}
			c, err := Config{Log: slog.New(h), Providers: []string{}, warnAfter: time.Millisecond}.complete()
			require.NoError(t, err)
			var jobs [2]*Job
			var errs [2]error
			var hosts sync.WaitGroup
			hosts.Go(func() { jobs[0], errs[0] = assemble(within(t), "join", d.rosters[0], d.listeners[0], c) })
			ranks.Eventually(t, func() bool { return h.n.Load() >= 4 }) // after 8 questions
			mark := d.dial(t, 1)
			var probes []net.Conn
			for {
				conn, err := d.listeners[1].Accept()
				require.NoError(t, err)
				if conn.RemoteAddr().String() == mark.LocalAddr().String() {
					break
				}
				probes = append(probes, conn)
			}
			require.Len(t, probes, 1)
			probes[0].Close()
			again, err := d.listeners[1].Accept()
			require.NoError(t, err)
			defer again.Close()
			if !comes {
				d.listeners[1].Close()
				again.Close()
				hosts.Wait()
				requireError(t, errs[0], ErrUnreachable, 1)
				return
			}
			hosts.Go(func() { jobs[1], errs[1] = d.host(within(t), 1, limit) })
			hosts.Wait()
			require.Equal(t, [2]error{}, errs)
			refused(t, again)
			closeAll(t, jobs[:])
		})
	}
}

// counter counts records.
type counter struct {
	slog.Handler
	n atomic.Int32
}

func (c *counter) Handle(context.Context, slog.Record) error {
	c.n.Add(1)
	return nil
}

// TestAwaitLog: a wait is logged at doubling pauses.
func TestAwaitLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counter{Handler: quietConfig().Handler()}
		c := &Config{PeerTimeout: time.Second, Log: slog.New(h)}
		_, stop := (&roster{}).await(t.Context(), c, func() []int { return []int{0} }, func(context.Context, int) error { return nil })
		time.Sleep(16500 * time.Millisecond)
		stop()
		require.EqualValues(t, 5, h.n.Load(), "after 1, 2, 4, 8 and 16 s")
	})
}

// TestCrowd: of too many connections that say nothing the oldest give way, and the hosts
// find each other.
func TestCrowd(t *testing.T) {
	d := newDancing(t, 2, "")
	jobs, errs := make([]*Job, 2), make([]error, 2)
	var hosts sync.WaitGroup
	hosts.Go(func() { jobs[0], errs[0] = d.host(within(t), 0, limit) })
	var crowd []net.Conn
	for range maxGreetings + 2*2 + 5 {
		crowd = append(crowd, d.dial(t, 0))
	}
	for _, conn := range crowd[:5] {
		refused(t, conn)
	}
	hosts.Go(func() { jobs[1], errs[1] = d.host(within(t), 1, limit) })
	hosts.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	closeAll(t, jobs)
}
