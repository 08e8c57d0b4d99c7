package channel

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func init() {
	acts["cut"] = meetAll
	actOptions["cut"] = []Option{WithPeerTimeout(time.Second)}
}

// TestRoCEBetweenNetworks: what ranks do, two in each of two networks. The part of CI that
// sets envRoCE runs all tests of processes so.
func TestRoCEBetweenNetworks(t *testing.T) {
	for _, s := range sites {
		t.Run(s.provider, func(t *testing.T) {
			run := s.open(t)
			for act, arg := range map[string]string{"meet": "10", "halo": "5", "collect": "10"} {
				t.Run(act, func(t *testing.T) {
					r, out := run(t, s.provider, 4, act, arg)
					require.Zero(t, r.ExitStatus(), out)
				})
			}
		})
	}
}

// TestRoCEPathFailure: whose peer is killed, or cannot be reached any more, is told so by
// the errors that it has over other providers.
func TestRoCEPathFailure(t *testing.T) {
	one, two := networks(t)
	env := []string{envProvider + "=roce"}
	const linkDown = "link down"
	for i, c := range []struct {
		name  string
		fault func(t *testing.T, victim *rank)
		both  bool // who goes on
	}{
		{"killed", func(t *testing.T, victim *rank) { require.NoError(t, victim.cmd.Process.Kill()) }, false},
		{linkDown, func(t *testing.T, _ *rank) { require.NoError(t, ip("-n", one[3], "link", "set", "veth0", "down")) }, true},
	} {
		if c.name == linkDown && os.Getenv(envRoCE) == "" {
			continue // takes as long as packets are sent again
		}
		t.Run(c.name, func(t *testing.T) {
			ranks := startRanks(t, fmt.Sprintf("198.18.0.1:%d", 20020+i), []place{{one, 0, env}, {two, 0, env}}, "cut", "5", "until the end")
			for i, r := range ranks {
				require.Eventually(t, func() bool { return strings.Contains(r.out.String(), "all have met\n") }, limit, time.Millisecond, "rank %d: %s", i, r.out)
			}
			c.fault(t, ranks[1])
			for i, r := range ranks {
				err := <-r.end
				if i == 1 && !c.both {
					require.Error(t, err)
					continue
				}
				require.Contains(t, r.out.String(), fmt.Sprintf("rank %d ended: ", i), everything(ranks))
				require.Regexp(t, fmt.Sprintf(`(to|from) rank %d, stream \d(, start \d+)?: peer (died|cannot be reached)`, 1-i), r.out.String())
			}
		})
	}
}
