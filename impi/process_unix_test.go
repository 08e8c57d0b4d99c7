//go:build unix

package impi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// envPlace tells the process of a rank by which place it reaches the others.
const envPlace = "SLUICE_IMPI_TEST_PLACE"

func TestMain(m *testing.M) {
	ranks.Play(acts, play)
	// Parallel tests wait for clocks and for processes.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	nettest.Main(m)
}

// act is what a rank does in a job that is made of a node.
type act struct {
	before      func(rank int, args []string) error // the job is made; may be nil
	do          func(ctx context.Context, j *Job, args []string) error
	with        func(ctx context.Context, n *channel.Node, j *Job) error // instead of do
	peerTimeout time.Duration
}

var acts = map[string]act{
	"exchange": {do: exchangeAll},
	"death":    {do: death},
	"stop":     {do: stopped},
	"inside":   {do: inside, peerTimeout: 3 * time.Second},
	"last":     {do: lastLook},
	"verdict":  {do: lateVerdict},
	"lend":     {with: lendAll},
	"lenddie":  {with: lendAndDie},
	"lendstop": {with: lendAndStop},
}

func play(a act, args []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var config Config
	for _, p := range places {
		if p.name == os.Getenv(envPlace) {
			config = p.config
		}
	}
	if wire, ok := nettest.Wire(os.Getenv(envPlace)); ok {
		config.Providers = []string{wire}
	}
	config.PeerTimeout = a.peerTimeout
	n, err := channel.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	if a.before != nil {
		if err := a.before(n.Rank(), args); err != nil {
			return err
		}
	}
	config.Addr = netip.MustParseAddr(cmp.Or(os.Getenv(nettest.EnvAddress), "127.0.0.1"))
	j, err := FromNode(ctx, n, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close(ctx)) }()
	for rank := range j.World().Size() {
		if got := j.Provider(rank); len(config.Providers) > 0 && rank != j.World().Rank() && got != config.Providers[0] {
			return fmt.Errorf("rank %d by %q instead of %q", rank, got, config.Providers[0])
		}
	}
	if a.with != nil {
		return ranks.Caught(func() error { return a.with(ctx, n, j) })
	}
	return ranks.Caught(func() error { return a.do(ctx, j, args) })
}

// waits are acts that wait most of the time: they run at the same time. Those that take
// seconds do not with -short. They are of what this package does about a process, with whatever
// provider: the death of one is noticed by the connection to it.
var waits = map[string]struct{ seconds bool }{"inside": {true}, "stop": {true}, "lendstop": {true}, "death": {}}

// sendPID sends the ID of this process, for recvPID.
func sendPID(ctx context.Context, c *Comm, to, tag int) error {
	return c.Send(ctx, strconv.AppendInt(nil, int64(os.Getpid()), 10), to, tag)
}

func recvPID(ctx context.Context, c *Comm, from, tag int) (int, error) {
	var b [20]byte
	st, err := c.Recv(ctx, b[:], from, tag)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b[:st.Len]))
}

// apart runs an act as a job for each place between hosts.
func apart(t *testing.T, size int, act string, args ...string) {
	for _, p := range places {
		if p.hosts == 1 {
			continue
		}
		t.Run(fmt.Sprintf("%s-%d", p.name, size), func(t *testing.T) {
			p.needs(t)
			if w, ok := waits[act]; ok {
				if w.seconds {
					need.Full(t)
				}
				if w.seconds || p.name != "roce" {
					p.seldom(t)
				}
				t.Parallel()
			}
			r, out := launched(t, p, size, act, args...)
			for rank, status := range r.Status {
				want := 0
				if (act == "death" || act == "lenddie") && rank == size-1 {
					want = 128 + int(syscall.SIGKILL)
				}
				require.Equal(t, want, status, "rank %d\n%s", rank, out)
			}
		})
	}
}

// launched runs an act as a job at a place, and returns how it ended and what was written.
func launched(t *testing.T, p place, size int, act string, args ...string) (launch.Result, string) {
	t.Helper()
	p.needs(t)
	return nettest.On(t, p.name)(t, size, []string{envPlace + "=" + p.name}, act, args...)
}

// TestFromNode: ranks in processes of their own exchange messages at random.
func TestFromNode(t *testing.T) {
	sizes := []int{4} // the names of tests are the same in all forms
	switch {
	case testing.Short():
		sizes[0] = 2
	case need.WantLong():
		sizes = []int{4, 2}
	}
	for _, size := range sizes {
		apart(t, size, "exchange", strconv.FormatUint(rand.Uint64(), 10))
	}
}

func exchangeAll(ctx context.Context, j *Job, args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	c := j.World()
	out, due := letters(rand.New(rand.NewPCG(seed, 0)), c.Size(), 50)
	m := newMailbox(j, c, out[c.Rank()], due[c.Rank()], seed)
	if err := m.exchange(ctx); err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	// No process leaves before all have what they need, nor says so where another still takes any
	// message.
	j.e.lock.Lock()
	end := j.newComm(c.p, identity(c.Size()), 2000)
	j.e.lock.Unlock()
	return leaveTogether(ctx, end)
}

