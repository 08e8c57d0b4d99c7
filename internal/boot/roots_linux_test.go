package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// roots are the root directories with launchers of other releases that bench/peers/root.sh has made.
func roots() ([]string, error) {
	cache := os.Getenv("SLUICE_PEERS_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(dir, "sluice-peers")
	}
	complete, err := filepath.Glob(filepath.Join(cache, "*", ".complete"))
	var list []string
	for _, c := range complete {
		if dir := filepath.Dir(c); err == nil {
			if _, e := os.Stat(filepath.Join(dir, "usr/bin/prterun")); e == nil {
				list = append(list, dir)
			}
		}
	}
	if len(list) == 0 {
		err = errors.Join(err, fmt.Errorf("none in %s", cache))
	}
	return list, err
}

// asRoot lets launchers run as root.
var asRoot = []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"}

// rootJob is a job of four ranks that a launcher of a root directory starts, so many of them on each host.
type rootJob struct {
	name    string
	command []string
	local   int
}

// TestRoots: jobs start without a variable under the mpirun and prterun of newer releases, on one host and on two.
func TestRoots(t *testing.T) {
	list, err := roots()
	need.Networks(t)
	need.Probe(t, "libpmix.so.2", pmix.Open("")) // not without cgo
	need.Probe(t, "launchers of other releases, made by bench/peers/root.sh", err)
	for _, root := range list {
		for _, j := range []rootJob{
			{"mpirun", []string{"mpirun.openmpi", "--oversubscribe"}, 4},
			{"prterun", []string{"prterun", "--map-by", ":OVERSUBSCRIBE"}, 4},
			{"mpirun, two hosts", []string{"mpirun.openmpi", "--prtemca", "plm_ssh_agent", "/tmp/rsh", "--host", "nodeA:2,nodeB:2"}, 2},
			{"prterun, two hosts", []string{"prterun", "--prtemca", "plm_ssh_agent", "/tmp/rsh", "--host", "nodeA:2,nodeB:2"}, 2},
		} {
			t.Run(filepath.Base(root)+", "+j.name, func(t *testing.T) {
				t.Parallel()
				j.play(t, root)
			})
		}
	}
}

// TestHostsOpenMPI: a job starts without a variable under this machine's own mpirun on two hosts.
func TestHostsOpenMPI(t *testing.T) {
	need.Program(t, "mpirun.openmpi")
	need.Networks(t)
	need.Probe(t, "libpmix.so.2", pmix.Open(""))
	j := rootJob{command: []string{"mpirun.openmpi", "--mca", "plm_rsh_agent", "/tmp/rsh", "--host", "nodeA:2,nodeB:2"}, local: 2}
	j.play(t, "/")
}

func (j *rootJob) play(t *testing.T, root string) {
	o := startWithin(t, limit, "exchange", asRoot, slices.Concat([]string{"testdata/root.sh", root, ranks.Program()}, j.command, []string{"-n", "4", "/tmp/program"})...)
	require.Zero(t, o.status, o.text)
	lines := slices.DeleteFunc(strings.Split(o.text, "\n"), func(line string) bool { // without what the launcher warns of
		return !strings.HasPrefix(line, "rank ")
	})
	slices.Sort(lines)
	require.Len(t, lines, 4, o.text)
	places := map[int]int{}
	for i, line := range lines {
		var rank, place int
		_, err := fmt.Sscanf(line, fmt.Sprintf("rank %%d of 4, %%d of %d here, secret of 32", j.local), &rank, &place)
		require.NoError(t, err, o.text)
		require.Equal(t, i, rank)
		places[place]++
	}
	for place := range j.local { // in any order: Open MPI 6 does not number them as the ranks
		require.Equal(t, 4/j.local, places[place], o.text)
	}
}
