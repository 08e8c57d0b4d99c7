package impi

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

func init() { acts["cramped"] = act{do: cramped} }

// cramped has all ranks allocate blocks of as many bytes as the first argument says, as often as the
// second says, in a cgroup that the third one names.
func cramped(ctx context.Context, j *Job, args []string) error {
	var of [2]int
	for i := range of {
		var err error
		if of[i], err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	if err := os.WriteFile(args[2], []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	barrier := func() error { return j.World().Run(ctx, channel.Barrier()) }
	return ranks.Cramp(j.Alloc, barrier, of[0], of[1], verbs.ErrNoMemory)
}

// TestCramped: ranks that allocate at the same moment, or little by little, do not exceed the room of
// a cgroup together. Between networks they cannot look at it: ip-netns(8) mounts a /sys without cgroups.
func TestCramped(t *testing.T) {
	need.Full(t)
	procs := need.MemoryGroup(t, 320<<20)
	for _, p := range places {
		if _, wired := nettest.Wire(p.name); wired || p.hosts == 1 {
			continue
		}
		for _, size := range []int{150 << 20, 1 << 20} {
			t.Run(fmt.Sprint(p.name, size), func(t *testing.T) {
				p.seldom(t)
				r, out := launched(t, p, 3, "cramped", fmt.Sprint(size), fmt.Sprint(150<<20/size), procs)
				require.Zero(t, r.ExitStatus(), out)
				require.LessOrEqual(t, strings.Count(out, "blocks: <nil>"), 3*2, out)
				require.Regexp(t, `there is no room for \d+ MiB: \d+ MiB are available \(320 MiB in /sys/fs/cgroup/`, out)
			})
		}
	}
}
