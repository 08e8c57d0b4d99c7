//go:build unix

package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestMain makes the test binary a rank if a test has started it as one.
func TestMain(m *testing.M) {
	procs.Play(acts, procs.Exit)
	leak.Main(m)
}

// limit bounds every test: what takes longer hangs.
const limit = procs.Limit

// acts are what ranks of tests do; the result is their exit status.
var acts = map[string]func(args []string) int{
	// exit ends rank i with the i-th argument as its status, or by the signal
	// that is named with a minus.
	"exit": func(args []string) int {
		status, err := strconv.Atoi(args[rank()])
		if err != nil {
			return 99
		}
		if status < 0 {
			syscall.Kill(os.Getpid(), syscall.Signal(-status))
			procs.Forever()
		}
		return status
	},
	// fail lets one rank fail and the others wait for their end.
	"fail": func(args []string) int {
		if strconv.Itoa(rank()) == args[0] {
			return 7
		}
		procs.Forever()
		return 0
	},
	"wait": func([]string) int {
		say("ready")
		procs.Forever()
		return 0
	},
	// stubborn does not react to SIGTERM.
	"stubborn": func([]string) int {
		signal.Ignore(syscall.SIGTERM)
		say("ready")
		procs.Forever()
		return 0
	},
	// deaf reacts neither to SIGTERM nor to SIGINT.
	"deaf": func([]string) int {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		procs.Forever()
		return 0
	},
	// catch says which signals come, and ends when its input does.
	"catch": func(args []string) int {
		c := make(chan os.Signal, 16)
		signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
		say("ready")
		for s := range c {
			say("got", int(s.(syscall.Signal)))
			if s == syscall.SIGUSR2 {
				return 0
			}
		}
		return 1
	},
	// told says that SIGUSR1 has come.
	"told": func([]string) int {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR1)
		say("ready")
		for range c {
			say("told")
		}
		return 1
	},
	"env": func([]string) int {
		for _, e := range os.Environ() {
			say(e)
		}
		return 0
	},
	"exchange": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			got, err := j.Exchange(ctx, []byte{byte(j.Rank())})
			if err != nil {
				return err
			}
			say(j.Rank(), j.Size(), j.LocalRank(), j.LocalSize(), got)
			return nil
		})
	},
	// survive lets rank 1 be killed, and the others tell what they see of it.
	"survive": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if j.Rank() == 1 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			err := j.Barrier(ctx)
			var e *boot.RankError
			if !errors.As(err, &e) {
				return err
			}
			say(j.Rank(), e.Rank, e.Err)
			return nil
		})
	},
	// absent lets rank 0 end without joining, and rank 1 wait for it.
	"absent": func([]string) int {
		if rank() == 0 {
			return 0
		}
		return withJob(func(ctx context.Context, j *boot.Job) error {
			err := j.Barrier(ctx)
			if !errors.Is(err, boot.ErrDied) {
				return err
			}
			return nil
		})
	},
	"abort": func(args []string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			if j.Rank() == 1 {
				code, _ := strconv.Atoi(args[0])
				j.Abort(code, "this is why")
				return nil
			}
			return j.Barrier(ctx)
		})
	},
	// lines writes its lines in pieces, as slowly as the kernel is with one
	// call each.
	"lines": func(args []string) int {
		n, _ := strconv.Atoi(args[0])
		for i := range n {
			for _, piece := range []string{"line ", strconv.Itoa(i), " of rank ", strconv.Itoa(rank()), "\n"} {
				os.Stdout.WriteString(piece)
			}
		}
		os.Stdout.WriteString("no end")
		os.Stderr.WriteString("error\n")
		return 0
	},
	"cat": func([]string) int {
		n, err := io.Copy(os.Stdout, os.Stdin)
		if err != nil {
			return 1
		}
		fmt.Fprintf(os.Stderr, "%d bytes\n", n)
		return 0
	},
	// parent starts a process that would stay, and ends.
	"parent": func(args []string) int {
		cmd := procs.Command(context.Background(), "stubborn")
		if args[0] == "escape" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 1
		}
		cmd.Stderr = os.Stderr // our pipe to the launcher
		if err := cmd.Start(); err != nil {
			return 1
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return 1
		}
		say("child", cmd.Process.Pid)
		if args[0] == "stay" {
			procs.Forever()
		}
		return 0
	},
	"cpus": func([]string) int {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 1
		}
		for line := range strings.Lines(string(status)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				say(rank(), strings.TrimSpace(list), runtime.NumCPU(), runtime.GOMAXPROCS(0))
			}
		}
		return 0
	},
}

