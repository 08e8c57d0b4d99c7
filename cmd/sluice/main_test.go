//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// The tests run the real sluice, built for them, and the test binary as the
// program of the ranks.

// TestMain makes the test binary a rank if sluice has started it as one.
func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Exit)
	leak.Main(m)
}

// limit bounds every test: what takes longer hangs.
const limit = ranks.Limit

// acts are what ranks do; the result is their exit status.
var acts = map[string]func(args []string) int{
	"args": func(args []string) int {
		fmt.Println(strings.Join(args, " "))
		return 0
	},
	// exit ends rank i with the i-th argument as its status; "wait" waits to
	// be killed, and a name of a signal is raised.
	"exit": func(args []string) int {
		switch do := args[rank()]; do {
		case "wait":
			fmt.Println("waiting")
			ranks.Forever()
			return 0
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			ranks.Forever()
			return 0
		default:
			status, err := strconv.Atoi(do)
			if err != nil {
				return 99
			}
			return status
		}
	},
	// wait prints its process ID, and waits to be killed.
	"wait": func([]string) int {
		fmt.Println("pid", os.Getpid())
		ranks.Forever()
		return 0
	},
	// member is wait in a job; rank 2 outlives the rendezvous.
	"member": func([]string) int {
		var opts []channel.Option
		if rank() == 2 {
			opts = append(opts, channel.WithOutlive())
		}
		if _, err := channel.Join(context.Background(), opts...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("pid", os.Getpid())
		ranks.Forever()
		return 0
	},
	// catch says which signals come, until SIGUSR2.
	"catch": func([]string) int {
		c := make(chan os.Signal, 16)
		signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
		fmt.Println("pid", os.Getpid())
		for s := range c {
			fmt.Println("got", int(s.(syscall.Signal)))
			if s == syscall.SIGUSR2 {
				return 5
			}
		}
		return 1
	},
	"env": func([]string) int {
		for _, e := range os.Environ() {
			if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SLUICE_") && !strings.HasPrefix(name, "SLUICE_TEST_") {
				fmt.Println(name)
			}
		}
		return 0
	},
	"job": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			got, err := j.Exchange(ctx, fmt.Appendf(nil, "rank %d", j.Rank()))
			if err == nil {
				fmt.Printf("%d of %d: %q\n", j.Rank(), j.Size(), got)
			}
			return err
		})
	},
	// survivors lets rank 0 kill itself; the others say what they see.
	"survivors": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if j.Rank() == 0 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			err := j.Barrier(ctx)
			if !errors.Is(err, boot.ErrDied) {
				return fmt.Errorf("unexpected: %w", err)
			}
			fmt.Println(err)
			return nil
		})
	},
	"abort": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			if j.Rank() == 0 {
				j.Abort(77, "enough")
			}
			<-j.Done()
			return nil
		})
	},
	// pieces writes lines in pieces, taking turns with the other ranks.
	"pieces": func([]string) int {
		return withJob(func(ctx context.Context, j *boot.Job) error {
			for i := range 20 {
				for _, piece := range []string{"piece", " by", " piece ", strconv.Itoa(i) + "\n"} {
					if err := j.Barrier(ctx); err != nil {
						return err
					}
					os.Stdout.WriteString(piece)
				}
			}
			os.Stdout.WriteString("rest")
			return nil
		})
	},
	"cpus": func([]string) int {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 1
		}
		fmt.Println(rank(), allowed(string(status)))
		return 0
	},
	"cat": func([]string) int {
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
		return 0
	},
}

// allowed is the list of CPUs in the text of /proc/pid/status.
func allowed(status string) string {
	_, rest, _ := strings.Cut(status, "Cpus_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func rank() int {
	r, err := strconv.Atoi(os.Getenv(boot.EnvRank))
	if err != nil {
		return -1
	}
	return r
}

func withJob(do func(context.Context, *boot.Job) error) int { return ranks.Member(boot.Join, do) }

// bed is what the tests have in common.
type bed struct {
	sluice string // the binary
	self   string // the program of the ranks
}

func TestSluice(t *testing.T) {
	b := bed{filepath.Join(t.TempDir(), "sluice"), ranks.Program()}
	out, err := exec.Command("go", "build", "-o", b.sluice, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.f(t, b)
		})
	}
}

