//go:build unix

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch/wire"
	"github.com/sluice-hpc/sluice/internal/leak"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	acts["agent"] = func(args []string) int {
		folder := ""
		if len(args) == 3 {
			folder = args[2]
		}
		if err := Agent(context.Background(), os.Stdin, os.Stdout, os.Stderr, folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// shell returns a Shell that runs commands here, after a script that has the host in $1 and the command
// in $2.
func shell(t *testing.T, script string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shell")
	// Forked while the file is open for writing, another process could not run it.
	require.NoError(t, os.WriteFile(path, []byte(script+"\n"+`GORACE=atexit_sleep_ms=0 SLUICE_TEST_ACT=agent exec sh -c "$2"`), 0o600))
	return []string{"sh", path}
}

// across has a job run on hosts a and b, which are this one.
func across(t *testing.T, o Options, script string) Options {
	t.Helper()
	half := o.Size / 2
	o.Hosts = &Hosts{List: []Host{{Name: "a", Slots: half}, {Name: "b", Slots: o.Size - half}}, Shell: shell(t, script)}
	return o
}

// Ranks of two hosts are one job, and see what those of one host see.
func TestFleet(t *testing.T) {
	leak.Check(t)
	var out, stderr bytes.Buffer
	o := across(t, options(t, 5, "exchange"), "")
	o.Stdout, o.Stderr = &out, &stderr
	r, err := Run(procs.Within(t), o)
	require.NoError(t, err, stderr.String())
	require.Zero(t, r.ExitStatus(), stderr.String())
	require.Equal(t, []int{0, 0, 0, 0, 0}, r.Status)
	for _, line := range []string{"0 5 0 2", "1 5 1 2", "2 5 0 3", "3 5 1 3", "4 5 2 3"} {
		require.Contains(t, out.String(), line+" [[0] [1] [2] [3] [4]]\n")
	}
	for line := range strings.Lines(stderr.String()) { // of the agents
		require.Regexp(t, "^host [ab]: (\\d+ ranks share \\d+ CPUs: .*|not bound to cores: .*)\n$", line)
	}
}

// How ranks end decides as it does on one host.
func TestFleetStatus(t *testing.T) {
	for name, c := range map[string]struct {
		act    []string
		policy OnFailure
		want   []int
		exit   int
	}{
		"success":          {[]string{"exit", "0", "0", "0", "0"}, Kill, []int{0, 0, 0, 0}, 0},
		"all go on":        {[]string{"exit", "0", "0", "4", "-9"}, Continue, []int{0, 0, 4, 137}, -1},
		"others are ended": {[]string{"fail", "3"}, Kill, nil, 7}, // some before they are there

		"a rank aborts": {[]string{"abort", "77"}, Kill, nil, 77},
		"what survives": {[]string{"survive"}, Continue, []int{0, 137, 0, 0}, 137},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := across(t, options(t, 4, c.act[0], c.act[1:]...), "")
			o.OnFailure = c.policy
			r := ran(t, o)
			if c.want != nil {
				require.Equal(t, c.want, r.Status)
			}
			if c.exit >= 0 {
				require.Equal(t, c.exit, r.ExitStatus())
			}
		})
	}
}

// Output comes in whole lines, standard input goes to rank 0, and ends; more than the window passes.
func TestFleetStreams(t *testing.T) {
	leak.Check(t)
	var out, stderr bytes.Buffer
	text := strings.Repeat("a line of input\n", 3*wire.Window/16)
	o := across(t, options(t, 4, "cat"), "")
	o.Stdin, o.Stdout, o.Stderr, o.Prefix = strings.NewReader(text), &out, &stderr, true
	r := ran(t, o)
	require.Zero(t, r.ExitStatus())
	require.Equal(t, strings.ReplaceAll(text, "a line", "[0] a line"), out.String())
	for rank, n := range []int{len(text), 0, 0, 0} {
		require.Contains(t, stderr.String(), fmt.Sprintf("[%d] %d bytes\n", rank, n))
	}

	out.Reset()
	o = across(t, options(t, 4, "lines", "500"), "")
	o.Stdout, o.Prefix = &out, true
	ran(t, o)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 4*501)
	for _, line := range lines {
		require.Regexp(t, `^\[(\d)\] (line \d+ of rank \d|no end)$`, line)
	}
}

