//go:build !linux

package nettest

import (
	"testing"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// Main is [leak.Main].
func Main(m *testing.M) { leak.Main(m) }

// Between skips the test: network namespaces are Linux's.
func Between(t *testing.T, _ string) Runner {
	need.Networks(t)
	return nil
}
