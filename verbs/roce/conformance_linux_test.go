package roce

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// loop is the name of the loopback device.
func loop(t testing.TB) string {
	t.Helper()
	nics, err := nic.List()
	require.NoError(t, err)
	if len(nics) == 0 || !nics[0].Loop {
		t.Skip("no loopback interface is up")
	}
	return "roce_" + nics[0].Name
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name  string
		short bool // with -short this one, without it the other: each takes its time
		cfg   verbs.Config
	}{
		{"UDP", false, verbs.Config{}},
		{"UDP, IPv6", true, verbs.Config{Address: "::1"}},
	} {
		if c.short != testing.Short() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.Address != "" {
				l, err := net.Listen("tcp", net.JoinHostPort(c.cfg.Address, "0"))
				if err != nil {
					t.Skip("no such address here: ", err)
				}
				l.Close()
			}
			rounds := 2
			if testing.Short() {
				rounds = 1
			}
			verbstest.Run(t, verbstest.Suite{Device: loop(t), Config: c.cfg, Rounds: rounds})
		})
	}
}
