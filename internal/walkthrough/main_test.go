// Package walkthrough has tests that do what docs/containers.md, docs/kubernetes.md and docs/slurm.md say.
package walkthrough

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
)

// roleVariable says what this program is instead of tests.
const roleVariable = "SLUICE_TEST_WALKTHROUGH"

var roles = map[string]func() error{"container": contain, "docker": docker, "kubectl": kubectl}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(roleVariable)]
	if !ok {
		leak.Main(m)
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125) // as docker and podman
	}
}
