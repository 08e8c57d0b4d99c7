package roce

import (
	"testing"

	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) {
	prepare()
	verbstest.Main(m)
}
