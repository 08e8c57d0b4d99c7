package boot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// openMPIRank is what mpirun tells a rank that does without PMIx.
func openMPIRank(rank, size, local int, dir string, more ...string) []string {
	return append([]string{
		fmt.Sprint("OMPI_COMM_WORLD_RANK=", rank), fmt.Sprint("OMPI_COMM_WORLD_SIZE=", size),
		fmt.Sprint("OMPI_COMM_WORLD_LOCAL_RANK=", rank%local), fmt.Sprint("OMPI_COMM_WORLD_LOCAL_SIZE=", local),
		"PMIX_RANK=0", "PMIX_NAMESPACE=845807617", "PMIX_SERVER_TMPDIR=" + dir, "SLUICE_SECRET=" + hexSecret,
		"SLUICE_PMIX=none",
	}, more...)
}

func TestOpenMPIRanks(t *testing.T) {
	ctx := ranks.Within(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	path := filepath.Join(dir, "sluice-openmpi-845807617")
	// Of an earlier program, which has not tidied up.
	require.NoError(t, os.WriteFile(path, []byte(ranks.Free(t)), 0o600))
	jobs := make([]*Job, 3)
	each(3, func(rank int) { jobs[rank], _ = joinFrom(ctx, variables(openMPIRank(rank, 3, 3, dir)...)) })
	for rank, j := range jobs {
		require.NotNil(t, j)
		require.Equal(t, []int{rank, 3, rank, 3}, []int{j.Rank(), j.Size(), j.LocalRank(), j.LocalSize()})
		require.Equal(t, "openmpi-845807617", j.ID())
	}
	require.FileExists(t, path)
	require.NoError(t, barrier(ctx, jobs))
	closeAll(t, jobs)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	j, err := joinFrom(ctx, variables(openMPIRank(0, 1, 1, "", "SLUICE_SECRET=")...))
	require.NoError(t, err)
	require.Equal(t, 1, j.Size())
	require.Equal(t, "openmpi-845807617", j.ID())
	require.NoError(t, j.Close())
}

func TestOpenMPIUnusable(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		env  []string
		says string
	}{
		{openMPIRank(0, 4, 2, dir), "boot: Open MPI's mpirun: 2 of its 4 ranks are on other hosts, and SLUICE_SERVER is not set: start it with -x SLUICE_SERVER=host:port, a free port on rank 0's host, and with -x SLUICE_SECRET"},
		{openMPIRank(0, 2, 2, ""), "boot: Open MPI's mpirun: neither SLUICE_SERVER nor PMIX_SERVER_TMPDIR is set"},
		{openMPIRank(0, 2, 2, dir, "SLUICE_SECRET="), "boot: a launcher that speaks PMIx (PMIX_RANK is set): SLUICE_PMIX=none is set: install the package of libpmix.so.2 on all hosts (libpmix2 of Debian and Ubuntu, pmix of Fedora and RHEL) or name the launcher's own in SLUICE_PMIX; or set SLUICE_SECRET on all ranks, and SLUICE_SERVER=host:port if they are on several hosts"},
		{openMPIRank(0, 2, 2, dir, "PMIX_NAMESPACE=../x"), `boot: PMIX_NAMESPACE="../x": it cannot be part of a file name`},
		{openMPIRank(2, 2, 2, dir), `boot: OMPI_COMM_WORLD_RANK="2": want 0 to 1`},
		{openMPIRank(0, 2, 2, dir, "OMPI_COMM_WORLD_SIZE="), "boot: OMPI_COMM_WORLD_SIZE: not set"},
		{openMPIRank(0, 2, 2, dir, "OMPI_COMM_WORLD_LOCAL_SIZE=3"), `boot: OMPI_COMM_WORLD_LOCAL_SIZE="3": want 1 to 2`},
		{openMPIRank(0, 2, 2, filepath.Join(dir, "none")), "no such file or directory"},
		{openMPIRank(0, 1, 1, dir, "OMPI_COMM_WORLD_RANK=", "PMIX_NAMESPACE=prte", "SLUICE_PMIX=none"), "boot: a launcher that speaks PMIx (PMIX_RANK is set): SLUICE_PMIX=none is set: install the package of libpmix.so.2 on all hosts (libpmix2 of Debian and Ubuntu, pmix of Fedora and RHEL) or name the launcher's own in SLUICE_PMIX; or use srun --mpi=pmi2, mpiexec.hydra, Open MPI's mpirun or sluice run, or set SLUICE_RANK, SLUICE_SIZE and SLUICE_SERVER"},
		{[]string{"PMI_RANK=0"}, "boot: a PMI launcher (PMI_RANK is set): neither PMI_FD nor PMI_PORT is set: use srun --mpi=pmi2"},
	} {
		_, err := joinFrom(ranks.Within(t), variables(c.env...))
		require.ErrorContains(t, err, c.says)
	}
	if !pmix.Built {
		_, err := joinFrom(ranks.Within(t), variables(openMPIRank(0, 2, 2, dir, "SLUICE_SECRET=", "SLUICE_PMIX=")...))
		require.ErrorContains(t, err, "PMIx needs both: build the program with CGO_ENABLED=1; or set SLUICE_SECRET on all ranks")
	}
}

// A file in the session directory counts only if no other user can have written it.
func TestAddressFile(t *testing.T) {
	need.Unix(t) // modes of files
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	path := filepath.Join(dir, "file")
	_, err := readAddressFile(path)
	require.EqualError(t, err, "rank 0 has not announced its address yet")
	require.NoError(t, writeAddressFile(path, "127.0.0.1:4711"))
	got, err := readAddressFile(path)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4711", got)

	for _, text := range []string{"", "x", "127.0.0.1:0", strings.Repeat("1", 1000) + ":1"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readAddressFile(path)
		require.ErrorContains(t, err, "is not an address")
	}
	require.NoError(t, os.Chmod(path, 0o620))
	_, err = readAddressFile(path)
	require.ErrorContains(t, err, "mode 0620, want 0600")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = readAddressFile(path)
	require.ErrorContains(t, err, "not a regular file")
	require.Error(t, writeAddressFile(path, "127.0.0.1:4711"))

	require.NoError(t, os.Chmod(dir, 0o770))
	_, err = readAddressFile(path)
	require.ErrorContains(t, err, "mode 0770: other users can write to it")
	require.ErrorContains(t, writeAddressFile(path, "127.0.0.1:4711"), "other users can write to it")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.Symlink(dir, link))
	_, err = readAddressFile(filepath.Join(link, "file"))
	require.ErrorContains(t, err, "not a directory")

	// A rank that waits for the file waits no longer than its context allows.
	ctx, cancel := context.WithTimeout(t.Context(), limit/600)
	defer cancel()
	empty := t.TempDir()
	require.NoError(t, os.Chmod(empty, 0o700))
	_, err = joinFrom(ctx, variables(openMPIRank(1, 2, 2, empty)...))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "rank 1 of 2: context deadline exceeded: rank 0 has not announced its address yet")
}
