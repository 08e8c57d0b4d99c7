package ibv_test

import (
	"testing"

	"github.com/sluice-hpc/sluice/verbs/verbstest"
)

func TestMain(m *testing.M) { verbstest.Main(m, nil) }
