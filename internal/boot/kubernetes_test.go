package boot

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestCompletionIndex(t *testing.T) {
	ctx := ranks.Within(t)
	const size = 3
	env := []string{"SLUICE_SIZE=3", "SLUICE_SERVER=" + ranks.Free(t), "SLUICE_SECRET=" + hexSecret}
	jobs, errs := make([]*Job, size), make([]error, size)
	each(size, func(rank int) {
		jobs[rank], errs[rank] = joinFrom(ctx, variables(append(env[:len(env):len(env)], fmt.Sprint("JOB_COMPLETION_INDEX=", rank))...))
	})
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)

	cases := []struct{ env, says string }{
		{"JOB_COMPLETION_INDEX=3", `boot: JOB_COMPLETION_INDEX="3": must be below SLUICE_SIZE=3: want 0 to 2`},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SIZE=", "boot: SLUICE_SIZE: not set, although JOB_COMPLETION_INDEX is: set it to make the pods of the indexed Job one job, or set SLUICE_RANK=0 and SLUICE_SIZE=1 to make each pod a job of its own"},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SERVER=", "boot: SLUICE_SERVER: not set, although JOB_COMPLETION_INDEX is"},
		{"JOB_COMPLETION_INDEX=0 SLUICE_SECRET=", "boot: SLUICE_SECRET: not set: set SLUICE_SECRET or SLUICE_SECRET_FILE"},
		{"SLUICE_SIZE=2", "boot: SLUICE_RANK: not set, although other SLUICE_ variables are: set SLUICE_RANK, SLUICE_SIZE and SLUICE_SERVER for every rank, or none of them"},
	}
	wrong := make([]error, len(cases))
	each(len(cases), func(i int) { // each tells the rendezvous, which is gone
		_, wrong[i] = joinFrom(ctx, variables(append(env[:len(env):len(env)], strings.Fields(cases[i].env)...)...))
	})
	for i, c := range cases {
		require.ErrorContains(t, wrong[i], c.says)
	}
}
