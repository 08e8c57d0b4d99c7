package channel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

const testSecret = "000102030405060708090a0b0c0d0e0f"

// told makes the environment say what is given and nothing else of a launcher.
func told(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, v := range append(boot.Variables(), boot.ForeignVariables()...) {
		t.Setenv(v.Name, variables[v.Name])
	}
}

// joinFails requires that Join fails with an error of the node, and returns it.
func joinFails(ctx context.Context, t *testing.T) error {
	t.Helper()
	n, err := Join(ctx)
	require.Nil(t, n)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "join", e.Op)
	return err
}

// serveJob serves a job of a size, with testSecret, and returns its address.
func serveJob(t *testing.T, size int) string {
	t.Helper()
	ln := ranks.Listen(t)
	secret, err := hex.DecodeString(testSecret)
	require.NoError(t, err)
	s, err := boot.Serve(context.Background(), ln, boot.ServerOptions{Size: size, Secret: secret})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s.Addr().String()
}

// TestJoinUnusableLauncher: the error names the launcher, what it lacks and what to
// do.
func TestJoinUnusableLauncher(t *testing.T) {
	for _, c := range []struct {
		variables map[string]string
		says      []string
	}{
		{map[string]string{"PMIX_RANK": "0", "PMIX_NAMESPACE": "x", "SLUICE_PMIX": "none"}, []string{"a launcher that speaks PMIx (PMIX_RANK is set): SLUICE_PMIX=none", "use srun --mpi=pmi2, mpiexec.hydra, Open MPI's mpirun or sluice run, or set SLUICE_RANK"}},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "2"}, []string{"PMI", "or set SLUICE_RANK"}},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLUICE_PMIX": "none", "PMIX_NAMESPACE": "x", "PMIX_SERVER_TMPDIR": "/tmp", "SLUICE_SECRET": testSecret},
			[]string{"Open MPI's mpirun: 2 of its 4 ranks are on other hosts, and SLUICE_SERVER is not set", "-x SLUICE_SERVER=host:port"}},
	} {
		told(t, c.variables)
		err := joinFails(within(t), t)
		var launcher *boot.LauncherError
		require.ErrorAs(t, err, &launcher)
		for _, says := range c.says {
			require.ErrorContains(t, err, says)
		}
	}
}

// TestJoinBadEnvironment: the error names the variable.
func TestJoinBadEnvironment(t *testing.T) {
	for says, variables := range map[string]map[string]string{
		"SLUICE_SECRET: not set: set SLUICE_SECRET or SLUICE_SECRET_FILE on all ranks, or SLUICE_INSECURE=1 to run without a secret": {"SLUICE_RANK": "0", "SLUICE_SIZE": "2", "SLUICE_SERVER": "127.0.0.1:1"},
		"SLUICE_SERVER: not set":                                    {"SLUICE_RANK": "0", "SLUICE_SIZE": "2", "SLUICE_SECRET": testSecret},
		`SLUICE_RANK="2": must be below SLUICE_SIZE=2: want 0 to 1`: {"SLUICE_RANK": "2", "SLUICE_SIZE": "2", "SLUICE_SECRET": testSecret, "SLUICE_SERVER": "127.0.0.1:1"},
		"SLUICE_SIZE: not set":                                      {"JOB_COMPLETION_INDEX": "0"},
	} {
		told(t, variables)
		err := joinFails(within(t), t)
		var e *boot.EnvError
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, err, says)
	}
}

// TestJoinWrongSecret: a rank of another job is told so, and does no harm.
func TestJoinWrongSecret(t *testing.T) {
	server := serveJob(t, 2)
	told(t, map[string]string{"SLUICE_RANK": "0", "SLUICE_SIZE": "2", "SLUICE_SERVER": server, "SLUICE_LAUNCHER": "run", "SLUICE_SECRET": "ff" + testSecret})
	err := joinFails(within(t), t)
	require.ErrorIs(t, err, proof.ErrRefused)
	require.ErrorContains(t, err, "rank 0 of 2: at "+server)
	told(t, map[string]string{"SLUICE_RANK": "0", "SLUICE_SIZE": "2", "SLUICE_SERVER": server, "SLUICE_LAUNCHER": "run", "SLUICE_INSECURE": "1"})
	require.ErrorIs(t, joinFails(within(t), t), proof.ErrInsecure)
	joinAs(t, server, 2)
}

// asRank is the environment of a rank of a job that runs at a server.
func asRank(t *testing.T, server string, rank, size int) boot.Environment {
	secret, err := hex.DecodeString(testSecret)
	require.NoError(t, err)
	return boot.Environment{Rank: rank, Size: size, Server: server, Secret: secret, Launched: true}
}

