package nettest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/verbs"
)

// Main is [leak.Main], and what the TestMain of a package calls whose tests run between
// networks. It makes the hosts of [Providers] first, if tests are to run there; it does not
// return.
func Main(m *testing.M) {
	if addr, path, ok := strings.Cut(os.Getenv(envHelper), ","); ok {
		check(serveHelper(addr, path))
		os.Exit(0)
	}
	if os.Getenv(Env) != "" {
		check(makeHosts())
		for _, w := range wires {
			verbs.Register(apart{verbs.Lookup(w)})
		}
	}
	leak.Main(m)
}

func check(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "nettest: %v\n", err)
		os.Exit(1)
	}
}
