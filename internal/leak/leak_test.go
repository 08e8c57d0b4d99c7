package leak

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain leaves something behind on request, so that TestMainExitCode can
// see what Main makes of it.
func TestMain(m *testing.M) {
	if os.Getenv("LEAK_TEST_LEAVE") == "goroutine" {
		// Not before Main has taken its snapshot: from inside a test.
		leave = func() { go func() { select {} }() }
		bound = 50 * time.Millisecond // what is left does not go
	}
	Main(m)
}

var leave = func() {}

func TestLeave(*testing.T) { leave() }

func TestMainExitCode(t *testing.T) {
	for _, c := range []struct {
		leave string
		code  int
		says  string
	}{
		{leave: "", code: 0},
		{leave: "goroutine", code: 1, says: "found unexpected goroutines"},
	} {
		t.Run("leave="+c.leave, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestLeave$")
			cmd.Env = append(os.Environ(), "LEAK_TEST_LEAVE="+c.leave)
			out, _ := cmd.CombinedOutput()
			require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, string(out), c.says)
		})
	}
}

func TestGoroutine(t *testing.T) {
	before := take()
	stop := make(chan struct{})
	go func() { <-stop }()
	require.ErrorContains(t, before.verify(0), "found unexpected goroutines")
	close(stop)
	require.NoError(t, before.verify(bound))
}

// What goes away within the bound is no leak.
func TestWaits(t *testing.T) {
	before := take()
	stop := make(chan struct{})
	go func() { <-stop }()
	time.AfterFunc(50*time.Millisecond, func() { close(stop) })
	require.NoError(t, before.verify(bound))
}

func TestCheckPasses(t *testing.T) {
	Check(t)
	done := make(chan struct{})
	go func() { close(done) }()
	<-done
}