type test struct {
	name string
	f    func(*testing.T, bed)
}

var tests = []test{
	{"exit status", testExitStatus},
	{"usage", testUsage},
	{"arguments", testArguments},
	{"job", testJob},
	{"job of one", testAlone},
	{"inner launcher", testInner},
	{"continue", testContinue},
	{"abort", testAbort},
	{"signals", testSignals},
	{"impatience", testImpatience},
	{"interrupt", testInterrupt},
	{"ignored signal", testIgnoredSignal},
	{"prefix", testPrefix},
	{"environment", testEnvironment},
	{"launchers", testLaunchers},
	{"IMPI server", testJobByServer},
	{"stdin", testStdin},
	{"version", testVersion},
	{"allocation of one node", testAllocation},
}

// testAllocation: in an allocation whose only node is this host, there are as many ranks as it has slots.
func testAllocation(t *testing.T, b bed) {
	host, err := os.Hostname()
	require.NoError(t, err)
	nodes := filepath.Join(t.TempDir(), "nodes")
	require.NoError(t, os.WriteFile(nodes, []byte(strings.Repeat(host+"\n", 3)), 0o600))
	for _, c := range []struct {
		flags []string
		ranks int
	}{{nil, 3}, {[]string{"-n", "2"}, 2}} {
		cmd := b.command(t, "args", slices.Concat([]string{"run"}, c.flags, []string{b.self, "hello"})...)
		cmd.Env = append(cmd.Env, "PBS_NODEFILE="+nodes)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("hello\n", c.ranks), string(out))
	}
}

// command is sluice, whose ranks do what do says.
func (b bed) command(t *testing.T, do string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, b.sluice, args...)
	// The race detector, where there is one, waits a second at the end of
	// every process.
	cmd.Env = ranks.Environ(do)
	return cmd
}

type ending struct {
	stdout, stderr string
	status         int
}

// finish runs cmd to its end.
func finish(t *testing.T, cmd *exec.Cmd) ending {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return ending{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// succeed runs cmd to its end, which must be a success.
func succeed(t *testing.T, cmd *exec.Cmd) ending {
	t.Helper()
	e := finish(t, cmd)
	require.Zero(t, e.status, e.stderr)
	return e
}

// silent requires that a run has said nothing but how many CPUs and cores it has found, and which ranks are late,
// which depends on the host and on what else runs there.
func (e ending) silent(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(ranks.Prompt(e.stderr)) {
		require.Regexp(t, `^sluice run: (\d+ ranks share \d+ CPUs: .*|not bound to cores: .*)\n$`, line)
	}
}

func (e ending) lines() []string {
	list := strings.Split(strings.TrimSuffix(e.stdout, "\n"), "\n")
	slices.Sort(list)
	return list
}

func testExitStatus(t *testing.T, b bed) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text"), 0o600))
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string // on standard error; nothing if empty
	}{
		{"success", []string{"-n", "2", b.self, "0", "0"}, 0, ""},
		{"alone", []string{b.self, "0"}, 0, ""},
		{"failure, the others are ended", []string{"-n", "3", b.self, "wait", "3", "wait"}, 3, "rank 1 failed with status 3"},
		{"signal, the others are ended", []string{"-n", "3", b.self, "wait", "wait", "kill"}, 137, "rank 2 failed with status 137 (signal: killed)"},
		{"continue", []string{"-n", "3", "--on-failure=continue", b.self, "0", "0", "4"}, 4, "rank 2 failed with status 4"},
		{"not found", []string{"-n", "2", "no-such-program-anywhere"}, 127, "rank 0: exec"},
		{"no such file", []string{"-n", "2", "/no/such/file"}, 127, "no such file"},
		{"not executable", []string{"-n", "2", plain}, 126, "permission denied"},
		{"no such folder", []string{"-n", "2", "--wdir", "/no/such", b.self}, 126, "rank 0: cannot run in /no/such: no such file or directory"},
		{"a folder that is none", []string{"-n", "2", "--wdir", plain, b.self}, 126, "cannot run in " + plain + ": not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := finish(t, b.command(t, "exit", append([]string{"run"}, c.args...)...))
			require.Equal(t, c.status, e.status, e.stderr)
			if c.says == "" {
				e.silent(t)
			}
			require.Contains(t, e.stderr, c.says)
		})
	}
}

