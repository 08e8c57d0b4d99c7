package channel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func init() {
	acts["cut"] = act{do: meetAll, options: []Option{WithPeerTimeout(time.Second)}}
}

// TestRoCEBetweenNetworks: what ranks do, two in each of two networks. Where
// [nettest.Env] is set all tests of processes run so.
func TestRoCEBetweenNetworks(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	for _, wire := range []string{"roce", "xdp"} {
		t.Run(wire, func(t *testing.T) {
			run := nettest.Between(t, wire)
			for act, arg := range map[string]string{"meet": "10", "halo": "4", "collect": "10"} {
				t.Run(act, func(t *testing.T) {
					if act != "halo" {
						need.Long(t) // TestRoCEPathFailure begins with meet; TestCollectivesProcesses collects over roce
					}
					r, out := run(t, 4, nil, act, arg)
					require.Zero(t, r.ExitStatus(), out)
				})
			}
		})
	}
}

// TestRoCEPathFailure: whose peer is killed, or cannot be reached any more, is told so by
// the errors that it has over other providers.
func TestRoCEPathFailure(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Networks(t)
	need.Full(t)
	kill := func(t *testing.T, _ string, victim *nettest.Rank) { require.NoError(t, victim.Cmd.Process.Kill()) }
	linkDown := func(t *testing.T, network string, _ *nettest.Rank) {
		require.NoError(t, nettest.IP("-n", network, "link", "set", "veth0", "down"))
	}
	for i, c := range []struct {
		name, provider string
		fault          func(t *testing.T, network string, victim *nettest.Rank)
		both           bool // both go on, or only one
	}{
		{"killed", "roce", kill, false},
		{"killed over AF_XDP", "xdp", kill, false},
		{"link down", "roce", linkDown, true},
		{"link down over AF_XDP", "xdp", linkDown, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.both {
				need.Long(t) // as long as packets are sent again
			}
			where := nettest.Places(t, c.provider)
			ranks := startRanks(t, fmt.Sprintf("198.18.0.1:%d", 20020+i), where[:], "cut", "5", "until the end")
			for i, r := range ranks {
				require.Eventually(t, func() bool { return strings.Contains(r.Out.String(), "all have met\n") }, limit, time.Millisecond, "rank %d: %s", i, r.Out)
				require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d reaches %d through %s, which is up\n", i, 1-i, c.provider))
			}
			c.fault(t, where[0].Prefix[3], ranks[1])
			for i, r := range ranks {
				err := <-r.End
				if i == 1 && !c.both {
					require.Error(t, err)
					continue
				}
				require.Contains(t, r.Out.String(), fmt.Sprintf("rank %d ended: ", i), nettest.Output(ranks))
				require.Regexp(t, fmt.Sprintf(`(to|from) rank %d, stream \d(, start \d+)?: peer (died|cannot be reached)`, 1-i), r.Out.String())
			}
		})
	}
}