// Input that rank 0 does not read keeps nothing else up, and ends with the job.
func TestFleetUnreadInput(t *testing.T) {
	in, w := io.Pipe()
	go func() {
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	defer in.Close()
	o := across(t, options(t, 2, "wait"), "")
	o.Stdin = in
	r := startRun(t, o)
	r.out.next(t, 2)
	r.cancel()
	r.ended(t, context.Canceled)
}

// Where this process cannot write, ranks get a broken pipe.
func TestFleetBrokenPipe(t *testing.T) {
	o := across(t, options(t, 2, "cat"), "")
	o.Args = []string{"yes"}
	o.Stdout, o.OnFailure = failing{}, Continue
	r, err := Run(procs.Within(t), o)
	require.ErrorIs(t, err, syscall.EPIPE)
	for _, status := range r.Status {
		require.NotZero(t, status)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// Signals reach the ranks of all hosts; a stubborn rank is killed.
func TestFleetSignals(t *testing.T) {
	o := across(t, options(t, 4, "catch"), "")
	o.Signals = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}
	r := startRun(t, o)
	r.out.next(t, 4)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	for rank, line := range r.out.next(t, 4) {
		require.Equal(t, fmt.Sprintf("[%d] got %d", rank, syscall.SIGUSR1), line)
	}
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR2))
	require.Equal(t, []int{0, 0, 0, 0}, r.ended(t, nil).Status)

	o = across(t, options(t, 3, "stubborn"), "")
	o.KillGrace = 50 * time.Millisecond
	r = startRun(t, o)
	r.out.next(t, 3)
	r.cancel()
	<-r.done
	require.Equal(t, []int{137, 137, 137}, r.result.Status)
}

// What keeps an agent from starting is named, with the host, and ends the job.
func TestFleetNoAgent(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		is     error
		says   []string
	}{
		"refused":         {`[ "$1" = b ] && { echo "connect to host b: refused" >&2; exit 255; }`, ErrAgent, []string{"host b (ranks 1-2)", "exit status 255", "it wrote: connect to host b: refused"}},
		"no sluice":       {`[ "$1" = b ] && exit 127`, ErrAgent, []string{"host b", procs.Program() + " cannot be run there"}},
		"another version": {`[ "$1" = b ] && { printf '\000sluice-agent\000\000\377\n'; exec cat; }`, wire.ErrVersion, []string{"host b", "its agent speaks version 255"}},
		"noise":           {`[ "$1" = b ] && exec yes`, wire.ErrNoise, []string{"host b", "65536 bytes of something else"}},
		"no messages":     {`[ "$1" = b ] && { printf '\000sluice-agent\000\000\001\n'; exec yes; }`, wire.ErrProtocol, []string{"host b"}},
		"ends early":      {`[ "$1" = b ] && { printf '\000sluice-agent\000\000\001\n'; exit 3; }`, ErrLost, []string{"host b", "exit status 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(procs.Within(t), across(t, options(t, 3, "wait"), c.script))
			var host *HostError
			require.ErrorAs(t, err, &host)
			require.Equal(t, "b", host.Host)
			require.ErrorIs(t, err, c.is)
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
			}
			require.Equal(t, []int{-1, -1}, r.Status[1:])
		})
	}
	o := across(t, options(t, 2, "wait"), "")
	o.Hosts.Shell = []string{"no-such-shell-anywhere"}
	_, err := Run(procs.Within(t), o)
	require.ErrorIs(t, err, exec.ErrNotFound)
}

