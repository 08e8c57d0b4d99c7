package ibv_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// deviceEnv names the device to test; unset: the first.
const deviceEnv = "SLUICE_IBV_TEST_DEVICE"

func device(t testing.TB) *verbs.Device {
	for _, p := range verbs.Providers() {
		if p.Name == "ibv" && p.Probe.Answer == verbs.No {
			t.Skip("no RDMA here: " + p.Probe.Reason)
		}
	}
	name := os.Getenv(deviceEnv)
	if name == "" {
		name = "ibv"
	}
	d, err := verbs.Find(name)
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) {
	d := device(t)
	s := verbstest.Suite{Device: d.Name()}
	if strings.HasPrefix(d.Name(), "rxe") {
		s.Deviations = softRoCE
	}
	verbstest.Run(t, s)
}

// softRoCE is what rdma_rxe of Linux 6.1 does in its own way.
var softRoCE = verbstest.Deviations{
	NoResponderEvents: true,
	NoLastWQE:         true,
	NoReadsAcrossRNR:  true,
	NoLengthStatus:    true,
	NoRetryInSQD:      true,
	LateERR:           true,
}
