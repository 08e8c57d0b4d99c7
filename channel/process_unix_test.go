//go:build unix

package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, play)
	// Those that are parallel wait for clocks and processes, not for CPUs.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	nettest.Main(m)
}

// envProviders names the providers of a rank's node, in this order, with commas; empty: all.
const envProviders = "SLUICE_CHANNEL_TEST_PROVIDERS"

// act is what a process does that is a rank of a job.
type act struct {
	do      func(ctx context.Context, n *Node, args []string) error
	options []Option                  // of its node
	prepare func(args []string) error // before it joins, if not nil
	patient bool                      // it takes as long as the launcher lets it
	stops   bool                      // a rank may be stopped before it rings
}

var acts = map[string]act{
	"halo":  {do: func(ctx context.Context, n *Node, args []string) error { return halo(ctx, n, number(args[0]), hooks{}) }},
	"death": {do: death},
	"pause": {do: pause, stops: true},
	"away":  {do: away},
	"read":  {do: readDying},
	"abort": {do: abortJob},
	"meet":  {do: meetAll},
	"siege": {do: siege},
	"once":  {do: once},
	"burn":  {prepare: burn},
	"rest":  {do: rest, patient: true},
}

func play(a act, args []string) (err error) {
	if a.prepare != nil {
		if err := a.prepare(args); err != nil {
			return err
		}
	}
	ctx := context.Background()
	if !a.patient {
		within, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = within
	}
	providers := strings.FieldsFunc(os.Getenv(envProviders), func(r rune) bool { return r == ',' })
	n, err := Join(ctx, append(a.options, WithProviders(providers...))...)
	if err != nil {
		return err
	}
	if !a.stops {
		n.sleepers.RingWithin(ringing)
	}
	defer func() {
		err = errors.Join(err, n.Close())
		if late := n.Stats().Late; late > 0 && !a.stops {
			err = errors.Join(err, fmt.Errorf("%d sleeps that no ring has ended", late))
		}
	}()
	return ranks.Caught(func() error { return a.do(ctx, n, args) })
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// run runs an act as a job and returns the result and what the ranks printed.
func run(t *testing.T, provider string, size int, act string, args ...string) (launch.Result, string) {
	t.Helper()
	return on(t, provider)(t, size, act, args...)
}

// runner runs an act as a job, as run does.
type runner func(t *testing.T, size int, act string, args ...string) (launch.Result, string)

// on returns what runs jobs over a provider, one pair of networks for all where it is between
// networks.
func on(t *testing.T, provider string) runner {
	t.Helper()
	run := nettest.On(t, provider)
	var env []string
	if _, apart := nettest.Wire(provider); !apart {
		env = []string{envProviders + "=" + provider}
	}
	return func(t *testing.T, size int, act string, args ...string) (launch.Result, string) {
		t.Helper()
		return run(t, size, env, act, args...)
	}
}

// processes runs a test of jobs of processes for each provider.
func processes(t *testing.T, test func(t *testing.T, provider string, run runner)) {
	apart(t, func(t *testing.T, provider string) { test(t, provider, on(t, provider)) })
}

// faces are the messages of a halo exchange, in bytes.
var faces = []int{8, 600, 5000, 70_000, 300_000}

// hooks are what a test does in a halo exchange.
type hooks struct {
	ring   []int                                // the ranks, in place of all
	before func(round int)                      // before a round is started
	wait   func(context.Context, *Handle) error // in place of WaitContext
}

// halo exchanges faces with both neighbours on a ring, and checks every byte.
// With one or two ranks both neighbours are the same. Each face has four turns: it is
// sent from node memory or from the heap, and received into either. Over shared
// memory one from the heap into the heap goes through the pipe, which the last face
// does not fit into.
func halo(ctx context.Context, n *Node, rounds int, hook hooks) error {
	ring := hook.ring
	for i := range n.Size() {
		if hook.ring == nil {
			ring = append(ring, i)
		}
	}
	at := slices.Index(ring, n.Rank())
	next, last := ring[(at+1)%len(ring)], ring[(at+len(ring)-1)%len(ring)]
	var turns [4]struct {
		handles []*Handle
		out, in [][]byte
		all     *Handle
	}
	var from []int
	for i, size := range faces {
		for dir, to := range []int{next, last} {
			m := Must(n.Alloc(2 * size))
			o, b := [2][]byte{m.Bytes()[:size], make([]byte, size)}, [2][]byte{m.Bytes()[size:], make([]byte, size)}
			source := []int{last, next}[dir]
			var s, r [2]*Handle
			for heap := range 2 {
				s[heap] = Must(n.DeclareSend(Contiguous(o[heap]), to, OnStream(10*i+dir)))
				r[heap] = Must(n.DeclareReceive(Contiguous(b[heap]), source, OnStream(10*i+dir)))
			}
			for turn := range turns {
				t, sh, rh := &turns[turn], (turn+i+dir)%2, (turn/2+i)%2
				t.handles, t.out, t.in = append(t.handles, s[sh], r[rh]), append(t.out, o[sh]), append(t.in, b[rh])
			}
			from = append(from, source)
		}
	}
	for i := range turns {
		var err error
		if turns[i].all, err = n.Multiple(turns[i].handles...); err != nil {
			return err
		}
	}
	if hook.wait == nil {
		hook.wait = func(ctx context.Context, h *Handle) error { return h.WaitContext(ctx) }
	}
	want := make([]byte, slices.Max(faces))
	for round := range rounds {
		if hook.before != nil {
			hook.before(round)
		}
		t := &turns[round%len(turns)]
		for i, b := range t.out {
			paint(b, n.Rank(), round, i)
		}
		if err := t.all.Start(); err != nil {
			return errors.Join(err, t.all.WaitContext(ctx))
		}
		if err := hook.wait(ctx, t.all); err != nil {
			return err
		}
		for i, b := range t.in {
			want := want[:len(b)]
			paint(want, from[i], round, i)
			if !bytes.Equal(want, b) {
				return fmt.Errorf("round %d, message %d of %d bytes from rank %d is wrong", round, i, len(b), from[i])
			}
		}
	}
	return nil
}

// paint fills b with what only this rank sends in this round.
func paint(b []byte, rank, round, message int) {
	v := uint64(rank)<<48 | uint64(round)<<16 | uint64(message)<<8
	word := func(i int) uint64 { return (v + uint64(i)) * 0x9e3779b97f4a7c15 }
	whole := len(b) &^ 7
	for i := 0; i < whole; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(i))
	}
	for i := whole; i < len(b); i++ {
		b[i] = byte(word(whole) >> (8 * (i - whole)))
	}
}

