//go:build linux

package shm_test

import (
	"testing"

	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestConformance(t *testing.T) {
	verbstest.Run(t, verbstest.Suite{Device: "shm0"})
}
