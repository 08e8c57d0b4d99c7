package boot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// The tests run real launchers, and the test binary as the program of the
// ranks.

// acts are what ranks do; the result is their exit status.
var acts = map[string]func([]string) int{
	// exchange prints its rank, once it has verified what all have given.
	"exchange": func([]string) int {
		return withJob(func(ctx context.Context, j *Job) error {
			for round, size := range []int{10, MaxData, 0, 5000} {
				got := ranks.Must(j.Exchange(ctx, payload(j.Rank(), round, size)))
				if len(got) != j.Size() {
					return fmt.Errorf("%d parts in a job of %d", len(got), j.Size())
				}
				for rank, data := range got {
					if !bytes.Equal(data, payload(rank, round, size)) {
						return fmt.Errorf("round %d: wrong data of rank %d", round, rank)
					}
				}
			}
			secrets := ranks.Must(j.Exchange(ctx, j.Secret()))
			for _, s := range secrets {
				if !bytes.Equal(s, j.Secret()) {
					return errors.New("another secret")
				}
			}
			ids := ranks.Must(j.Exchange(ctx, []byte(j.ID())))
			for _, id := range ids {
				if string(id) != j.ID() || len(id) == 0 {
					return fmt.Errorf("job %q here, %q there", j.ID(), id)
				}
			}
			fmt.Printf("rank %d of %d, %d of %d here, secret of %d\n", j.Rank(), j.Size(), j.LocalRank(), j.LocalSize(), len(j.Secret()))
			return nil
		})
	},
	// abort ends the job in the name of rank 1, and what the others do is to
	// wait for that.
	"abort": func([]string) int { return withJob(aborted) },
	// deaf is the same, but that rank 2 does not listen.
	"deaf": func([]string) int {
		return withJob(func(ctx context.Context, j *Job) error {
			if j.Rank() != 2 {
				return aborted(ctx, j)
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			<-ctx.Done()
			return errors.New("not killed")
		})
	},
	// beside is a rank of which another part, such as an MPI, uses PMIx too. It joins once: a launcher does not
	// wait for ranks that have left.
	"beside": func([]string) int {
		if err := pmix.Open(""); err != nil {
			fmt.Println("error:", err)
			return 3
		}
		other, err := pmix.Init()
		if err != nil {
			fmt.Println("error:", err)
			return 3
		}
		if status := withJob(func(ctx context.Context, j *Job) error { return j.Barrier(ctx) }); status != 0 {
			return status
		}
		if _, err := Join(context.Background()); !errors.Is(err, ErrJoined) {
			fmt.Println("error: joined twice:", err)
			return 3
		}
		place, err := other.Place()
		if err = cmp.Or(err, other.Put("other", "x"), other.Fence(), other.Finalize()); err != nil {
			fmt.Println("error:", err)
			return 3
		}
		fmt.Printf("rank %d of %d\n", place.Rank, place.Size)
		return 0
	},
	// finish leaves one after the other, rank 0 first.
	"finish": func([]string) int {
		return withJob(func(ctx context.Context, j *Job) error { return j.Barrier(ctx) })
	},
}

func aborted(ctx context.Context, j *Job) error {
	if err := j.Barrier(ctx); err != nil {
		return err
	}
	if j.Rank() == 1 {
		j.Abort(7, "enough")
		os.Exit(7)
	}
	select {
	case <-j.Done():
	case <-ctx.Done():
	}
	fmt.Printf("rank %d: %v\n", j.Rank(), j.Err())
	var a *AbortError
	if errors.As(j.Err(), &a) {
		os.Exit(a.Code)
	}
	return errors.New("not aborted")
}

func withJob(f func(context.Context, *Job) error) int {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	j, err := Join(ctx)
	if err == nil {
		if err = f(ctx, j); err == nil {
			err = j.Close()
		}
	}
	if err != nil {
		fmt.Println("error:", err)
		return 3
	}
	return 0
}

// outcome is how a launcher ended and what it and the ranks wrote.
type outcome struct {
	status int
	text   string
}

var ownLine = regexp.MustCompile(`(?m)^(rank|error).*$`)

// lines are what the ranks wrote, sorted.
func (o outcome) lines() []string {
	list := ownLine.FindAllString(o.text, -1)
	slices.Sort(list)
	return list
}

// start runs a launcher that is to start the test binary with what it does;
// the environment has nothing of a launcher around the tests.
func start(t *testing.T, do string, env []string, args ...string) outcome {
	t.Helper()
	return startWithin(t, 2*limit, do, env, args...)
}

func startWithin(t *testing.T, bound time.Duration, do string, env []string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(WithoutLauncher(ranks.Environ(do, ranks.Folder(t))), env...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err, string(out))
	}
	return outcome{cmd.ProcessState.ExitCode(), string(out)}
}

