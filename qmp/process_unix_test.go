//go:build unix

package qmp

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Call)
	nettest.Main(m)
}

var acts = map[string]func([]string) error{
	"torus": func([]string) error { return torus(nil) },
	"abort": func([]string) error {
		return torus(func() error {
			if NodeNumber() == 1 {
				AbortString(5, "enough")
			}
			select {} // until the job ends it
		})
	},
	"exit": func([]string) error {
		return torus(func() error {
			SetErrorFunction(PrintAndExit)
			if NodeNumber() == 1 {
				return LayoutGrid(nil)
			}
			select {}
		})
	},
}

// torus is a program: Init, what the command line says, an exchange, Finalize.
func torus(then func() error) error {
	if _, err := Init(&os.Args, ThreadFunneled); err != nil {
		return err
	}
	if !IsInitialized() || len(os.Args) != 2 || os.Args[1] != "rest" {
		return fmt.Errorf("arguments %q", os.Args)
	}
	b, err := newBlock(DefaultComm(), []int{2, 2})
	for n := 0; n < 20 && err == nil; n++ {
		err = b.round(n)
	}
	if err == nil && then != nil {
		err = then()
	}
	if _, e := Printf("node %d of %d: %v", NodeNumber(), NumberOfNodes(), AllocatedCoordinates()); e != nil {
		return e
	}
	return errors.Join(err, Finalize())
}

// run runs an act as a job of four.
func run(t *testing.T, provider, act string, args ...string) (launch.Result, string) {
	t.Helper()
	return nettest.On(t, provider)(t, 4, []string{channel.EnvTransport + "=" + provider}, act, args...)
}

// TestProcesses: a program that a launcher has started, with options of ours.
func TestProcesses(t *testing.T) {
	somewhere(t, func(t *testing.T, provider string) {
		r, out := run(t, provider, "torus", "-qmp-geom", "2", "2", "rest")
		require.Zero(t, r.ExitStatus(), out)
		host, err := os.Hostname()
		require.NoError(t, err)
		for i := range 4 {
			require.Contains(t, out, fmt.Sprintf("QMP m%d,n4@%s: node %d of 4: [%d %d]\n", i, host, i, i%2, i/2))
		}
		r, out = run(t, provider, "torus", "-qmp-geom", "2", "3", "rest")
		require.NotZero(t, r.ExitStatus())
		require.Contains(t, out, "a grid of [2 3] does not have 4 nodes")
	})
}

// TestAbort: all processes end with the code.
func TestAbort(t *testing.T) {
	r, out := run(t, "shm", "abort", "-qmp-geom", "2", "2", "rest")
	require.Equal(t, 5, r.ExitStatus(), out)
	require.Equal(t, 1, r.Abort.Rank)
	require.Equal(t, "enough", r.Abort.Why)
	require.Contains(t, out, "QMP m1,n4@")
	require.Contains(t, out, "error: enough (status 5)\n")
	for _, s := range r.Status {
		require.NotZero(t, s, out)
	}
}

// TestPrintAndExit: an error is printed with its node, and ends the job.
func TestPrintAndExit(t *testing.T) {
	r, out := run(t, "shm", "exit", "-qmp-geom", "2", "2", "rest")
	require.Equal(t, int(StatusInvalidArg&0xff), r.ExitStatus(), out)
	require.Equal(t, 1, r.Abort.Rank)
	require.Contains(t, out, "error: qmp: layout grid: invalid function arguments: a lattice of 0 axes")
}