func rank() int {
	r, err := strconv.Atoi(os.Getenv(boot.EnvRank))
	if err != nil {
		return -1
	}
	return r
}

func say(a ...any) { fmt.Println(a...) }

func withJob(do func(context.Context, *boot.Job) error) int { return procs.Member(boot.Join, do) }

// options are those of a job of the test binary.
func options(t *testing.T, size int, do string, args ...string) Options {
	t.Helper()
	return Options{Size: size, Args: append([]string{procs.Program()}, args...), Env: procs.Environ(do)}
}

// ran runs a job, which must have been started and have ended.
func ran(t *testing.T, o Options) Result {
	t.Helper()
	r, err := Run(procs.Within(t), o)
	require.NoError(t, err)
	return r
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		status []string
		policy OnFailure
		want   []int
		first  int
		exit   int
	}{
		{"success", []string{"0", "0", "0"}, Kill, []int{0, 0, 0}, -1, 0},
		{"one fails", []string{"0", "3", "0"}, Continue, []int{0, 3, 0}, 1, 3},
		{"signal", []string{"0", "-9"}, Continue, []int{0, 137}, 1, 137},
		{"alone", []string{"255"}, Kill, []int{255}, 0, 255},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := options(t, len(c.status), "exit", c.status...)
			o.OnFailure = c.policy
			r := ran(t, o)
			require.Equal(t, c.want, r.Status)
			require.Equal(t, c.first, r.First)
			require.Equal(t, c.exit, r.ExitStatus())
			require.Nil(t, r.Abort)
		})
	}
}

func TestResultExitStatus(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want int
	}{
		{Result{First: -1}, 0},
		{Result{First: 0, Status: []int{4}}, 4},
		{Result{First: 0, Status: []int{4}, Abort: &boot.AbortError{Code: 5}}, 5},
		{Result{First: -1, Abort: &boot.AbortError{Code: 0}}, 1},
		{Result{First: -1, Abort: &boot.AbortError{Code: 256}}, 1},
		{Result{First: -1, Abort: &boot.AbortError{Code: -1}}, 255},
	} {
		require.Equal(t, c.want, c.r.ExitStatus())
	}
}

func TestKill(t *testing.T) {
	for _, c := range []struct {
		name  string
		grace time.Duration
		want  int
	}{
		{"grace", limit, 128 + int(syscall.SIGTERM)},
		{"no grace", -1, 128 + int(syscall.SIGKILL)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := options(t, 3, "fail", "1")
			o.KillGrace = c.grace
			r := ran(t, o)
			require.Equal(t, []int{c.want, 7, c.want}, r.Status)
			require.Equal(t, 1, r.First)
			require.Equal(t, 7, r.ExitStatus())
		})
	}
}

// TestDefaultGrace: ranks have a time to end unless their job has another.
func TestDefaultGrace(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: DefaultKillGrace, time.Second: time.Second, -1: -1} {
		o := options(t, 1, "wait")
		o.KillGrace = given
		j, err := newJob(o)
		require.NoError(t, err)
		require.Equal(t, want, j.KillGrace)
	}
}

// collector collects lines and lets a test wait for them.
type collector struct {
	io.Writer
	lines chan string
}

// collect returns a writer whose lines come out of its channel.
func collect(t *testing.T) collector {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	c := collector{w, make(chan string, 1000)}
	go func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			c.lines <- s.Text()
		}
		close(c.lines)
	}()
	return c
}

// next returns the next n lines, sorted by the rank in their prefix.
func (c collector) next(t *testing.T, n int) []string {
	t.Helper()
	list := make([]string, n)
	for range n {
		select {
		case line := <-c.lines:
			var rank int
			_, err := fmt.Sscanf(line, "[%d] ", &rank)
			require.NoError(t, err, line)
			require.Less(t, rank, n, line)
			list[rank] = line
		case <-time.After(limit):
			require.FailNow(t, "no more output")
		}
	}
	return list
}

// running is a Run in progress.
type running struct {
	out    collector
	done   chan struct{}
	result Result
	err    error
	cancel context.CancelFunc
}

