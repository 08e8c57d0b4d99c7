package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
)

func childOf(t *testing.T, line string) int {
	t.Helper()
	_, number, ok := strings.Cut(line, "child ")
	require.True(t, ok, line)
	pid, err := strconv.Atoi(strings.TrimSpace(number))
	require.NoError(t, err)
	return pid
}

// Processes that a rank has started end with the rank that stays, when the job
// is ended...
func TestGrandchildKilled(t *testing.T) {
	o := options(t, 2, "parent", "stay")
	o.KillGrace = 50 * time.Millisecond
	r := startRun(t, o)
	var fds []int
	for _, line := range r.out.next(t, 2) {
		fds = append(fds, procs.Watch(t, childOf(t, line)))
	}
	r.cancel()
	<-r.done
	for _, fd := range fds {
		procs.Ended(t, fd)
	}
}

// ... and with the rank that has ended by itself.
func TestGrandchildLeft(t *testing.T) {
	var out bytes.Buffer
	o := options(t, 1, "parent", "leave")
	o.Stdout, o.Stderr = &out, &out
	r := ran(t, o)
	require.Zero(t, r.ExitStatus())
	pid := childOf(t, out.String())
	// It was killed before its parent was reaped; init may not have reaped it.
	require.Eventually(t, func() bool { return gone(pid) }, limit, time.Millisecond)
}

// gone reports whether a process is no more, or a zombie.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// A process that has left the session keeps its end of the output. Run does
// not wait for it.
func TestEscaped(t *testing.T) {
	need.Full(t) // Run settles for seconds
	var out bytes.Buffer
	o := options(t, 1, "parent", "escape")
	o.Stdout, o.Stderr = &out, &out
	ran(t, o)
	pid := childOf(t, out.String())
	fd := procs.Watch(t, pid)
	require.NoError(t, unix.Kill(pid, syscall.SIGKILL))
	procs.Ended(t, fd)
}

func TestBind(t *testing.T) {
	cpus, err := Cores()
	require.NoError(t, err)
	require.NotEmpty(t, cpus)
	all, err := usableCPUs()
	require.NoError(t, err)
	require.ElementsMatch(t, all, cpus)
	before := threadMasks(t)
	size := 2*len(cpus) + 1
	o := options(t, size, "cpus")
	o.Bind = Core
	for i, e := range o.Env {
		if strings.HasPrefix(e, "GOMAXPROCS=") {
			o.Env[i] = "GOMAXPROCS="
		}
	}
	var out bytes.Buffer
	o.Stdout = &out
	ran(t, o)
	for rank := range size {
		require.Contains(t, out.String(), fmt.Sprintf("%d %d 1 1\n", rank, cpus[rank*len(cpus)/size]))
	}
	for mask := range threadMasks(t) {
		require.Contains(t, before, mask, "a thread stayed bound")
	}
}

// Ranks get cores before they get to share them, however the system numbers the
// hardware threads.
func TestCoresFirst(t *testing.T) {
	for _, c := range []struct {
		name       string
		cpus, want []int
		core       func(int) string
	}{
		{"one thread a core", []int{0, 1, 2}, []int{0, 1, 2}, strconv.Itoa},
		{"threads side by side", []int{0, 1, 2, 3, 4, 5}, []int{0, 2, 4, 1, 3, 5}, func(cpu int) string { return strconv.Itoa(cpu / 2) }},
		{"second threads behind", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, func(cpu int) string { return strconv.Itoa(cpu % 2) }},
		{"part of the machine", []int{1, 2, 3, 7}, []int{1, 2, 7, 3}, func(cpu int) string { return strconv.Itoa(cpu / 2) }},
		{"none", nil, nil, strconv.Itoa},
	} {
		require.Equal(t, c.want, coresFirst(c.cpus, c.core), c.name)
	}
}

// threadMasks returns the affinity masks of the threads of this process.
func threadMasks(t *testing.T) map[string]bool {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	masks := make(map[string]bool)
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		_, rest, ok := strings.Cut(string(b), "Cpus_allowed_list:")
		require.True(t, ok)
		line, _, _ := strings.Cut(rest, "\n")
		masks[strings.TrimSpace(line)] = true
	}
	return masks
}

