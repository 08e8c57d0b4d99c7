// Package walkthrough has tests that do what the pages on containers, Kubernetes and Slurm say.
package walkthrough

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
)

// roleVariable says what this program is instead of tests.
const roleVariable = "SLUICE_TEST_WALKTHROUGH"

var roles = map[string]func() error{"container": contain}

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
