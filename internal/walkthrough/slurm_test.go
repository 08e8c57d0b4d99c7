package walkthrough

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// slurm is a command that runs another in a Slurm cluster of three nodes.
const slurm = "../boot/testdata/slurm.sh"

// TestSlurmPage follows docs/slurm.md in a cluster.
func TestSlurmPage(t *testing.T) {
	need.Slurm(t)
	need.Full(t)
	script, err := filepath.Abs(slurm)
	require.NoError(t, err)
	out := follow(t, []string{script}, docs+"slurm.md")
	for rank := range 6 {
		line := fmt.Sprintf("rank %d of 6 has %d\n", rank, (rank+5)%6)
		require.Equal(t, 1, strings.Count(out, fmt.Sprintf("\n%d: %s", rank, line)), out) // of the batch job
		require.Equal(t, 4, strings.Count(out, line), out)
	}
}

// TestBatchFailure: the status of the job is that of the rank that failed, or says that srun has ended others.
func TestBatchFailure(t *testing.T) {
	need.Slurm(t)
	need.Full(t)
	batch, err := filepath.Abs(docs + "hello.sbatch")
	require.NoError(t, err)
	cmd := exec.CommandContext(ranks.Within(t), slurm, "sh", "-c", `cd "$1"
		for others in "sleep 600" "exit 3"; do
			printf '#!/bin/sh\n[ "$SLURM_PROCID" != 1 ] || exit 3\n%s\n' "$others" >hello && chmod +x hello
			status=0
			sbatch --wait -o out "$2" || status=$?
			echo "others $others: status $status"
		done`, "sh", t.TempDir(), batch)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "others sleep 600: status 143\n")
	require.Contains(t, string(out), "others exit 3: status 3\n")
}

// TestBatchLines: the page explains each line of the script.
func TestBatchLines(t *testing.T) {
	b, err := os.ReadFile(docs + "hello.sbatch")
	require.NoError(t, err)
	page, err := os.ReadFile(docs + "slurm.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "| line of")
	table, _, _ = strings.Cut(table, "\n\n")
	words := 0
	for line := range strings.Lines(string(b)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "#SBATCH ")
		for _, word := range strings.Fields(strings.TrimPrefix(line, "export ")) {
			word, _, _ = strings.Cut(word, "=\"")
			if word != "./hello" {
				require.Contains(t, table, "`"+word+"`")
				words++
			}
		}
	}
	require.Greater(t, words, 10)
}