func testUsage(t *testing.T, b bed) {
	for _, c := range []struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		{nil, 0, "Usage:", ""},
		{[]string{"frob"}, 2, "", `unknown command "frob"`},
		{[]string{"rnu", "true"}, 2, "", `unknown command "rnu"; did you mean "run"?`},
		{[]string{"rnu", "-n", "4", "true"}, 2, "", `unknown command "rnu"; did you mean "run"?`},
		{[]string{"rnu", "--help"}, 2, "", `unknown command "rnu"; did you mean "run"?`},
		{[]string{"help", "rnu"}, 2, "", `unknown command "rnu"; did you mean "run"?`},
		{[]string{"help"}, 0, "Usage:", ""},
		{[]string{"help", "run"}, 0, "--on-failure kill|continue", ""},
		{[]string{"--help"}, 0, "Usage:", ""},
		{[]string{"--frob"}, 2, "", "unknown flag: --frob"},
		{[]string{"-np", "4", "true"}, 2, "", "give flags after the command, as in 'sluice run -n 4 program'"},
		{[]string{"run", "-np", "4", "true"}, 2, "", "-np is not a flag: set the number of processes with -n N or --ranks N"},
		{[]string{"run", "-np4", "true"}, 2, "", "-np is not a flag: set the number of processes with -n N or --ranks N"},
		{[]string{"run", "-np=4", "true"}, 2, "", "-np is not a flag: set the number of processes with -n N or --ranks N"},
		{[]string{"run", "-n", "prog"}, 2, "", `invalid value "prog" of -n, --ranks: want a whole number` + "\n"},
		{[]string{"run", "--np", "4", "true"}, 2, "", "-np is not a flag: set the number of processes with -n N or --ranks N"},
		{[]string{"run"}, 2, "", "no program to run"},
		{[]string{"run", "-n", "0", "true"}, 2, "", "0 ranks, want 1 to"},
		{[]string{"run", "-n", "99999999999999999999", "true"}, 2, "", `invalid value "99999999999999999999" of -n, --ranks: want a whole number, and not such a large one` + "\n"},
		{[]string{"run", "--kill-grace=5", "true"}, 2, "", `invalid value "5" of --kill-grace: want a duration with its unit, such as 500ms or 10s` + "\n"},
		{[]string{"run", "--prefix=x", "true"}, 2, "", `invalid value "x" of --prefix: want true or false` + "\n"},
		{[]string{"fanout", "-workers", "x"}, 2, "", `invalid value "x" of --workers: want a whole number` + "\n"},
		{[]string{"run", "--bind=socket", "true"}, 2, "", `invalid value "socket" of --bind: want none or core or free` + "\n"},
		{[]string{"run", "--bind=p", "true"}, 2, "", "want none or core or free"},
		{[]string{"run", "--on-failure", "pray", "true"}, 2, "", "want kill or continue"},
		{[]string{"run", "-H", "", "true"}, 2, "", `not a host: ""`},
		{[]string{"run", "--hostfile", "", "true"}, 2, "", "no such file"},
		{[]string{"run", "-H", "a", "--hostfile", "", "true"}, 2, "", "both --host and --hostfile are given"},
		{[]string{"run", "--help"}, 0, "--on-failure kill|continue", ""},
		{[]string{"version", "3"}, 2, "", `unexpected argument "3"`},
	} {
		e := finish(t, b.command(t, "", c.args...))
		require.Equal(t, c.status, e.status, "%v: %s", c.args, e.stderr)
		require.Contains(t, e.stdout, c.stdout)
		if c.stderr == "" {
			require.Empty(t, e.stderr, "%v", c.args)
		}
		require.Contains(t, e.stderr, c.stderr)
	}
}

// Arguments after the program belong to the program, even those that look like flags.
func testArguments(t *testing.T, b bed) {
	for _, args := range [][]string{
		{"run", "-n", "1", b.self, "-n", "5", "--help", "--", "x"},
		{"run", "-n", "1", "--", b.self, "-n", "5", "--help", "--", "x"},
	} {
		require.Equal(t, "-n 5 --help -- x\n", succeed(t, b.command(t, "args", args...)).stdout)
	}
}

