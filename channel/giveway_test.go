package channel

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTestsGiveWay: where there is one CPU for Go, a program that only tests does not keep it from the
// goroutines of its process.
func TestTestsGiveWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	groups := worlds(t, 2, WithProviders("shm"))
	r, _ := receive(t, groups[0].node, 1, 8)
	require.NoError(t, r.Start())
	c, err := groups[0].Declare(Barrier())
	require.NoError(t, err)
	require.NoError(t, c.Start())
	for name, test := range map[string]func() (bool, error){
		"Test":       r.Test,
		"TestAny":    func() (bool, error) { i, err := TestAny(r); return i >= 0, err },
		"TestSome":   func() (bool, error) { done, err := TestSome(nil, r); return len(done) > 0, err },
		"collective": c.Test,
	} {
		var ran atomic.Bool
		go ran.Store(true)
		for tests := 0; !ran.Load(); tests++ {
			require.Less(t, tests, 4*looks, name) // the scheduler would take its CPU after 10 ms
			done, err := test()
			require.NoError(t, err)
			require.False(t, done)
		}
	}
	require.NoError(t, groups[1].node.Send(within(t), make([]byte, 8), 0))
	require.NoError(t, r.WaitContext(within(t)))
	require.NoError(t, groups[1].Run(within(t), Barrier()))
	require.NoError(t, c.WaitContext(within(t)))
}