// TestHalo: processes on a ring, also more than there are CPUs.
func TestHalo(t *testing.T) {
	rounds := need.ByForm("4", "8", "50") // each turn twice
	processes(t, func(t *testing.T, provider string, run runner) {
		for _, size := range []int{1, 2, 3, 16} {
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				if size != 3 && (provider != "shm" || size == 16) {
					need.Long(t) // TestManyRanks has more of them than most machines have CPUs
				}
				if size != 3 {
					need.Full(t)
				}
				rounds := rounds
				if size == 16 && provider == "ibv" {
					rounds = "8" // one takes a second on two emulated CPUs
				}
				r, out := run(t, size, "halo", rounds)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	})
}

// death is a halo exchange in which the rank of the first argument kills itself
// in the round of the second. The others say how that ended.
func death(ctx context.Context, n *Node, args []string) error {
	victim, fatal := number(args[0]), number(args[1])
	var killed time.Time
	err := halo(ctx, n, 1_000_000, hooks{before: func(round int) {
		if n.Rank() == victim && round == fatal {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		killed = time.Now()
	}})
	var e *Error
	switch near := (n.Rank()+1)%n.Size() == victim || (victim+1)%n.Size() == n.Rank(); {
	case errors.As(err, &e) && (errors.Is(err, ErrPeerDied) || errors.Is(err, ErrUnreachable)) && near,
		errors.As(err, &e) && errors.Is(err, ErrPeerLeft) && !near: // its neighbour has given up
		fmt.Printf("ended %v after its last round began\n", time.Since(killed).Round(time.Millisecond))
		return nil
	}
	return fmt.Errorf("rank %d of a job whose rank %d died: %w", n.Rank(), victim, err)
}

// TestDeath: kill -9 at any moment of a halo exchange. All others end with an
// error that names the dead one, or a rank that has left because of it.
func TestDeath(t *testing.T) {
	rounds := need.ByForm(1, 2, 10) // TestSiege kills more of them
	processes(t, func(t *testing.T, provider string, run runner) {
		if provider == "tcp" {
			need.Full(t)
		}
		last := 40
		switch {
		case provider == "ibv": // a round may take a tenth of a second
			last = 20
		case need.WantLong():
			last = 200
		}
		for i := range rounds {
			size := 2 + i%3
			victim := rand.IntN(size)
			r, out := run(t, size, "death", strconv.Itoa(victim), strconv.Itoa(rand.IntN(last)))
			for rank, status := range r.Status {
				want := 0
				if rank == victim {
					want = 137
				}
				require.Equal(t, want, status, "rank %d\n%s", rank, out)
			}
		}
	})
}

// pause is a halo exchange of two ranks that stop each other again and again. A
// deadline that passes leaves everything as it is: once the stopped rank goes on,
// every byte of every round is right.
func pause(ctx context.Context, n *Node, args []string) error {
	peer := Must(swapPIDs(ctx, n))
	turn, seed := n.Rank(), uint64(number(args[1]))
	r := rand.New(rand.NewPCG(seed, uint64(n.Rank())))
	timeouts := 0
	stop := make(chan struct{}, 1) // capacity 1: the peer has been stopped
	stop <- struct{}{}
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	err := halo(ctx, n, number(args[0]), hooks{
		before: func(round int) {
			// In turns, so that no process stops another while being stopped itself. A
			// process may run on until its own turn after it was told to stop; so it waits
			// until the other, whose deadline passes, continues it: no stop is pending then.
			if round%4 == 2 && round/4%2 == turn {
				select {
				case <-goesOn: // of an earlier round
				default:
				}
				<-goesOn
				delay := time.Duration(r.IntN(200)) * time.Microsecond
				<-stop
				time.AfterFunc(delay, func() {
					syscall.Kill(peer, syscall.SIGSTOP)
					stop <- struct{}{}
				})
			} else {
				<-stop // before the peer can have its turn
				stop <- struct{}{}
			}
		},
		wait: func(ctx context.Context, h *Handle) error {
			for {
				short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				err := h.WaitContext(short)
				cancel()
				if !errors.Is(err, ErrTimeout) || ctx.Err() != nil {
					return err
				}
				if err := h.Start(); !errors.Is(err, ErrActive) {
					return fmt.Errorf("started after a deadline: %v", err)
				}
				timeouts++
				syscall.Kill(peer, syscall.SIGCONT)
			}
		},
	})
	syscall.Kill(peer, syscall.SIGCONT)
	fmt.Printf("%d deadlines passed\n", timeouts)
	return err
}

// swapPIDs tells the other of two ranks this process's number.
func swapPIDs(ctx context.Context, n *Node) (int, error) {
	mine, theirs := make([]uint64, 1), make([]uint64, 1)
	mine[0] = uint64(os.Getpid())
	s, err := n.DeclareSend(Contiguous(Bytes(mine)), 1-n.Rank(), OnStream(1000))
	if err != nil {
		return 0, err
	}
	r, err := n.DeclareReceive(Contiguous(Bytes(theirs)), 1-n.Rank(), OnStream(1000))
	if err != nil {
		return 0, err
	}
	if err := errors.Join(s.Start(), r.Start()); err != nil {
		return 0, err
	}
	err = WaitAllContext(ctx, s, r)
	return int(theirs[0]), err
}

// TestStop: SIGSTOP at any moment, deadlines, SIGCONT.
func TestStop(t *testing.T) {
	t.Parallel() // it waits most of the time

	rounds := need.InLong(40, 400) // with as many stops as a quarter of that
	processes(t, func(t *testing.T, provider string, run runner) {
		t.Parallel()
		rounds := rounds
		if provider == "ibv" {
			rounds = min(rounds, 80) // a guest with emulated CPUs makes about ten in a second
		}
		r, out := run(t, 2, "pause", strconv.Itoa(rounds), strconv.Itoa(rand.Int()))
		require.Zero(t, r.ExitStatus(), out)
		require.NotContains(t, out, " 0 deadlines", out)
	})
}

// away is a job of two in which the user of one rank computes once it has started its
// half of a message, until the other has its own. The first argument is a folder, each
// other one a case: rank that computes, rank that starts first, and what the message lies
// in: node memory, the heap, or direct, from the heap into node memory.
func away(ctx context.Context, n *Node, args []string) error {
	for i, c := range args[1:] {
		var busy, first int
		var kind string
		if _, err := fmt.Sscan(c, &busy, &first, &kind); err != nil {
			return err
		}
		if err := awayOnce(ctx, n, busy, first, kind, i, fmt.Sprintf("%s/%d", args[0], i)); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// awayOnce is one case. The file says when the other rank has its half.
func awayOnce(ctx context.Context, n *Node, busy, first int, kind string, stream int, file string) error {
	const size = 1 << 20
	var h *Handle
	m := Must(n.Alloc(2 * size))
	b := m.Bytes()
	if kind == "heap" || kind == "direct" && n.Rank() == 0 {
		b = make([]byte, 2*size)
	}
	if n.Rank() == 0 {
		paint(b, 0, 0, 0)
		h = Must(n.DeclareSend(Contiguous(b[:size]), 1, OnStream(stream)))
	} else {
		h = Must(n.DeclareReceive(Strided(b, 0, size/8, 8, size/4), 0, OnStream(stream)))
	}
	// The other's process number tells that it has started, if it is the first.
	if n.Rank() != first {
		if _, err := swapPIDs(ctx, n); err != nil {
			return err
		}
		for kind == "direct" && n.Rank() == 0 && !waits(h) { // the first case of a job
			runtime.Gosched()
		}
	}
	if err := h.Start(); err != nil {
		return err
	}
	if n.Rank() == first {
		if _, err := swapPIDs(ctx, n); err != nil {
			return err
		}
	}
	if n.Rank() == busy {
		for x := uint64(1); ; {
			for range 1_000_000 {
				x = x*6364136223846793005 + 1
			}
			if _, err := os.Stat(file); err == nil || x == 0 {
				break
			}
		}
	}
	if err := h.WaitContext(ctx); err != nil {
		return err
	}
	if n.Rank() != busy {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
	}
	if n.Rank() == 1 {
		want := make([]byte, 2*size)
		paint(want, 0, 0, 0)
		for i := range 8 {
			if !bytes.Equal(want[i*size/8:(i+1)*size/8], b[i*size/4:i*size/4+size/8]) {
				return fmt.Errorf("block %d is wrong", i)
			}
		}
	}
	return nil
}

// waits says whether the sender knows where the first receive wants its message.
func waits(h *Handle) bool {
	p := h.peer()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remoteInfo(where{handle: 1}, 0) == nil {
		return false
	}
	if p.queue != nil {
		return true
	}
	_, _, open := h.out.r.gates[1].read(1)
	return open
}

// TestAway: a message gets through whichever side's user computes, and whichever
// side was first. Over shared memory the sender's engine fills the pipe, which does
// not hold all of the message, but only the receiver's user empties it: there a
// receiver that computes gets from the heap what it was waiting for with node memory.
func TestAway(t *testing.T) {
	processes(t, func(t *testing.T, provider string, run runner) {
		for busy := range 2 {
			t.Run(fmt.Sprintf("rank %d computes", busy), func(t *testing.T) {
				args := []string{t.TempDir()}
				for _, kind := range []string{"direct", "alloc", "heap"} {
					for first := range 2 {
						if kind == "direct" && first == 0 || provider == "shm" && kind == "heap" && busy == 1 {
							continue
						}
						args = append(args, fmt.Sprint(busy, first, " ", kind))
					}
				}
				r, out := run(t, 2, "away", args...)
				require.Zero(t, r.ExitStatus(), out)
			})
		}
	})
}

// readDying is a job of two in which rank 1 reads from rank 0, which is stopped, and
// then killed.
func readDying(ctx context.Context, n *Node, _ []string) error {
	const size = 64 << 20
	if n.Rank() == 0 {
		s := Must(n.DeclareSend(Contiguous(make([]byte, size)), 1))
		if err := s.Start(); err != nil {
			return err
		}
		if _, err := swapPIDs(ctx, n); err != nil {
			return err
		}
		return s.WaitContext(ctx)
	}
	r := Must(n.DeclareReceive(Contiguous(make([]byte, size)), 0))
	victim := Must(swapPIDs(ctx, n))
	q := r.in.q.Load()
	for ready := false; !ready; { // and its layout is here
		q.progress()
		q.lock.Lock()
		h, ok := q.in[0].ready[1]
		ready = ok && q.peer.remoteInfo(h.where, h.length) != nil
		q.lock.Unlock()
	}
	if err := ranks.Stop(ctx, victim); err != nil {
		return err
	}
	if err := r.Start(); err != nil {
		return err
	}
	for begun := false; !begun; { // over RDMA it needs the device of the victim alone, so there is no time to lose
		if done, err := r.Test(); done {
			return fmt.Errorf("reading from a process that is stopped: %v", err)
		}
		q.lock.Lock()
		begun = r.transfer.begun
		q.lock.Unlock()
	}
	if err := r.Close(); !errors.Is(err, ErrActive) {
		return fmt.Errorf("closed while reading: %v", err)
	}
	syscall.Kill(victim, syscall.SIGKILL)
	if err := r.WaitContext(ctx); !errors.Is(err, ErrPeerDied) {
		return fmt.Errorf("reading from a process that is killed: %v", err)
	}
	return r.Close()
}

// TestReadDeath: the end of a process that is being read from ends the receive.
func TestReadDeath(t *testing.T) {
	queued(t, func(t *testing.T, provider string) {
		r, out := run(t, provider, 2, "read")
		require.Equal(t, []int{137, 0}, r.Status, out)
	})
}

// TestReportOnSignal: SIGUSR1 asks for the report.
func TestReportOnSignal(t *testing.T) {
	var out lockedBuffer
	n := join(t, 1, WithReport(&out, 0))[0]
	r, _ := receive(t, n, 0, 8, OnStream(3))
	require.NoError(t, r.Start())
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	require.Eventually(t, func() bool { return out.String() != "" }, limit, time.Millisecond)
	require.Contains(t, out.String(), "receive from rank 0, stream 3, start 1, 8 bytes: waits for the sender")
}
