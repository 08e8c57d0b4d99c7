//go:build unix

package channel

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	acts["main"] = act{prepare: func(args []string) error {
		Main(func(_ context.Context, n *Node) error {
			switch args[0] {
			case "error":
				return errors.New("an error")
			case "must":
				Must(n.Alloc(-1))
			case "panic":
				panic("a panic")
			}
			return nil
		})
		return ranks.Status(7) // Main has returned
	}}
}

// Main returns after a success, and else ends the process as it says.
func TestMainFunction(t *testing.T) {
	for _, c := range []struct {
		what   string
		status int
		says   string
	}{
		{"nothing", 7, ""},
		{"error", 1, "rank 0 of 1: an error\n"},
		{"join", 1, "rank 1 of 2: channel: join: boot: SLUICE_SECRET"},
		{"must", 1, "rank 0 of 1: channel: allocate: invalid argument: -1 bytes: want more than 0\n"},
		{"panic", 2, "rank 0 of 1: panic\npanic: a panic"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			cmd := ranks.Command(within(t), "main", c.what)
			if c.what == "join" {
				cmd.Env = append(cmd.Environ(), "SLUICE_RANK=1", "SLUICE_SIZE=2", "SLUICE_SERVER=127.0.0.1:9")
			}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", out)
			require.Equal(t, c.status, exit.ExitCode(), "%s", out)
			if c.what == "panic" || c.what == "join" {
				require.True(t, strings.HasPrefix(string(out), c.says), "%s", out)
			} else {
				require.Equal(t, c.says, string(out))
			}
		})
	}
}
