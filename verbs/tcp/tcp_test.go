package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) {
	verbstest.Main(m, acts)
}

var secret = []byte("the secret of this test")

// loop is the name of the loopback device.
func loop(t testing.TB) string {
	t.Helper()
	need.Loopback(t)
	nics, err := nic.List()
	require.NoError(t, err)
	require.True(t, nics[0].Loop, "the loopback interface comes first")
	return providerName + "_" + nics[0].Name
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		long bool // the others have the same of everything, if not together
		cfg  verbs.Config
	}{
		{"raw", true, verbs.Config{Insecure: true}},
		{"raw IPv6, secret", false, verbs.Config{Secret: secret, Job: "conformance", Address: "::1"}},
		{"portable", true, verbs.Config{Secret: secret, Portable: true}},
		{"portable IPv6", false, verbs.Config{Insecure: true, Portable: true, Address: "::1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long {
				need.Long(t)
			}
			if c.cfg.Address != "" {
				need.Address(t, c.cfg.Address)
			}
			s := verbstest.Suite{Device: loop(t), Config: c.cfg}
			switch {
			case need.WantLong():
			case testing.Short() && c.cfg.Portable:
				s.Only = []string{"Closing", "Model"}
			case testing.Short():
				s.Only = []string{"Opcodes", "Allocs", "Notify", "Completion", "Order", "RNR", "Concurrency", "Closing", "Model", "Death"}
			case c.cfg.Portable: // what may differ by the driver
				s.Only = []string{"Opcodes", "Allocs", "States", "Concurrency", "Closing", "Model", "Death"}
			}
			verbstest.Run(t, s)
		})
	}
}