func startRun(t *testing.T, o Options) *running {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	r := &running{out: collect(t), done: make(chan struct{}), cancel: cancel}
	o.Stdout, o.Prefix = r.out, true
	go func() {
		defer close(r.done)
		r.result, r.err = Run(ctx, o)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// ended waits for the end of a run, which must be for that reason, and returns its result.
func (r *running) ended(t *testing.T, reason error) Result {
	t.Helper()
	<-r.done
	require.ErrorIs(t, r.err, reason)
	return r.result
}

// TestContext: ranks of a job whose context ends get SIGTERM; those that do not end are killed after
// the grace.
func TestContext(t *testing.T) {
	for act, status := range map[string]int{"wait": 143, "stubborn": 137} {
		o := options(t, 2, act)
		o.KillGrace = limit
		if act == "stubborn" {
			o.KillGrace = 50 * time.Millisecond
		}
		r := startRun(t, o)
		require.Equal(t, []string{"[0] ready", "[1] ready"}, r.out.next(t, 2))
		r.cancel()
		result := r.ended(t, context.Canceled)
		require.Equal(t, []int{status, status}, result.Status, act)
		require.Equal(t, -1, result.First, act)
	}
}

// One SIGTERM ends a job: ranks are killed after the grace.
func TestTerminated(t *testing.T) {
	o := options(t, 2, "stubborn")
	o.Signals = Signals()
	o.KillGrace = 50 * time.Millisecond
	r := startRun(t, o)
	r.out.next(t, 2)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	r.ended(t, nil)
	require.Equal(t, []int{137, 137}, r.result.Status)
	require.Equal(t, 137, r.result.ExitStatus(), "a terminated job is no success")
}

// SIGTERM ends a job whose output nothing takes, here and with agents.
func TestTerminatedUnread(t *testing.T) {
	need.Full(t) // it waits for the graces
	for _, hosts := range []bool{false, true} {
		o := options(t, 2, "")
		if hosts {
			o = across(t, o, "")
		}
		o.Args = []string{"yes"}
		in, w := io.Pipe()
		defer in.Close()
		o.Stdout, o.Prefix, o.Signals, o.KillGrace = w, true, []os.Signal{syscall.SIGTERM}, 50*time.Millisecond
		ended := make(chan error, 1)
		go func() {
			_, err := Run(procs.Within(t), o)
			ended <- err
		}()
		_, err := in.Read(make([]byte, 1)) // the rest of the line stays
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		select {
		case err := <-ended:
			require.ErrorIs(t, err, errAbandoned)
		case <-procs.Within(t).Done():
			require.Fail(t, "it waits for output")
		}
	}
}

// TestSignals: each is passed on to the ranks, which go on after the one of a job that means the end.
func TestSignals(t *testing.T) {
	for _, signals := range [][]syscall.Signal{{syscall.SIGUSR1, syscall.SIGCONT, syscall.SIGHUP}, {syscall.SIGTERM}} {
		o := options(t, 2, "catch")
		o.Signals, o.KillGrace = Signals(), limit
		r := startRun(t, o)
		r.out.next(t, 2)
		for _, s := range signals {
			if signal.Ignored(s) {
				continue // nohup(1): it stays ignored, here and in the ranks
			}
			require.NoError(t, syscall.Kill(os.Getpid(), s))
			want := []string{fmt.Sprintf("[0] got %d", s), fmt.Sprintf("[1] got %d", s)}
			require.Equal(t, want, r.out.next(t, 2))
		}
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR2))
		require.Equal(t, []int{0, 0}, r.ended(t, nil).Status, "after %v", signals)
	}
}

// The second signal that means the end is not left to the ranks any more, the
// third is not discussed.
func TestImpatience(t *testing.T) {
	for _, c := range []struct {
		signals int
		grace   time.Duration
	}{{2, time.Millisecond}, {3, limit}} {
		o := options(t, 2, "catch")
		o.Signals = Signals()
		o.KillGrace = c.grace
		r := startRun(t, o)
		r.out.next(t, 2)
		for i := range c.signals {
			require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
			if i == 0 {
				require.Equal(t, []string{"[0] got 2", "[1] got 2"}, r.out.next(t, 2))
			}
			if i == 1 && c.signals == 3 {
				// SIGTERM, and SIGCONT behind it.
				r.out.next(t, 2)
			}
		}
		r.ended(t, nil)
		require.Equal(t, []int{137, 137}, r.result.Status)
		require.Equal(t, 137, r.result.ExitStatus(), "an interrupted job is no success")
	}
}

