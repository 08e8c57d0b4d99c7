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
	const linkDown = "link down"
	kill := func(t *testing.T, _ string, victim *rank) { require.NoError(t, victim.cmd.Process.Kill()) }
	for i, c := range []struct {
		name, provider string
		fault          func(t *testing.T, network string, victim *rank)
		both           bool // who goes on
	}{
		{"killed", "roce", kill, false},
		{"killed over AF_XDP", "xdp", kill, false},
		{linkDown, "roce", func(t *testing.T, network string, _ *rank) {
			require.NoError(t, ip("-n", network, "link", "set", "veth0", "down"))
		}, true},
	} {
		if c.name == linkDown && os.Getenv(envRoCE) == "" {
			continue // takes as long as packets are sent again
		}
		t.Run(c.name, func(t *testing.T) {
			where := overRoCE(t, c.provider)
			ranks := startRanks(t, fmt.Sprintf("198.18.0.1:%d", 20020+i), where[:], "cut", "5", "until the end")
			for i, r := range ranks {
				require.Eventually(t, func() bool { return strings.Contains(r.out.String(), "all have met\n") }, limit, time.Millisecond, "rank %d: %s", i, r.out)
				require.Contains(t, r.out.String(), fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, 1-i, c.provider))
			}
			c.fault(t, where[0].prefix[3], ranks[1])
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
