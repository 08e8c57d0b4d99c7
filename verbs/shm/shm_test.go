package shm_test

import (
	"testing"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) { verbstest.Main(m) }

func TestConformance(t *testing.T) {
	verbstest.Run(t, verbstest.Suite{Device: "shm0", Config: verbs.Config{}})
}
