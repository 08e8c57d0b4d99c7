package boot

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	// lacking joins and leaves a job in a process that may open only so many more descriptors.
	acts["lacking"] = func(args []string) int {
		more, err := strconv.Atoi(args[0])
		if err != nil {
			return 3
		}
		time.AfterFunc(time.Hour, func() {}) // the runtime opens what it needs for all timers
		next, err := unix.Dup(0)
		if err != nil {
			return 3
		}
		most := uint64(next + more)
		if errors.Join(unix.Close(next), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})) != nil {
			return 3
		}
		j, err := Join(context.Background())
		if err == nil {
			err = j.Close()
		}
		switch {
		case err == nil:
			fmt.Println("joined")
		case errors.Is(err, limits.ErrFiles):
			fmt.Println("lacks:", err)
		default:
			fmt.Println("error:", err)
		}
		return 0
	}
}

// TestJoinWithoutDescriptors: a rank that has too few descriptors to join says so at once, wherever it
// runs out of them.
func TestJoinWithoutDescriptors(t *testing.T) {
	for _, c := range []struct {
		name string
		env  func(t *testing.T) []string
	}{
		{"served", func(t *testing.T) []string {
			return newWorld(t, 1, maxStrangers).env.Environ()
		}},
		{"by hand", func(t *testing.T) []string { return []string{"SLUICE_SERVER=" + ranks.Free(t)} }},
		{"by hand, by name", func(t *testing.T) []string {
			return []string{"SLUICE_SERVER=" + strings.Replace(ranks.Free(t), "127.0.0.1", "localhost", 1)}
		}},
		{"IMPI", func(t *testing.T) []string {
			return []string{"SLUICE_IMPI_SERVER=" + serveIMPI(t, startup.Server{Clients: 1}).addr}
		}},
		{"IMPI by name", func(t *testing.T) []string {
			return []string{"SLUICE_IMPI_SERVER=" + strings.Replace(serveIMPI(t, startup.Server{Clients: 1}).addr, "127.0.0.1", "localhost", 1)}
		}},
	} {
		for more := range 8 {
			t.Run(fmt.Sprint(c.name, " ", more), func(t *testing.T) {
				t.Parallel()
				cmd := ranks.Command(ranks.Within(t), "lacking", strconv.Itoa(more))
				cmd.Env = append(cmd.Env, "SLUICE_RANK=0", "SLUICE_SIZE=1", "SLUICE_SECRET="+hexSecret)
				cmd.Env = append(cmd.Env, c.env(t)...)
				out, err := cmd.Output() // without what is logged
				require.NoError(t, err, string(out))
				require.Regexp(t, `^joined\n|^lacks: .*RLIMIT_NOFILE \(ulimit -n\) is \d`, string(out))
			})
		}
	}
}