// wholeJob is what the ranks of a job on one host say of themselves.
func wholeJob(size, secret int) (list []string) {
	for rank := range size {
		list = append(list, fmt.Sprintf("rank %d of %d, %d of %d here, secret of %d", rank, size, rank, size, secret))
	}
	slices.Sort(list)
	return list
}

func TestHydra(t *testing.T) {
	need.Program(t, "mpiexec.hydra")
	me := ranks.Program()
	for _, c := range []struct {
		name  string
		flags []string
	}{{"PMI_FD", nil}, {"PMI_PORT", []string{"-pmi-port"}}} {
		t.Run(c.name, func(t *testing.T) {
			if c.flags != nil {
				need.Full(t)
			}
			mpiexec := func(do string, n int, env ...string) outcome {
				return start(t, do, env, append(append([]string{"mpiexec.hydra"}, c.flags...), "-n", strconv.Itoa(n), me)...)
			}
			sizes := []int{3, 1}
			switch {
			case need.WantLong():
				sizes = []int{5, 1, 2}
			case testing.Short(), c.flags != nil:
				sizes = sizes[:1]
			}
			for _, n := range sizes {
				o := mpiexec("exchange", n)
				require.Zero(t, o.status, o.text)
				require.Equal(t, wholeJob(n, 32), o.lines(), o.text)
			}
			if c.flags != nil && !need.WantLong() {
				return // it is told the same, by another connection
			}
			o := mpiexec("deaf", 3)
			require.Equal(t, 7, o.status, o.text)
			require.NotContains(t, o.text, "error")
			o = mpiexec("finish", 3)
			require.Zero(t, o.status, o.text)
			require.Empty(t, o.lines())
		})
	}
}