// joinAs has all ranks of a job join at a rendezvous.
func joinAs(t *testing.T, server string, size int) {
	t.Helper()
	nodes, errs := make([]*Node, size), make([]error, size)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			var job *boot.Job
			if job, errs[i] = asRank(t, server, i, size).Join(within(t)); errs[i] == nil {
				nodes[i], errs[i] = joinJob(within(t), job)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	closeAll(t, nodes)
}

// TestJoinTwice: two processes of one number are named at both, and at the others; once all have joined, a
// second one is refused, and the job goes on.
func TestJoinTwice(t *testing.T) {
	server := serveJob(t, 2)
	variables := map[string]string{"SLUICE_RANK": "1", "SLUICE_SIZE": "2", "SLUICE_SERVER": server, "SLUICE_LAUNCHER": "run", "SLUICE_SECRET": testSecret}
	told(t, variables)
	first, err := asRank(t, server, 1, 2).Join(within(t))
	require.NoError(t, err)
	check := func(err error) {
		requireError(t, err, ErrRefused, 1)
		require.ErrorContains(t, err, ": two processes have this number: ")
	}
	check(joinFails(within(t), t))
	_, err = joinJob(within(t), first)
	require.ErrorIs(t, err, ErrRefused)
	variables["SLUICE_RANK"] = "0"
	told(t, variables)
	check(joinFails(within(t), t))

	variables["SLUICE_RANK"], variables["SLUICE_SERVER"] = "1", serveJob(t, 2)
	told(t, variables)
	var nodes [2]*Node
	ranks.Each(t, 2, func(i int) error {
		job, err := asRank(t, variables["SLUICE_SERVER"], i, 2).Join(within(t))
		if err == nil {
			nodes[i], err = joinJob(within(t), job)
		}
		return err
	})
	require.Regexp(t, `rank 1 of 2: at .*: the rendezvous refused rank 1: rank 1 is here \(".+:\d+"\)`, joinFails(within(t), t).Error())
	closeAll(t, nodes[:])
}

// TestJoinAgain: a process is one rank of its job until it closes its node, under any launcher.
func TestJoinAgain(t *testing.T) {
	for range 2 {
		told(t, map[string]string{"SLUICE_RANK": "0", "SLUICE_SIZE": "1", "SLUICE_SERVER": serveJob(t, 1), "SLUICE_LAUNCHER": "run", "SLUICE_SECRET": testSecret})
		n, err := Join(within(t))
		require.NoError(t, err)
		require.ErrorIs(t, joinFails(within(t), t), boot.ErrJoined)
		require.NoError(t, n.Close())
	}
	told(t, nil)
	n, err := Join(within(t))
	require.NoError(t, err)
	other, err := Join(within(t))
	require.NoError(t, err, "without a launcher each is a job of its own")
	closeAll(t, []*Node{n, other})
}

// waitsLonger tries something with longer and longer deadlines, until that is long enough for it
// to have come as far as it must.
func waitsLonger(t *testing.T, try func(ctx context.Context) bool) {
	t.Helper()
	for d := 50 * time.Millisecond; ; d *= 2 {
		require.Less(t, d, limit)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		done := try(ctx)
		cancel()
		if done {
			return
		}
	}
}

// TestJoinMissingRanks: a rank that gives up waiting says which ranks have not come.
func TestJoinMissingRanks(t *testing.T) {
	waitsLonger(t, func(ctx context.Context) bool {
		server := serveJob(t, 5)
		told(t, map[string]string{"SLUICE_RANK": "1", "SLUICE_SIZE": "5", "SLUICE_SERVER": server, "SLUICE_LAUNCHER": "run", "SLUICE_SECRET": testSecret})
		err := joinFails(ctx, t)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return strings.Contains(err.Error(), "ranks 0, 2-4 have not joined")
	})
}

// TestJoinAborted: a job may be over before all have come.
func TestJoinAborted(t *testing.T) {
	server := serveJob(t, 3)
	other, err := asRank(t, server, 1, 3).Join(within(t))
	require.NoError(t, err)
	mine, err := asRank(t, server, 0, 3).Join(within(t))
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := joinJob(within(t), mine)
		failed <- err
	}()
	other.Abort(3, "enough")
	err = <-failed
	require.ErrorIs(t, err, ErrAborted)
	require.ErrorContains(t, err, "the job was aborted by rank 1 with code 3: enough")
	require.NoError(t, other.Close())
}

// TestJoinWithoutRendezvous: the error says where it should have been.
func TestJoinWithoutRendezvous(t *testing.T) {
	server := ranks.Refusing(t)
	told(t, map[string]string{"SLUICE_RANK": "1", "SLUICE_SIZE": "2", "SLUICE_SERVER": server, "SLUICE_SECRET": testSecret})
	waitsLonger(t, func(ctx context.Context) bool {
		err := joinFails(ctx, t)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return strings.Contains(err.Error(), fmt.Sprintf("rank 1 of 2: context deadline exceeded: at %v", server))
	})
}