func testJob(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "job", "run", "-n", "3", b.self))
	require.Equal(t, []string{
		`0 of 3: ["rank 0" "rank 1" "rank 2"]`,
		`1 of 3: ["rank 0" "rank 1" "rank 2"]`,
		`2 of 3: ["rank 0" "rank 1" "rank 2"]`,
	}, e.lines())
}

// Without the launcher a program is a job of one.
func testAlone(t *testing.T, b bed) {
	cmd := b.command(t, "job")
	cmd.Path, cmd.Args = b.self, []string{b.self}
	require.Equal(t, "0 of 1: [\"rank 0\"]\n", succeed(t, cmd).stdout)
}

func testInner(t *testing.T, b bed) {
	cmd := b.command(t, "job", "run", "-n", "2", b.sluice, "run", "-n", "3", b.self)
	// Variables set by hand do not disturb the job either.
	cmd.Env = append(cmd.Env, "SLUICE_RANK=17", "SLUICE_SECRET_FILE=/nowhere", "SLUICE_INSECURE=1")
	e := succeed(t, cmd)
	var want []string
	for rank := range 3 {
		line := fmt.Sprintf(`%d of 3: ["rank 0" "rank 1" "rank 2"]`, rank)
		want = append(want, line, line)
	}
	require.Equal(t, want, e.lines())
}

func testContinue(t *testing.T, b bed) {
	e := finish(t, b.command(t, "survivors", "run", "-n", "3", "--on-failure", "continue", "--prefix", b.self))
	require.Equal(t, 137, e.status, e.stderr)
	lines := e.lines()
	require.Len(t, lines, 2)
	for i, line := range lines {
		require.Contains(t, line, fmt.Sprintf("[%d] ", i+1))
		require.Contains(t, line, "exchange 2 of the job: rank 0 died")
	}
}

func testAbort(t *testing.T, b bed) {
	e := finish(t, b.command(t, "abort", "run", "-n", "3", b.self))
	require.Equal(t, 77, e.status)
	require.Contains(t, e.stderr, "the job was aborted by rank 0 with code 77: enough")
}

// session is a sluice that runs; its ranks' lines come with their prefix.
type session struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr *logbuf.Buffer
}

func start(t *testing.T, cmd *exec.Cmd) *session {
	t.Helper()
	return startBy(t, cmd, cmd.Start)
}

// startBy is start where something else starts the command.
func startBy(t *testing.T, cmd *exec.Cmd, start func() error) *session {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	s := &session{cmd: cmd, lines: bufio.NewScanner(out), stderr: new(logbuf.Buffer)}
	cmd.Stderr = s.stderr
	require.NoError(t, start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return s
}

// next returns the next n lines, by rank, without their prefix.
func (s *session) next(t *testing.T, n int) []string {
	t.Helper()
	list := make([]string, n)
	for range n {
		require.True(t, s.lines.Scan(), "no more output: %v; %s", s.lines.Err(), s.stderr)
		head, text, ok := strings.Cut(s.lines.Text(), "] ")
		require.True(t, ok, s.lines.Text())
		rank, err := strconv.Atoi(strings.TrimPrefix(head, "["))
		require.NoError(t, err)
		require.Empty(t, list[rank])
		list[rank] = text
	}
	return list
}

// pids reads the line "pid N" of each rank.
func (s *session) pids(t *testing.T, n int) []int {
	t.Helper()
	list := make([]int, n)
	for rank, text := range s.next(t, n) {
		_, err := fmt.Sscanf(text, "pid %d", &list[rank])
		require.NoError(t, err, text)
	}
	return list
}

// status waits for the end of sluice and returns its exit status.
func (s *session) status(t *testing.T) int {
	t.Helper()
	for s.lines.Scan() {
		// Wait closes the pipe; what is in it is to be read before.
	}
	var exit *exec.ExitError
	if err := s.cmd.Wait(); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func testSignals(t *testing.T, b bed) {
	s := start(t, b.command(t, "catch", "run", "-n", "2", "--prefix", "--kill-grace", "1h", b.self))
	s.pids(t, 2)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGCONT, syscall.SIGTERM} {
		require.NoError(t, s.cmd.Process.Signal(sig))
		text := fmt.Sprintf("got %d", sig)
		require.Equal(t, []string{text, text}, s.next(t, 2))
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGUSR2))
	require.Equal(t, 5, s.status(t), "that of the ranks")
}