// leaveTogether returns when all have called it.
func leaveTogether(ctx context.Context, c *Comm) error {
	const tag = 32000
	for _, peer := range c.ranks {
		q, err := c.Isend(nil, int(peer), tag)
		if err == nil {
			_, err = c.Recv(ctx, nil, int(peer), tag)
		}
		if err == nil {
			_, err = q.Wait(ctx)
		}
		if err != nil {
			return fmt.Errorf("together with rank %d: %w", peer, err)
		}
	}
	return nil
}

// TestDeath: a process is killed while others wait for it in all ways there are.
func TestDeath(t *testing.T) { apart(t, 3, "death") }

const lastWords = 20

// dies says that a call failed because of that rank.
func dies(what string, err error, rank int) error {
	var e *Error
	if !errors.Is(err, ErrPeerDied) || !errors.As(err, &e) || e.Rank != rank {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func death(ctx context.Context, j *Job, _ []string) error {
	c := j.World()
	victim, buddy := c.Size()-1, 1-c.Rank()
	if c.Rank() == victim {
		for range 2 { // both are ready
			if _, err := c.Recv(ctx, nil, AnySource, 1); err != nil {
				return err
			}
		}
		for peer := range victim {
			for i := range lastWords {
				if err := c.Send(ctx, []byte{byte(i)}, peer, 2); err != nil {
					return err
				}
			}
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	}
	specific := ranks.Must(c.Irecv(make([]byte, 8), victim, 3))
	wild := ranks.Must(c.Irecv(make([]byte, 8), AnySource, 4))
	sync := ranks.Must(c.Issend(make([]byte, 8), victim, 3))
	body := ranks.Must(c.Isend(make([]byte, long), victim, 3))
	probed := make(chan error, 1)
	go func() {
		_, err := c.Probe(ctx, victim, 3)
		probed <- err
	}()
	if err := c.Send(ctx, nil, victim, 1); err != nil {
		return err
	}
	// What it sent before it died comes first. Over queue pairs a process takes with it
	// what its provider has not sent yet.
	for i := range lastWords {
		var got [1]byte
		_, err := c.Recv(ctx, got[:], victim, 2)
		if err != nil {
			if _, tcp := j.e.links[victim].carrier.(*tcpCarrier); !tcp && dies("receive", err, victim) == nil {
				break
			}
			return fmt.Errorf("message %d: %w", i, err)
		}
		if got[0] != byte(i) {
			return fmt.Errorf("message %d is %d", i, got[0])
		}
	}
	errs := []error{dies("probe", <-probed, victim)}
	for i, q := range []Request{specific, wild, sync, body} {
		_, err := q.Wait(ctx)
		errs = append(errs, dies(fmt.Sprint("request ", i), err, victim))
	}
	_, err := c.Recv(ctx, nil, victim, 9)
	errs = append(errs, dies("receive", err, victim), dies("send", c.Send(ctx, nil, victim, 9), victim))
	_, err = c.Probe(ctx, victim, 9)
	errs = append(errs, dies("probe", err, victim))
	_, _, err = c.Iprobe(victim, 9)
	errs = append(errs, dies("probe", err, victim))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// The others go on, also with receives from any source.
	q := ranks.Must(c.Issend(pattern(long, uint64(c.Rank())), buddy, 5))
	got := make([]byte, long)
	if _, err := c.Recv(ctx, got, AnySource, 5); err != nil {
		return err
	}
	if !bytes.Equal(got, pattern(long, uint64(buddy))) {
		return errors.New("the message of the other is wrong")
	}
	_, err = q.Wait(ctx)
	return err
}

// TestLastLook: what a process sent before it was killed is received first, whichever way it
// came, though none of it was looked at until the process was gone. Over shared memory a
// message is with its receiver when Send returns.
func TestLastLook(t *testing.T) {
	r, out := launched(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}}, 2, "last")
	require.Equal(t, []int{0, 128 + int(syscall.SIGKILL)}, r.Status, out)
}

func lastLook(ctx context.Context, j *Job, _ []string) error {
	const messages, tag = 40, 4
	size := func(k int) int { return []int{8, 6000}[k%2] } // by the lane, and by the queue pair
	c := j.World()
	if c.Rank() == 1 {
		locked := make(chan os.Signal, 1)
		signal.Notify(locked, syscall.SIGUSR1)
		if err := c.Send(ctx, binary.BigEndian.AppendUint32(nil, uint32(os.Getpid())), 0, tag); err != nil {
			return err
		}
		<-locked
		for k := range messages {
			b := make([]byte, size(k))
			b[0] = byte(k)
			if err := c.Send(ctx, b, 0, tag); err != nil {
				return err
			}
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	}
	buf := make([]byte, 6000)
	if _, err := c.Recv(ctx, buf, 1, tag); err != nil {
		return err
	}
	pid := int(binary.BigEndian.Uint32(buf))
	j.e.lock.Lock() // nothing is looked at
	err := syscall.Kill(pid, syscall.SIGUSR1)
	for ; err == nil && ctx.Err() == nil; runtime.Gosched() {
		err = syscall.Kill(pid, 0)
	}
	j.e.lock.Unlock()
	if err != syscall.ESRCH {
		return fmt.Errorf("rank 1 has not been reaped: %w", err)
	}
	for k := range messages {
		st, err := c.Recv(ctx, buf, 1, tag)
		if err != nil {
			return fmt.Errorf("message %d: %w", k, err)
		}
		if st.Len != size(k) || buf[0] != byte(k) {
			return fmt.Errorf("message %d: %d bytes of message %d", k, st.Len, buf[0])
		}
	}
	_, err = c.Recv(ctx, buf, 1, tag)
	return dies("receive", err, 1)
}

// TestVerdict: a host whose control connection has ended is not lost while this process is stopped: its
// queue pair may have more to deliver.
func TestVerdict(t *testing.T) {
	need.Full(t)
	t.Parallel() // it is stopped
	r, out := launched(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}}, 2, "verdict")
	require.Equal(t, []int{0, 0}, r.Status, out)
}

