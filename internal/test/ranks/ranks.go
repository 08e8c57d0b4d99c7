// Package ranks has the program of a test start itself again, as processes that play an act
// in place of the tests: ranks of a job, a peer, a filter. It also has what tests of several
// ranks share: [Each], [Within], [Eventually], [Listen].
//
// It imports nothing of the library, so the tests inside of every package can use it.
package ranks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Limit bounds a test, and each process that plays an act: what takes longer hangs.
const Limit = 60 * time.Second

// Env names the act of a process.
const Env = "SLUICE_TEST_ACT"

// Status is an error of an act that ends its process with this exit status and prints nothing.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Play plays the act that the environment names, with the arguments of this process, and ends
// the process: with status 0, with a [Status], or with an error on standard error and status
// 1. It returns where the environment names no act. TestMain calls it first, with a table of
// what the processes of its tests do.
func Play[Act any](acts map[string]Act, play func(Act, []string) error) {
	name, set := os.LookupEnv(Env)
	if !set {
		return
	}
	act, ok := acts[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no act %q\n", name)
		os.Exit(1)
	}
	switch err := Caught(func() error { return play(act, os.Args[1:]) }).(type) {
	case nil:
		os.Exit(0)
	case Status:
		os.Exit(int(err))
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Call plays an act that is a function of its arguments.
func Call(act func(args []string) error, args []string) error { return act(args) }

// Exit plays an act that returns its exit status.
func Exit(act func(args []string) int, args []string) error { return Status(act(args)) }

// Member is an act that joins a job, does something in it within [Limit], and leaves it. It returns
// the status of the process, and prints an error.
func Member[J io.Closer](join func(context.Context) (J, error), do func(context.Context, J) error) int {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	j, err := join(ctx)
	if err == nil {
		err = errors.Join(Caught(func() error { return do(ctx, j) }), j.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Program is the path of this program.
func Program() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// Variables have a process play an act. The race detector would have each process wait a
// second before it ends.
func Variables(act string) []string { return []string{Env + "=" + act, "GORACE=atexit_sleep_ms=0"} }

// Environ is the environment of this process, with [Variables] and more.
func Environ(act string, more ...string) []string {
	return append(append(os.Environ(), Variables(act)...), more...)
}

// Folder returns the variable that gives a launcher a folder of its own for temporary files. Jobs of Open MPI that
// share one remove what another is about to create in. Its name is short, for sockets.
func Folder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "mpi")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return "TMPDIR=" + dir
}

// Command is a process of this program that plays an act, and is killed when ctx ends.
func Command(ctx context.Context, act string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, Program(), args...)
	cmd.Env = Environ(act)
	return cmd
}

// Cramp allocates blocks of size bytes at the same time as the other ranks, as many as most or until
// the error is full, writes to all their pages, and frees them; and all that again. It prints what it
// got.
func Cramp[M interface {
	Bytes() []byte
	Close() error
}](alloc func(size int) (M, error), barrier func() error, size, most int, full error) error {
	for range 3 {
		if err := barrier(); err != nil {
			return err
		}
		var all []M
		var err error
		for len(all) < most && err == nil {
			var m M
			if m, err = alloc(size); err == nil {
				all = append(all, m)
			}
		}
		if err != nil && !errors.Is(err, full) {
			return err
		}
		fmt.Println(len(all), "blocks:", err)
		for _, m := range all {
			for i := 0; i < size; i += os.Getpagesize() {
				m.Bytes()[i] = 1
			}
		}
		if err := barrier(); err != nil {
			return err
		}
		for _, m := range all {
			if err := m.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Again runs the tests that match a pattern of -run in another process of this program, with
// more variables and flags than this one has, and returns what they print. They must pass.
func Again(t testing.TB, pattern string, env []string, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program(), append([]string{"-test.v", "-test.run=" + pattern}, flags...)...)
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// Within returns a context that ends with the test, or after [Limit].
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

// Closes waits until a channel is closed, for at most [Limit].
func Closes(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-Within(t).Done():
		require.FailNow(t, "the channel is still open")
	}
}

// Open requires that a channel is open.
func Open(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
		require.FailNow(t, "the channel is closed")
	default:
	}
}

// Allocs is [testing.AllocsPerRun] without what goes on beside the calls: an engine that allocates
// once in a millisecond adds to each call where a loaded machine has a call take as long. It is
// the least of up to 50 counts, of which none is needed after one that is at most enough.
func Allocs(runs int, enough float64, call func()) float64 {
	least := math.Inf(1)
	for i := 0; i < 50 && least > enough; i++ {
		least = min(least, testing.AllocsPerRun(runs, call))
	}
	return least
}

// Each calls do for the ranks 0 to size-1 at the same time, waits for all, and fails the test
// if one fails.
func Each(t testing.TB, size int, do func(rank int) error) {
	t.Helper()
	errs := make([]error, size)
	var wg sync.WaitGroup
	for i := range size {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err, "rank %d", i)
	}
}

// Eventually waits until so is true, for at most [Limit]. It costs the CPU less than
// require.Eventually, which has a goroutine for each look.
func Eventually(t testing.TB, so func() bool) {
	t.Helper()
	for ctx := Within(t); !so(); time.Sleep(100 * time.Microsecond) {
		require.NoError(t, ctx.Err(), "waited for too long")
	}
}

// Listen listens on a port of this host until the test is over.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// Free returns an address of this host at which nothing listens, and at which something can listen until the
// test is over: its port is none of those that the system gives to others, and no other test gets it, for a
// UDP socket has its number.
func Free(t testing.TB) string {
	t.Helper()
	for {
		held, err := net.ListenPacket("udp", fmt.Sprint("127.0.0.1:", 20_000+rand.IntN(12_000)))
		if err == nil {
			address := held.LocalAddr().String()
			var l net.Listener
			if l, err = net.Listen("tcp", address); err == nil {
				t.Cleanup(func() { held.Close() })
				require.NoError(t, l.Close())
				return address
			}
			held.Close()
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
}

// Refusing returns an address that refuses connections until the test is over: a connection has its port, so
// that nothing listens there.
func Refusing(t testing.TB) string {
	t.Helper()
	return Dial(t, Listen(t).Addr().String()).LocalAddr().String()
}

// Dial connects to an address until the test is over, for reads and writes of at most [Limit].
func Dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(Limit)))
	return conn
}

// Must returns what a call in an act returns; where that fails, [Caught] returns the error.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Caught does something, and returns its error or the one that it panics with, as by [Must].
func Caught(do func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case runtime.Error:
			panic(r)
		case error:
			err = r
		default:
			panic(r)
		}
	}()
	return do()
}

// Late says that a line is a rank's warning that others let it wait, which is in its output or not as the host is
// busy or idle.
func Late(line string) bool {
	return strings.Contains(line, "waiting for ") && strings.Contains(line, "WARN") || strings.Contains(line, "; still waiting: ")
}

// Prompt returns what ranks have written without the lines of [Late].
func Prompt(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !Late(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// ReadFile returns what a file contains.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}