// Noise of a login shell is no error.
func TestFleetNoise(t *testing.T) {
	var out, stderr bytes.Buffer
	o := across(t, options(t, 2, "exit", "0", "0"), `echo Welcome; echo "last login" >&2`)
	o.Stdout, o.Stderr = &out, &stderr
	ran(t, o)
	require.Empty(t, out.String()+stderr.String())
}

// A program that cannot be started on a host is the error that it is here.
func TestFleetNoProgram(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	for program, is := range map[string]error{"no-such-program-anywhere": exec.ErrNotFound, "/no/such": os.ErrNotExist, plain: os.ErrPermission} {
		o := across(t, options(t, 4, ""), "")
		o.Args = []string{program}
		_, err := Run(procs.Within(t), o)
		var start *StartError
		require.ErrorAs(t, err, &start, program)
		require.ErrorIs(t, err, is, program)
	}
	o := across(t, options(t, 2, "wait"), "")
	o.Dir = "/no/such/folder"
	_, err := Run(procs.Within(t), o)
	require.ErrorContains(t, err, ": cannot run in /no/such/folder: no such file or directory")
}

// A relative folder is one of the launcher's on every host.
func TestFleetFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("run", 0o700))
	here, err := filepath.Abs("run")
	require.NoError(t, err)
	var out bytes.Buffer
	o := across(t, options(t, 2, ""), "cd /")
	o.Args, o.Dir, o.Stdout = []string{"pwd"}, "run", &out
	ran(t, o)
	require.Equal(t, strings.Repeat(here+"\n", 2), out.String())
}

// startKnown starts a job of "told", and returns when the launcher knows that all ranks have been started, which
// an agent says after their first output, perhaps: then it passes on signals.
func startKnown(t *testing.T, o Options) *running {
	o.Signals = []os.Signal{syscall.SIGUSR1}
	r := startRun(t, o)
	r.out.next(t, o.Size)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	r.out.next(t, o.Size)
	return r
}

// An agent that is killed takes its ranks with it, and its host is named; so is one that is stopped.
func TestFleetLost(t *testing.T) {
	for name, c := range map[string]struct {
		signal  syscall.Signal
		silence time.Duration
		says    string
	}{
		"killed":  {syscall.SIGKILL, limit, "its agent ended without a result (sh: signal: killed)"},
		"stopped": {syscall.SIGSTOP, 5 * time.Second, "no answer for 5s"}, // the other one answers ten times as often
	} {
		t.Run(name, func(t *testing.T) {
			pid := filepath.Join(t.TempDir(), "pid")
			o := across(t, options(t, 4, "told"), `[ "$1" = b ] && echo $$ >`+pid)
			o.Hosts.Silence, o.KillGrace = c.silence, limit
			r := startKnown(t, o)
			text, err := os.ReadFile(pid)
			require.NoError(t, err)
			var agent int
			_, err = fmt.Sscan(string(text), &agent)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(agent, c.signal))
			r.ended(t, ErrLost)
			require.ErrorContains(t, r.err, "host b (ranks 2-3)")
			require.ErrorContains(t, r.err, c.says)
			require.Equal(t, []int{143, 143, lostStatus, lostStatus}, r.result.Status)
			require.Contains(t, []int{2, 3}, r.result.First)
		})
	}
}

// An agent that does not answer keeps up no job that is being killed.
func TestFleetKilled(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	o := across(t, options(t, 4, "told"), `[ "$1" = b ] && echo $$ >`+pid)
	o.Hosts.Silence, o.KillGrace = -1, -1
	r := startKnown(t, o)
	text, err := os.ReadFile(pid)
	require.NoError(t, err)
	var agent int
	_, err = fmt.Sscan(string(text), &agent)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(agent, syscall.SIGSTOP))
	_, err = syscall.Wait4(agent, nil, syscall.WUNTRACED, nil) // all its threads have stopped
	require.NoError(t, err)
	r.cancel()
	select {
	case <-r.done:
	case <-procs.Within(t).Done():
		syscall.Kill(agent, syscall.SIGKILL)
		require.Fail(t, "it waits for an agent that is stopped")
	}
	require.Equal(t, []int{137, 137, lostStatus, lostStatus}, r.result.Status)
}