func TestExchange(t *testing.T) {
	const size = 4
	r := startRun(t, options(t, size, "exchange"))
	var want []string
	for rank := range size {
		want = append(want, fmt.Sprintf("[%d] %d 4 %d 4 [[0] [1] [2] [3]]", rank, rank, rank))
	}
	require.Equal(t, want, r.out.next(t, size))
	r.ended(t, nil)
	require.Zero(t, r.result.ExitStatus())
}

func TestContinue(t *testing.T) {
	o := options(t, 3, "survive")
	o.OnFailure = Continue
	var out bytes.Buffer
	o.Stdout = &out
	r := ran(t, o)
	require.Equal(t, []int{0, 137, 0}, r.Status)
	require.Equal(t, 1, r.First)
	require.Equal(t, 137, r.ExitStatus())
	require.Contains(t, out.String(), "0 1 died\n")
	require.Contains(t, out.String(), "2 1 died\n")
}

func TestEndsWithoutJoining(t *testing.T) {
	require.Equal(t, []int{0, 0}, ran(t, options(t, 2, "absent")).Status)
}

func TestAbort(t *testing.T) {
	for _, policy := range []OnFailure{Kill, Continue} {
		o := options(t, 3, "abort", "42")
		o.OnFailure = policy
		r := ran(t, o)
		require.Equal(t, &boot.AbortError{Rank: 1, Code: 42, Why: "this is why"}, r.Abort)
		require.Equal(t, 42, r.ExitStatus())
	}
}

func TestEnvironment(t *testing.T) {
	o := options(t, 1, "env")
	// What an outer launcher has left.
	o.Env = append(o.Env, "SLUICE_RANK=5", "SLUICE_SIZE=9", "SLUICE_SECRET_FILE=/nowhere", "SLUICE_INSECURE=1", "SLUICE_OTHER=kept")
	o.Dir = t.TempDir()
	var out bytes.Buffer
	o.Stdout = &out
	ran(t, o)
	got := make(map[string]string)
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(name, "SLUICE_") && !strings.HasPrefix(name, "SLUICE_TEST_") { // these are of package need
			require.NotContains(t, got, name)
			got[name] = value
		}
	}
	require.Len(t, got[boot.EnvSecret], 64)
	require.NotEmpty(t, got[boot.EnvJob])
	require.True(t, strings.HasPrefix(got[boot.EnvServer], "127.0.0.1:"))
	delete(got, boot.EnvSecret)
	delete(got, boot.EnvJob)
	delete(got, boot.EnvServer)
	require.Equal(t, map[string]string{
		boot.EnvRank: "0", boot.EnvSize: "1", boot.EnvLocalRank: "0", boot.EnvLocalSize: "1", boot.EnvLauncher: "run", "SLUICE_OTHER": "kept",
	}, got)
	require.Equal(t, 1, strings.Count(out.String(), "\nPWD="))
	require.Contains(t, out.String(), "\nPWD="+o.Dir+"\n")
}

// Lines of different ranks, and of the two streams of one, never mix.
func TestPrefix(t *testing.T) {
	const size, n = 4, 300
	var out bytes.Buffer
	o := options(t, size, "lines", strconv.Itoa(n))
	o.Stdout, o.Stderr, o.Prefix = &out, &out, true
	r := ran(t, o)
	require.Zero(t, r.ExitStatus())
	lines := make(map[int][]string)
	for line := range strings.Lines(out.String()) {
		var rank int
		_, err := fmt.Sscanf(line, "[%d] ", &rank)
		require.NoError(t, err, line)
		lines[rank] = append(lines[rank], line)
	}
	require.Len(t, lines, size)
	for rank, list := range lines {
		require.Len(t, list, n+2)
		i := 0
		for _, line := range list {
			switch line {
			case fmt.Sprintf("[%d] line %d of rank %d\n", rank, i, rank):
				i++
			case fmt.Sprintf("[%d] no end\n", rank):
				require.Equal(t, n, i)
			case fmt.Sprintf("[%d] error\n", rank):
			default:
				require.Fail(t, "unexpected line", line)
			}
		}
	}
}