func TestOpenMPI(t *testing.T) {
	t.Parallel() // the launcher waits most of the time
	need.Program(t, "mpirun.openmpi")
	me := ranks.Program()
	mpirun := func(do string, n int, env ...string) outcome {
		return start(t, do, env, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", strconv.Itoa(n), me)
	}
	t.Run("PMIx", func(t *testing.T) {
		need.Probe(t, "libpmix.so.2", pmix.Open(""))
		sizes := need.InLong([]int{3}, []int{5, 1})
		for _, n := range sizes {
			o := mpirun("exchange", n)
			require.Zero(t, o.status, o.text)
			require.Equal(t, wholeJob(n, 32), o.lines(), o.text)
		}
		need.Full(t) // the launcher takes a second each time
		o := mpirun("deaf", 3)
		require.Equal(t, 7, o.status, o.text)
		require.NotContains(t, o.text, "error")

		// Beside another user of the library in the same process.
		o = mpirun("beside", 2)
		require.Zero(t, o.status, o.text)
		require.Equal(t, []string{"rank 0 of 2", "rank 1 of 2"}, o.lines(), o.text)

		// Where the user says where to meet.
		o = mpirun("exchange", 2, "SLUICE_SERVER="+ranks.Free(t))
		require.Zero(t, o.status, o.text)
		require.Equal(t, wholeJob(2, 32), o.lines(), o.text)
	})
	t.Run("without PMIx", func(t *testing.T) {
		need.Full(t)
		const without = "SLUICE_PMIX=none"
		secret := "SLUICE_SECRET=" + hexSecret
		o := mpirun("exchange", 2, without, "SLUICE_INSECURE=1")
		require.Zero(t, o.status, o.text)
		require.Equal(t, wholeJob(2, 0), o.lines(), o.text)

		o = mpirun("exchange", 2, without)
		require.Equal(t, 3, o.status, o.text)
		require.Contains(t, o.text, "error: boot: a launcher that speaks PMIx (PMIX_RANK is set): SLUICE_PMIX=none is set: install the package of libpmix.so.2 on all hosts")

		// One job after the other in the same session.
		o = start(t, "exchange", []string{without, secret}, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", "sh", "-c", me+" && "+me)
		require.Zero(t, o.status, o.text)
		want := append(wholeJob(2, 16), wholeJob(2, 16)...)
		slices.Sort(want)
		require.Equal(t, want, o.lines(), o.text)

		// Where the user says where to meet.
		o = mpirun("exchange", 2, without, secret, "SLUICE_SERVER="+ranks.Free(t))
		require.Zero(t, o.status, o.text)
		require.Equal(t, wholeJob(2, 16), o.lines(), o.text)
	})
}

// sluiceRun is the beginning of a command that does what "sluice run" does; the number of
// ranks and theirs follow.
func sluiceRun(me string) string { return "env " + ranks.Env + "=run " + me + " " }

// The launcher inside is the one that counts: a rank is of the job of the
// program that has started it.
func TestLauncherInside(t *testing.T) {
	t.Parallel() // the launchers wait most of the time
	need.Program(t, "mpiexec.hydra", "mpirun.openmpi")
	need.Full(t)
	me := ranks.Program()
	run := sluiceRun(me)
	need.Probe(t, "libpmix.so.2", pmix.Open(""))
	type inside struct {
		command string
		want    []string
	}
	// Each launcher is once inside of another, and once outside.
	list := []inside{
		{"mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 " + run + "2 " + me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32))},
		{run + "1 mpiexec.hydra -n 2 " + me, wholeJob(2, 32)},
		{"mpiexec.hydra -n 1 mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 " + me, wholeJob(2, 32)},
	}
	if need.WantLong() {
		list = append(list, inside{"mpiexec.hydra -n 2 " + run + "2 " + me, slices.Concat(wholeJob(2, 32), wholeJob(2, 32))},
			inside{run + "1 mpirun.openmpi --allow-run-as-root --oversubscribe -n 3 " + me, wholeJob(3, 32)})
	}
	for _, c := range list {
		o := start(t, "exchange", nil, strings.Fields(c.command)...)
		require.Zero(t, o.status, "%s: %s", c.command, o.text)
		slices.Sort(c.want)
		require.Equal(t, c.want, o.lines(), "%s: %s", c.command, o.text)
	}
}

// What launchers have said is not passed on, and what else is there is.
func TestWithoutLauncher(t *testing.T) {
	keep := []string{"PATH=/bin", "JOB_COMPLETION_INDEX=3", "SLURM_JOB_ID=1", "OMPI_MCA_btl=tcp", "PMI=1", "SLUICE_OTHER=1", "odd"}
	list := append([]string{"PMI_FD=3", "PMI_RANK=0", "PMI_SPAWNED=1", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", "PMIX_RANK=0", "PMIX_SERVER_URI41=x",
		"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_NODE_RANK=0", "SLURM_STEP_ID=0", "SLURM_STEPID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0"}, keep...)
	for _, v := range Variables() {
		list = append(list, v.Name+"=x")
	}
	require.Equal(t, keep, WithoutLauncher(list))
}
