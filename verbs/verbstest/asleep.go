package verbstest

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Asleep waits until n goroutines that have a function of this name among their callers
// block. A test that wakes them knows then that they were asleep.
func Asleep(t testing.TB, function string, n int) {
	t.Helper()
	all := make([]byte, 1<<20)
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		blocked := 0
		for g := range bytes.SplitSeq(all[:runtime.Stack(all, true)], []byte("\n\n")) {
			head, stack, _ := strings.Cut(string(g), "\n")
			if strings.Contains(stack, function+"(") && !strings.Contains(head, "[run") {
				blocked++
			}
		}
		if blocked >= n {
			return
		}
		if time.Since(start) > bound {
			t.Fatalf("%d of %d goroutines of %s are asleep:\n%s", blocked, n, function, all)
		}
	}
}