func TestStdin(t *testing.T) {
	text := strings.Repeat("all work and no play\n", 10000)
	file := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for name, in := range map[string]io.Reader{"reader": strings.NewReader(text), "file": f, "nothing": nil} {
		var out, errs bytes.Buffer
		o := options(t, 2, "cat")
		o.Stdin, o.Stdout, o.Stderr = in, &out, &errs
		_, err := Run(procs.Within(t), o)
		require.NoError(t, err, name)
		if in == nil {
			require.Empty(t, out.String(), name)
			require.Equal(t, "0 bytes\n0 bytes\n", errs.String(), name)
			continue
		}
		require.Equal(t, text, out.String(), name)
		require.Contains(t, errs.String(), fmt.Sprintf("%d bytes\n", len(text)), name)
		require.Contains(t, errs.String(), "0 bytes\n", "rank 1 reads nothing")
	}
}

// Files are handed over: the ranks write to them directly.
func TestFiles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer f.Close()
	o := options(t, 1, "lines", "1")
	o.Stdout = f
	ran(t, o)
	b, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, "line 0 of rank 0\nno end", string(b))
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestBrokenOutput(t *testing.T) {
	o := options(t, 2, "lines", "100000")
	o.Stdout = broken{}
	r, err := Run(procs.Within(t), o)
	require.ErrorContains(t, err, "launch: output: disk full")
	require.Equal(t, 128+int(syscall.SIGPIPE), r.ExitStatus(), "the ranks met a broken pipe")
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{
		{Size: 0, Args: []string{"true"}},
		{Size: boot.MaxSize + 1, Args: []string{"true"}},
		{Size: 1},
		{Size: 1, Args: []string{"true"}, OnFailure: 2},
		{Size: 1, Args: []string{"true"}, Bind: -1},
	} {
		r, err := Run(t.Context(), o)
		require.ErrorIs(t, err, ErrOptions)
		require.Equal(t, -1, r.First)
	}
}

func TestCannotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text"), 0o600))
	for program, want := range map[string]error{
		"no-such-program-anywhere": exec.ErrNotFound,
		"/no/such/program":         fs.ErrNotExist,
		plain:                      fs.ErrPermission,
	} {
		var out bytes.Buffer
		r, err := Run(t.Context(), Options{Size: 2, Args: []string{program}, Stdin: strings.NewReader("x"), Stdout: &out, Prefix: true})
		var e *StartError
		require.ErrorAs(t, err, &e, program)
		require.Equal(t, 0, e.Rank)
		require.ErrorIs(t, err, want)
		require.Equal(t, []int{-1, -1}, r.Status)
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		name string
		in   string
		want string
	}{
		{"nothing", "", ""},
		{"lines", "a\nb\n", "[1] a\n[1] b\n"},
		{"no end", "a\nb", "[1] a\n[1] b\n"},
		{"empty line", "\n\na\n", "[1] \n[1] \n[1] a\n"},
		{"longest", long + "\n", "[1] " + long + "\n"},
		{"longest, no end", long, "[1] " + long + "\n"},
		{"too long", long + "y\n", "[1] " + long + "\n[1] y\n"},
		{"twice too long", long + long + "y", "[1] " + long + "\n[1] " + long + "\n[1] y\n"},
	} {
		for _, piece := range []int{1 << 20, 1000, 1} {
			var got strings.Builder
			l := lines{prefix: "[1] ", write: func(b []byte) error {
				if len(b) > 0 && b[len(b)-1] != '\n' {
					return errors.New("not whole lines only")
				}
				got.Write(b)
				return nil
			}}
			for in := c.in; in != ""; {
				n := min(piece, len(in))
				if err := l.Write([]byte(in[:n])); err != nil {
					require.NoError(t, err)
				}
				in = in[n:]
			}
			require.NoError(t, l.Write(nil))
			require.Equal(t, c.want, got.String(), "%s by %d", c.name, piece)
		}
	}
}

// What is written by one goroutine at a time is written by one at a time.
func TestOneWriter(t *testing.T) {
	var w exclusive
	o := options(t, 4, "lines", "100")
	o.Stdout, o.Stderr = &w, &w
	ran(t, o)
	require.False(t, w.clash)
}

type exclusive struct {
	mu    sync.Mutex
	clash bool
}

func (e *exclusive) Write(b []byte) (int, error) {
	if !e.mu.TryLock() {
		e.clash = true
		return len(b), nil
	}
	defer e.mu.Unlock()
	runtime.Gosched()
	return len(b), nil
}