// A pipe that stays open is read to what is in it.
func TestDrain(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = w.Write([]byte("in the pipe"))
	require.NoError(t, err)
	// The writer stays, as one that has escaped, and the deadline has passed.
	require.NoError(t, r.SetReadDeadline(time.Unix(1, 0)))
	var got []byte
	ended := false
	require.NoError(t, drain(r, func(b []byte) error {
		got = append(got, b...)
		ended = len(b) == 0
		return nil
	}))
	require.Equal(t, "in the pipe", string(got))
	require.True(t, ended)
}

// terminal opens a terminal: what is written to master is typed at slave.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func init() {
	// launcher runs a job of one that reads the terminal.
	acts["launcher"] = func([]string) int {
		r, err := Run(context.Background(), Options{Size: 1, Args: []string{procs.Program()}, Env: procs.Environ("cat"), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
		if err != nil {
			say(err)
			return 1
		}
		return r.ExitStatus()
	}
	// confined runs a job whose ranks end as the further arguments of act "exit" say, without the
	// system calls that the first one names.
	acts["confined"] = func(args []string) int {
		var err error
		for name := range strings.SplitSeq(args[0], ",") {
			err = errors.Join(err, refuse.Call(map[string]uint32{"waitid": unix.SYS_WAITID, "pidfd_open": unix.SYS_PIDFD_OPEN}[name]))
		}
		var r Result
		if err == nil {
			r, err = Run(context.Background(), Options{Size: len(args) - 1, Args: append([]string{procs.Program()}, args[1:]...), Env: procs.Environ("exit"), Stdout: os.Stdout, Stderr: os.Stderr, OnFailure: Continue})
		}
		say(r.Status, err)
		return 0
	}
	// shell runs a launcher in the background of its terminal, and brings it into the foreground once
	// the launcher waits for that: it catches SIGCONT then.
	acts["shell"] = func([]string) int {
		signal.Ignore(syscall.SIGTTOU)
		cmd := procs.Command(context.Background(), "launcher")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stdout
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			say(err)
			return 1
		}
		pid := cmd.Process.Pid
		ended := make(chan syscall.WaitStatus)
		go func() {
			for {
				var s syscall.WaitStatus
				if _, err := syscall.Wait4(pid, &s, syscall.WUNTRACED, nil); err != syscall.EINTR {
					ended <- s
					return
				}
			}
		}()
		for waits := false; !waits; {
			select {
			case s := <-ended:
				say("in the background: stopped", s.Stopped(), s.StopSignal())
				syscall.Kill(-pid, syscall.SIGKILL)
				return 1
			case <-time.After(time.Millisecond):
			}
			waits = catches(pid, syscall.SIGCONT)
		}
		if err := unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, pid); err != nil {
			say(err)
			return 1
		}
		syscall.Kill(-pid, syscall.SIGCONT)
		return (<-ended).ExitStatus()
	}
}

// catches says whether a process has a handler for a signal.
func catches(pid int, s syscall.Signal) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "SigCgt:")
	mask, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
	return err == nil && mask&(1<<(s-1)) != 0
}

// A terminal is read by Run and not by rank 0, which the system would stop for
// it: its process group is in the background.
func TestTerminal(t *testing.T) {
	master, slave := terminal(t)
	_, err := master.WriteString("typed\n" + endOfFile)
	require.NoError(t, err)

	var out bytes.Buffer
	o := options(t, 2, "cat")
	o.Stdin, o.Stdout = slave, &out
	ran(t, o)
	require.Equal(t, "typed\n", out.String())
}

// The status of ranks is known where the system refuses what waits for them without removing them.
func TestConfined(t *testing.T) {
	for _, calls := range []string{"waitid", "waitid,pidfd_open", "pidfd_open"} {
		out, err := procs.Command(procs.Within(t), "confined", calls, "0", "7", "-9").CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, "[0 7 137] <nil>\n", string(out), calls)
	}
}

// Ranks have an empty input where there is no /dev/null.
func TestNoNullDevice(t *testing.T) {
	need.Root(t)
	need.Program(t, "unshare")
	cmd := exec.CommandContext(procs.Within(t), "unshare", "--mount", "sh", "-c", `mount -t tmpfs none /dev && exec "$0" waitid 0 3`, procs.Program())
	cmd.Env = append(os.Environ(), procs.Variables("confined")...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "[0 3] <nil>\n", string(out))
}

const endOfFile = "\x04"

