package boot

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/netns"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() {
	// cut is a rank that enters a round when its standard input ends, and says what came of it.
	acts["cut"] = func([]string) int {
		hostSilence = briefly
		return withJob(func(ctx context.Context, j *Job) error {
			if _, err := io.ReadAll(os.Stdin); err != nil {
				return err
			}
			err := j.Barrier(ctx)
			fmt.Println("ended:", err)
			return nil
		})
	}
}

// TestSilentHost: a rank and the rendezvous, on two hosts, notice that the other host is gone while
// data is on its way to it.
func TestSilentHost(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	defer func(was time.Duration) { hostSilence = was }(hostSilence)
	hostSilence = briefly
	star, err := netns.NewStar(2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, star.Close()) })
	var ln net.Listener
	require.NoError(t, star.Hosts[0].In(func() (err error) {
		ln, err = net.Listen("tcp4", net.JoinHostPort(netns.Address(0).String(), "0"))
		return err
	}))
	w := serveWorld(t, ln, 2, maxStrangers)
	e := w.env
	e.Rank, e.LocalSize = 1, 0
	cmd := ranks.Command(ranks.Within(t), "cut")
	cmd.Env = append(WithoutLauncher(cmd.Env), e.Environ()...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, star.Hosts[1].In(cmd.Start))
	w.waitFor(t, "the rank", func() bool { return w.members[1].state == joined && w.unsent == 0 })
	require.NoError(t, star.Hosts[1].Vanish())
	w.mu.Lock()
	w.send(w.members[1].session, delivery{message: fail{reason: reasonDied}.Append(nil)})
	w.mu.Unlock()
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), "%s", &out)
	require.Contains(t, out.String(), "ended: boot: exchange: lost the rendezvous: ")
	require.Contains(t, out.String(), "connection timed out")
	w.waitFor(t, "its death", func() bool { return w.members[1].state == dead })
	require.ErrorContains(t, w.died, "connection timed out")
}