// A signal ends the job while agents are being started, also if one hangs.
func TestFleetInterrupted(t *testing.T) {
	here := filepath.Join(t.TempDir(), "here")
	require.NoError(t, syscall.Mkfifo(here, 0o600))
	o := across(t, options(t, 2, "wait"), `[ "$1" = b ] && { echo >`+here+`; exec sleep 1000; }`)
	o.Signals = []os.Signal{syscall.SIGUSR1, syscall.SIGTERM}
	r := startRun(t, o)
	_, err := os.ReadFile(here)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	r.ended(t, nil)
	require.Equal(t, syscall.SIGTERM, r.result.Interrupted)
}

// Several programs share a job; each has its variables and its folder.
func TestPrograms(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, hosts := range []bool{false, true} {
		var out bytes.Buffer
		o := options(t, 1, "")
		o.Args, o.Set = []string{"sh", "-c", `echo "first $A"`}, []string{"A=b c"}
		o.More = []Program{{Size: 2, Args: []string{"sh", "-c", `echo "second $A $PWD"`}, Dir: dir, Set: []string{"A="}}}
		if hosts {
			o.Hosts = &Hosts{List: []Host{{Name: "a", Slots: 1}, {Name: "b", Slots: 2}}, Shell: shell(t, "")}
		}
		o.Stdout, o.Prefix = &out, true
		require.Equal(t, []int{0, 0, 0}, ran(t, o).Status)
		for _, line := range []string{"[0] first b c\n", "[1] second  " + dir + "\n", "[2] second  " + dir + "\n"} {
			require.Contains(t, out.String(), line)
		}
	}
}

// Copies of the programs run, and are gone afterwards, also if the agent is killed.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\necho $0 $1 $PPID\nexec sleep 1000\n"), 0o700))
	for _, kill := range []bool{false, true} {
		o := across(t, options(t, 2, ""), "export TMPDIR="+dir)
		o.Args, o.Hosts.Copy = []string{tool, "x"}, true
		o.More = []Program{{Size: 1, Args: []string{"sleep", "1000"}}, {Size: 1, Args: []string{tool, "y"}}}
		o.Hosts.List[1].Slots = 3
		r := startRun(t, o)
		lines := map[string]bool{}
		var agent int
		for range 3 {
			var path, word string
			var rank int
			select {
			case line := <-r.out.lines:
				_, err := fmt.Sscanf(line, "[%d] %s %s %d", &rank, &path, &word, &agent)
				require.NoError(t, err, line)
			case <-r.done:
				require.NoError(t, r.err)
			}
			lines[word] = true
			require.Equal(t, dir, filepath.Dir(filepath.Dir(path)))
			require.Regexp(t, "^program[01]$", filepath.Base(path))
			info, err := os.Stat(filepath.Dir(path))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		}
		require.Equal(t, map[string]bool{"x": true, "y": true}, lines)
		if kill {
			require.NoError(t, syscall.Kill(agent, syscall.SIGKILL))
		} else {
			r.cancel()
		}
		<-r.done
		require.Error(t, r.err)
		procs.Eventually(t, func() bool {
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			return len(left) == 0
		})
	}
}

// A relative path of a program is below its folder, copied or not.
func TestCopyFolder(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\npwd\n"), 0o700))
	for _, copied := range []bool{false, true} {
		var out bytes.Buffer
		o := across(t, options(t, 2, ""), "export TMPDIR="+t.TempDir())
		o.Args, o.Dir, o.Stdout, o.Hosts.Copy = []string{"./tool"}, dir, &out, copied
		ran(t, o)
		require.Equal(t, strings.Repeat(dir+"\n", 2), out.String())
	}
}

