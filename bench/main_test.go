package main

import (
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
)

// envMain makes the test binary the program itself, so that its runs are real
// ones: it starts its ranks, which have the variable too.
const envMain = "SLUICE_BENCH_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
	}
	if os.Getenv(envCarried) != "" {
		tellCarriers()
		return
	}
	leak.Main(m)
}
