package nersc

import (
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
