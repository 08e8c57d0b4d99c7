package nettest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Runner runs this program as a job whose ranks play an act, and returns how they ended and
// what they wrote. The environment has env more than that of this process.
type Runner func(t *testing.T, size int, env []string, act string, args ...string) (launch.Result, string)

// On returns what runs jobs over a provider: on this host, or, for one of [Providers], with
// every other rank in the second of two networks, which end with the test.
func On(t *testing.T, provider string) Runner {
	t.Helper()
	if wire, ok := Wire(provider); ok {
		return Between(t, wire)
	}
	return func(t *testing.T, size int, env []string, act string, args ...string) (launch.Result, string) {
		t.Helper()
		var out logbuf.Buffer
		r, err := launch.Run(ranks.Within(t), launch.Options{
			Size: size, Args: append([]string{ranks.Program()}, args...), Env: ranks.Environ(act, env...),
			Stdout: &out, Stderr: &out, Prefix: true, OnFailure: launch.Continue,
		})
		require.NoError(t, err, out.String())
		return r, out.String()
	}
}
