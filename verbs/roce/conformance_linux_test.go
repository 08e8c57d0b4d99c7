package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// loop is the name of the loopback device.
func loop(t testing.TB) string {
	t.Helper()
	need.Loopback(t)
	nics, err := nic.List()
	require.NoError(t, err)
	require.True(t, nics[0].Loop, "the loopback interface comes first")
	return "roce_" + nics[0].Name
}

// Wires that the conformance suite runs over.
const (
	wireUDP           = "UDP"
	wireXDP           = "XDP"
	wireFaultless     = "faultless"
	wireFaulty        = "faulty"
	wireForeign       = "foreign"
	wireForeignFaulty = "foreign and faulty"
)

// sampled lists the groups of the suite that run over each wire unless long tests are requested: each
// group over one wire at least; over lossy wires, and with real packets, those for which that matters.
// With -short they are those of quick.
var (
	sampled = map[string][]string{
		wireUDP:           {"Device", "Opcodes", "MessageLimit", "Inline", "Atomics", "Completion", "Order", "Allocs", "Concurrency", "Death"},
		wireXDP:           {"SGE", "Inline", "Completion", "Order", "Passive", "Concurrency", "Closing"},
		wireFaulty:        {"Inline", "Notify", "Passive", "LoadStore", "States", "Closing"},
		wireForeignFaulty: {"Atomics", "Completion", "Order", "RNR", "SRQ", "Violations", "Model"},
	}
	quick = map[string][]string{
		wireUDP:           {"Opcodes", "Atomics", "Completion", "Order", "Concurrency", "Closing"},
		wireForeignFaulty: {"RNR", "SRQ"},
	}
)

// groupsOver are the groups that run over a wire.
func groupsOver(wire string) []string {
	switch {
	case need.WantLong():
		return verbstest.Groups()
	case testing.Short():
		return quick[wire]
	}
	return sampled[wire]
}

// Every group of the suite is a sample over some wire.
func TestSamples(t *testing.T) {
	var all []string
	for _, groups := range sampled {
		all = append(all, groups...)
	}
	require.Subset(t, all, verbstest.Groups())
	require.Subset(t, verbstest.Groups(), all)
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
		if c.short != testing.Short() && !need.WantLong() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.cfg.Address != "" {
				need.Address(t, c.cfg.Address)
			}
			rounds := need.InLong(1, 2)
			verbstest.Run(t, verbstest.Suite{Device: loop(t), Config: c.cfg, Rounds: rounds, Only: groupsOver(wireUDP)})
		})
	}
}
