package roce

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/xdp"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// needXDP skips the test if this process cannot open AF_XDP by itself.
func needXDP(t testing.TB) {
	t.Helper()
	need.Probe(t, "AF_XDP", xdp.Supported())
}

// The near end opens its interface by itself. The far one, and more of them at the
// same time, get seats from the helper, and have no privileges.
func TestXDPConformance(t *testing.T) {
	needXDP(t)
	for _, c := range []struct {
		name string
		mode string
		mtu  int
		v6   bool
		long bool
	}{
		{"generic", "generic", 1500, false, true},
		{"native, IPv6, several frames", "native", 9000, true, false},
	} {
		if c.long && !need.WantLong() || len(groupsOver(wireXDP)) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			two := hosts(t, c.mtu)
			if c.v6 {
				for _, h := range two {
					h.ip(t, "-4", "addr", "flush", "dev", "veth0")
				}
			}
			path, log := startHelper(t, two[1])
			go func() {
				for log.Scan() {
				}
			}()
			t.Setenv(envMode, c.mode)
			far := func(open func() error) error {
				return two[1].in(func() error {
					os.Setenv(xdp.EnvHelper, path)
					os.Setenv(envUser, strconv.Itoa(uidNobody))
					defer os.Unsetenv(xdp.EnvHelper)
					defer os.Unsetenv(envUser)
					return open()
				})
			}
			config := verbs.Config{}
			if need.WantLong() { // IPv6 reports no unreachable port of packets without a UDP checksum: the dead are silent
				config.PeerTimeout = 4 * time.Second
			}
			verbstest.Run(t, verbstest.Suite{Device: "xdp_veth0", Rounds: 1, Only: groupsOver(wireXDP), Near: two[0].in, Far: far,
				Config: config})
		})
	}
}
