package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	procs "github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	// claim claims the core of CPU 0 by names that begin with its argument, and says whether it could.
	acts["claim"] = func(args []string) int {
		claimed = args[0]
		var c claims
		free, err := c.claim(0)
		say(free, err)
		procs.Forever()
		return 0
	}
}

// ownClaims keeps a test apart from jobs that run on this host, and returns a CPU of each core.
func ownClaims(t *testing.T) (cpus []int) {
	was := claimed
	claimed = fmt.Sprintf("sluice-test-%d-%s-", os.Getpid(), t.Name())
	t.Cleanup(func() { claimed = was })
	all, err := Cores()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, cpu := range all {
		if core := CoreOf(cpu); !seen[core] {
			seen[core] = true
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

func twoOf(cpus []int) error {
	if len(cpus) < 2 {
		return errors.New("there is one")
	}
	return nil
}

// TestBindFree: ranks have cores that no other job has, and none where there are too few.
func TestBindFree(t *testing.T) {
	cpus := ownClaims(t)
	need.Probe(t, "two CPUs", twoOf(cpus))
	var notices []string
	made := func(size int, bind Bind, env ...string) *job {
		t.Helper()
		notices = nil
		o := Options{Size: size, Args: []string{"true"}, Bind: bind, Env: env, Notice: func(text string) { notices = append(notices, text) }}
		j, err := newJob(o)
		require.NoError(t, err)
		t.Cleanup(j.claims.release)
		return j
	}
	most := len(cpus)/2 + 1 // more than half of them
	first := made(most, Free)
	require.Equal(t, cpus[:most], first.cpus)
	require.Empty(t, notices)
	second := made(len(cpus), Free)
	require.Nil(t, second.cpus)
	require.Equal(t, []string{fmt.Sprintf("not bound to cores: %d ranks, and other jobs of sluice run have %d of %d cores", len(cpus), most, len(cpus))}, notices)
	require.Nil(t, made(len(cpus)/2, Free).cpus, "each may use two cores, or is alone")
	require.Empty(t, notices, "which needs no word")
	asked := made(len(cpus), Core)
	require.Equal(t, cpus, asked.cpus[:len(cpus)], "it was asked for")
	asked.claims.release()
	first.claims.release()
	all := made(len(cpus), Free)
	require.Equal(t, cpus, all.cpus)
	all.claims.release()

	require.Nil(t, made(2, Free, "GOMAXPROCS=1", "GOMAXPROCS=4").cpus)
	require.Equal(t, []string{"not bound to cores: GOMAXPROCS=4 asks for more than one of them for each rank"}, notices)
	more := Options{Size: 1, Args: []string{"true"}, Bind: Free, Env: []string{}, Notice: func(text string) { notices = append(notices, text) },
		More: []Program{{Size: 1, Args: []string{"true"}, Set: []string{"OMP_NUM_THREADS=2"}}}}
	notices = nil
	j, err := newJob(more)
	require.NoError(t, err)
	j.claims.release()
	require.Nil(t, j.cpus, "what -x sets for a program counts")
	require.Equal(t, []string{"not bound to cores: OMP_NUM_THREADS=2 asks for more than one of them for each rank"}, notices)
	many := made(runtime.NumCPU()+1, Free)
	require.Nil(t, many.cpus)
	require.Len(t, notices, 1)
	require.Contains(t, notices[0], fmt.Sprintf("%d ranks share %d CPUs", runtime.NumCPU()+1, runtime.NumCPU()))
	require.Empty(t, many.claims)
	made(runtime.NumCPU()+1, None)
	require.Len(t, notices, 1)
}

// TestClaimDies: a claim ends with the process that has it, however that ends.
func TestClaimDies(t *testing.T) {
	ownClaims(t)
	cmd := procs.Command(procs.Within(t), "claim", claimed)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	b := make([]byte, 100)
	n, err := out.Read(b)
	require.NoError(t, err)
	require.Equal(t, "true <nil>", strings.TrimSpace(string(b[:n])))
	var c claims
	defer c.release()
	free, err := c.claim(0)
	require.NoError(t, err)
	require.False(t, free)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	free, err = c.claim(0)
	require.NoError(t, err)
	require.True(t, free)
}

// TestFreeRanks: the ranks of a job run where it has claimed, and leave nothing claimed.
func TestFreeRanks(t *testing.T) {
	cpus := ownClaims(t)
	need.Probe(t, "two CPUs", twoOf(cpus))
	n := len(cpus)
	o := options(t, n, "cpus")
	o.Bind = Free
	o.Env = slices.DeleteFunc(o.Env, func(v string) bool {
		return strings.HasPrefix(v, "GOMAXPROCS=") || strings.HasPrefix(v, "OMP_NUM_THREADS=")
	})
	var out strings.Builder
	o.Stdout = &out
	for range 2 {
		out.Reset()
		ran(t, o)
		for rank := range n {
			require.Contains(t, out.String(), fmt.Sprintf("%d %d 1 1\n", rank, cpus[rank]))
		}
	}
}
