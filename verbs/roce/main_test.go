package roce

import (
	"flag"
	"testing"

	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) {
	prepare()
	// Most parallel tests wait for clocks and for the kernel.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	verbstest.Main(m, acts)
}
