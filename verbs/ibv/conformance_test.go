package ibv_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

// deviceEnv names the device to test; unset: the first.
const deviceEnv = "SLUICE_IBV_TEST_DEVICE"

// verbsHeader is that of package libibverbs-dev.
const verbsHeader = "infiniband/verbs.h"

func device(t testing.TB) *verbs.Device {
	need.RDMA(t)
	name := os.Getenv(deviceEnv)
	if name == "" {
		name = "ibv"
	}
	d, err := verbs.Find(name)
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) { verbstest.Run(t, suite(t)) }

// TestUnprivileged: registering memory, and creating and closing the objects of a device,
// also work for a user with a small limit of locked memory.
func TestUnprivileged(t *testing.T) {
	s := suite(t)
	need.User(t)
	s.Only = []string{"Device", "Opcodes", "SGE", "Completion", "SRQ", "Closing", "Death"}
	verbstest.Run(t, s)
}

func suite(t *testing.T) verbstest.Suite {
	d := device(t)
	s := verbstest.Suite{Device: d.Name()}
	if strings.HasPrefix(d.Name(), "rxe") {
		s.Deviations = softRoCE
	}
	return s
}

// softRoCE is what rdma_rxe of Linux 6.1 does in its own way.
var softRoCE = verbstest.Deviations{
	NoResponderEvents: true,
	NoLastWQE:         true,
	NoReadsAcrossRNR:  true,
	NoLengthStatus:    true,
	NoMessageLimit:    true,
	NoRetryInSQD:      true,
	LateERR:           true,
}