// over is a socket that the peer has closed.
type over struct{ socket }

func (over) readv([][]byte) (int, error) { return 0, io.EOF }

func lateVerdict(ctx context.Context, j *Job, _ []string) error {
	c := j.World()
	if c.Rank() == 1 {
		var b [4]byte
		if _, err := c.Recv(ctx, b[:], 0, 0); err != nil {
			return err
		}
		q := ranks.Must(c.Irecv(nil, 0, 1))
		for { // rank 0 stops itself
			stop, cancel := context.WithTimeout(ctx, 2*verdictTime)
			_, err := q.Wait(stop)
			cancel()
			if err == nil {
				return leaveTogether(ctx, c)
			}
			if ctx.Err() != nil {
				return err
			}
			if err := syscall.Kill(int(binary.BigEndian.Uint32(b[:])), syscall.SIGCONT); err != nil {
				return err
			}
		}
	}
	if err := c.Send(ctx, binary.BigEndian.AppendUint32(nil, uint32(os.Getpid())), 1, 0); err != nil {
		return err
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	l := j.e.links[1]
	rc := l.carrier.(*rcCarrier)
	j.e.lock.Lock() // nothing else looks
	conn := rc.tcp
	rc.tcp = over{conn}
	rc.look()
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it may return before the stop
	if err == nil {
		<-continued
	}
	rc.look()
	err = errors.Join(err, l.err)
	rc.tcp, rc.ended = conn, nil
	j.e.lock.Unlock()
	if err != nil {
		return fmt.Errorf("the link is lost: %w", err)
	}
	if err := c.Send(ctx, nil, 1, 1); err != nil {
		return err
	}
	return leaveTogether(ctx, c)
}

// TestStop: SIGSTOP at any moment, deadlines, SIGCONT.
func TestStop(t *testing.T) {
	rounds := need.InLong("4", "10")
	apart(t, 2, "stop", rounds)
}

func stopped(ctx context.Context, j *Job, args []string) error {
	c := j.World()
	const size = 4 << 20
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	msg, got := pattern(size, 1), make([]byte, size)
	if c.Rank() == 1 {
		if err := sendPID(ctx, c, 0, 0); err != nil {
			return err
		}
		for round := range rounds {
			if _, err := c.Recv(ctx, got, 0, round); err != nil {
				return err
			}
			if err := c.Send(ctx, got, 0, round); err != nil {
				return err
			}
		}
		return leaveTogether(ctx, c)
	}
	peer := ranks.Must(recvPID(ctx, c, 1, 0))
	for round := range rounds {
		clear(got)
		r := ranks.Must(c.Irecv(got, 1, round))
		var err error
		if round%2 == 0 {
			err = syscall.Kill(peer, syscall.SIGSTOP)
		}
		s, serr := c.Isend(msg, 1, round)
		if round%2 == 1 && err == nil {
			err = syscall.Kill(peer, syscall.SIGSTOP)
		}
		if err := errors.Join(err, serr); err != nil {
			return err
		}
		for _, q := range []Request{s, r} {
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			_, err := q.Wait(short)
			cancel()
			if err != nil && !errors.Is(err, ErrTimeout) {
				return err
			}
		}
		if err := syscall.Kill(peer, syscall.SIGCONT); err != nil {
			return err
		}
		if err := WaitAll(ctx, nil, s, r); err != nil {
			return err
		}
		if !bytes.Equal(got, msg) {
			return fmt.Errorf("round %d: the message is wrong", round)
		}
	}
	return leaveTogether(ctx, c)
}
