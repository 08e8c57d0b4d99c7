//go:build !unix

package verbstest

import (
	"testing"
	"time"
)

// readable is only called with descriptors, which this platform does not have.
func readable(t *testing.T, _ int, _ time.Duration) bool {
	t.Helper()
	t.Fatal("no poll(2) on this platform")
	return false
}