// A second SIGINT is not left to the ranks.
func testImpatience(t *testing.T, b bed) {
	s := start(t, b.command(t, "catch", "run", "-n", "2", "--prefix", "--kill-grace=1ms", b.self))
	s.pids(t, 2)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, []string{"got 2", "got 2"}, s.next(t, 2))
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 137, s.status(t))
}

// A signal that ranks do not catch ends them, and sluice reports it.
func testInterrupt(t *testing.T, b bed) {
	s := start(t, b.command(t, "wait", "run", "-n", "2", "--prefix", b.self))
	s.pids(t, 2)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, s.status(t))
	require.Contains(t, s.stderr.String(), "(signal: interrupt)")
}

// A signal that sluice was started to ignore, as by nohup, is not forwarded.
func testIgnoredSignal(t *testing.T, b bed) {
	cmd := b.command(t, "catch", "run", "-n", "2", "--prefix", b.self)
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}, cmd.Args...)
	cmd.Path = "/bin/sh"
	s := start(t, cmd)
	s.pids(t, 2)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGUSR1))
	require.Equal(t, []string{"got 10", "got 10"}, s.next(t, 2))
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGUSR2)) // the first rank that it ends ends the other
	require.Equal(t, 5, s.status(t))
}

func testPrefix(t *testing.T, b bed) {
	const size = 3
	e := succeed(t, b.command(t, "pieces", "run", "-n", strconv.Itoa(size), "--prefix", b.self))
	next := make([]int, size)
	for line := range strings.Lines(e.stdout) {
		var rank int
		_, err := fmt.Sscanf(line, "[%d] ", &rank)
		require.NoError(t, err, line)
		want := fmt.Sprintf("[%d] piece by piece %d\n", rank, next[rank])
		if next[rank] == 20 {
			want = fmt.Sprintf("[%d] rest\n", rank)
		}
		require.Equal(t, want, line)
		next[rank]++
	}
	require.Equal(t, []int{21, 21, 21}, next)
}

// The help names exactly the variables that a rank finds in its environment.
func testEnvironment(t *testing.T, b bed) {
	help := finish(t, b.command(t, "", "run", "--help"))
	given, byHand, ok := strings.Cut(help.stdout, "\nand removes ")
	require.True(t, ok)
	name := regexp.MustCompile(`(?m)^  (SLUICE_\w+) `)
	names := func(text string) (list []string) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			list = append(list, m[1])
		}
		slices.Sort(list)
		return list
	}
	e := succeed(t, b.command(t, "env", "run", "-n", "1", b.self))
	require.NotEmpty(t, names(given))
	require.Equal(t, names(given), e.lines())

	all := append(names(given), names(byHand)...)
	slices.Sort(all)
	var want []string
	for _, v := range boot.Variables() {
		want = append(want, v.Name)
	}
	slices.Sort(want)
	require.Equal(t, want, all)
}

// The topic names every variable that is read.
func testLaunchers(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "help", "launchers"))
	for _, v := range append(boot.Variables(), boot.ForeignVariables()...) {
		require.Regexp(t, `(?m)^  `+v.Name+` +`+regexp.QuoteMeta(v.Meaning)+`$`, e.stdout)
	}
}

func testStdin(t *testing.T, b bed) {
	text := strings.Repeat("all work and no play\n", 10000)
	cmd := b.command(t, "cat", "run", "-n", "2", b.self)
	cmd.Stdin = strings.NewReader(text) // through a pipe
	require.Equal(t, text, succeed(t, cmd).stdout)
}

func testVersion(t *testing.T, b bed) {
	e := succeed(t, b.command(t, "", "version"))
	require.Regexp(t, `^sluice \S+ go1\.\S+ \w+/\w+\n$`, e.stdout)
}
