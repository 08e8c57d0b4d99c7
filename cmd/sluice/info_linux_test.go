package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
)

func init() { tests = append(tests, test{"info of ranks that differ", testInfoDiffers}) }

// Ranks with different settings: the table shows the result, and info does not fail.
func testInfoDiffers(t *testing.T, b bed) {
	for _, c := range []struct{ zero, one, want string }{
		{"shm,tcp", "tcp", `0 1    tcp       tcp_lo  shm: rank 1: not to be used by rank 1, which uses tcp only: set the same ` + channel.EnvTransport + `, or WithProviders, on all ranks`},
		{"shm", "tcp", `0 1    none              peer cannot be reached: no provider works: shm: rank 1: not to be used by rank 1, which uses tcp only: set the same ` + channel.EnvTransport},
	} {
		script := `case $` + boot.EnvRank + ` in 0) t=` + c.zero + `;; *) t=` + c.one + `;; esac; ` + channel.EnvTransport + `=$t exec "$0" info --job`
		e := succeed(t, b.command(t, "", "run", "-n", "2", "sh", "-c", script, b.sluice))
		require.Contains(t, e.stdout, "\n"+c.want)
	}
}