// What keeps a copy from being made is named.
func TestCopyFails(t *testing.T) {
	o := across(t, options(t, 2, "wait"), "export TMPDIR=/no/such/folder")
	o.Hosts.Copy = true
	_, err := Run(procs.Within(t), o)
	require.ErrorIs(t, err, ErrAgent)
	require.ErrorContains(t, err, "/no/such/folder")

	dir := t.TempDir()
	o = across(t, options(t, 2, "wait"), "export TMPDIR="+dir+`; head() { command head -c 1000; }; eval "$(printf %s "$2" | sed "s/^exec .sh. .-c. .//; s/.\$//")"; exit`)
	o.Hosts.Copy = true
	_, err = Run(procs.Within(t), o)
	require.ErrorIs(t, err, ErrAgent)
	require.ErrorContains(t, err, "is not complete")

	dir = t.TempDir() // in the other one the shell of host a may have been killed
	o = across(t, options(t, 2, "wait"), "export TMPDIR="+dir)
	o.Hosts.Copy, o.Args = true, []string{"no-such-program-anywhere"}
	_, err = Run(procs.Within(t), o)
	var start *StartError
	require.ErrorAs(t, err, &start)
	require.ErrorIs(t, err, exec.ErrNotFound)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// An agent refuses what no launcher says, and says why.
func TestAgentProtocol(t *testing.T) {
	setup := wire.Setup{Size: 1, Input: true, Job: "j", Secret: make([]byte, 32), Server: "127.0.0.1:1",
		Programs: []wire.Program{{Args: []string{"sleep", "1000"}, File: wire.NoFile}}, Ranks: []wire.Rank{{}}}
	noFile := setup
	noFile.Programs = []wire.Program{{Args: []string{"x"}}}
	for name, say := range map[string][]wire.Message{
		"no setup":       {wire.Stop{}},
		"a missing file": {noFile},
		"a file":         {wire.File{}},
		"setup twice":    {setup, setup},
		"output":         {setup, wire.Output{Stream: 1, Data: []byte{1}}},
		"too much input": {setup, wire.Input{Data: make([]byte, wire.MaxPiece)}, wire.Input{Data: make([]byte, wire.MaxPiece)}, wire.Input{Data: make([]byte, wire.MaxPiece)}, wire.Input{Data: make([]byte, wire.MaxPiece)}, wire.Input{Data: make([]byte, wire.MaxPiece)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w := io.Pipe()
			go func() {
				for _, m := range say {
					w.Write(m.Append(nil))
				}
			}()
			defer r.Close()
			require.ErrorIs(t, Agent(procs.Within(t), r, io.Discard, io.Discard, ""), wire.ErrProtocol)
		})
	}
}

// The end of its input makes an agent kill its ranks.
func TestAgentOrphaned(t *testing.T) {
	leak.Check(t)
	in, w := io.Pipe()
	out, theirs := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Agent(procs.Within(t), in, theirs, io.Discard, ""); theirs.Close() }()
	read := make(chan error, 1)
	first := make(chan string)
	go func() {
		b := make([]byte, len(wire.Preamble()))
		_, err := io.ReadFull(out, b)
		for err == nil {
			var m wire.Message
			if m, err = wire.Read(out); err == nil {
				if o, ok := m.(wire.Output); ok {
					first <- string(o.Data)
				}
			}
		}
		read <- err
	}()
	w.Write(wire.Setup{Size: 1, Stdout: true, Job: "j", Secret: make([]byte, 32), Server: "127.0.0.1:1",
		Programs: []wire.Program{{Args: []string{"sh", "-c", "echo $$; exec sleep 1000"}, File: wire.NoFile}}, Ranks: []wire.Rank{{}}}.Append(nil))
	var pid int
	_, err := fmt.Sscan(<-first, &pid)
	require.NoError(t, err)
	w.Close()
	require.NoError(t, <-done)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	err = <-read // in the middle of a message, perhaps: there is nothing to tell any more
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), err)
}