// A launcher in the background of its terminal does not read it, for which it would be stopped, until it
// is in the foreground.
func TestBackground(t *testing.T) {
	master, slave := terminal(t)
	_, err := master.WriteString("typed\n" + endOfFile)
	require.NoError(t, err)
	var out bytes.Buffer
	cmd := procs.Command(procs.Within(t), "shell")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Run(), "%s", &out)
	require.Contains(t, out.String(), "typed\n")
}

// sleepers are options of many ranks that say so when they are there, and sleep.
func sleepers(n int) Options {
	return Options{Size: n, Args: []string{"sh", "-c", "echo ready; exec sleep 1000"}}
}

// manyRanks is how many ranks tests of many start: more than a few batches.
const manyRanks = 4 * batchSize

// ends are the signals that end many ranks.
func ends() []syscall.Signal {
	if need.WantLong() {
		return []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}
	}
	return []syscall.Signal{syscall.SIGINT}
}

// Many ranks on few CPUs end by one signal, and take no thread of the launcher each.
func TestManyRanks(t *testing.T) {
	need.Full(t)
	for _, s := range ends() {
		before := threads(t)
		o := sleepers(manyRanks)
		o.Signals, o.KillGrace = Signals(), limit
		r := startRun(t, o)
		r.out.next(t, manyRanks)
		require.Less(t, threads(t)-before, manyRanks/2)
		require.NoError(t, syscall.Kill(os.Getpid(), s))
		r.ended(t, nil)
		require.Nil(t, r.result.Interrupted)
		require.Equal(t, 128+int(s), r.result.ExitStatus())
		for _, status := range r.result.Status {
			require.Contains(t, []int{128 + int(s), 128 + int(syscall.SIGTERM)}, status) // the others are ended
		}
	}
}

func threads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(list)
}

// A signal that means the end comes while many ranks are being started, which ignore it:
// those that are there are killed, and the others not started.
func TestInterruptedStart(t *testing.T) {
	for _, s := range ends() {
		o := options(t, manyRanks, "deaf")
		o.KillGrace = 50 * time.Millisecond
		j, err := newJob(o)
		require.NoError(t, err)
		require.NoError(t, j.serve())
		w := newWatch(j)
		orders := make(chan ranks)
		var threads sync.WaitGroup
		threads.Go(func() { j.fork(orders, w.started) })
		threads.Go(func() {
			defer close(orders)
			batches := 0
			for r := range w.orders {
				if batches++; batches == 2 {
					w.signals <- s // it comes while this batch is being started
				}
				orders <- r
			}
		})
		require.NoError(t, w.untilAllEnded(procs.Within(t)))
		close(w.orders)
		threads.Wait()
		w.close()
		require.NoError(t, j.server.Close())
		require.Equal(t, s, j.result.Interrupted)
		require.Equal(t, 128+int(s), j.result.ExitStatus())
		require.NotEqual(t, -1, j.result.Status[0])
		require.Equal(t, -1, j.result.Status[manyRanks-1])
	}
}

// The start ends at once where the end is known before, and nothing is started.
func TestEndedBeforeStart(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	none := slices.Repeat([]int{-1}, manyRanks)
	r, err := Run(canceled, sleepers(manyRanks))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, none, r.Status)

	j, err := newJob(sleepers(manyRanks))
	require.NoError(t, err)
	require.NoError(t, j.serve())
	w := newWatch(j)
	w.signals <- syscall.SIGTERM
	require.NoError(t, w.untilAllEnded(t.Context())) // no goroutine takes orders
	require.Equal(t, none, j.result.Status)
	require.Equal(t, syscall.SIGTERM, j.result.Interrupted)
	require.Equal(t, 143, j.result.ExitStatus())
	w.close()
	require.NoError(t, j.server.Close())
}

// A signal that is for all ranks and comes while they are being started reaches all.
func TestSignalDuringStart(t *testing.T) {
	j, err := newJob(Options{Size: 3 * batchSize, Args: []string{"sleep", "1000"}, OnFailure: Continue})
	require.NoError(t, err)
	require.NoError(t, j.serve())
	defer j.server.Close()
	w := newWatch(j)
	defer w.close()
	w.forward(syscall.SIGUSR2)
	require.Equal(t, make([]*child, 3*batchSize), w.children)
	var thread sync.WaitGroup
	thread.Go(func() { j.fork(w.orders, w.started) })
	require.NoError(t, w.untilAllEnded(procs.Within(t)))
	close(w.orders)
	thread.Wait()
	require.Equal(t, slices.Repeat([]int{128 + int(syscall.SIGUSR2)}, 3*batchSize), j.result.Status)
}
