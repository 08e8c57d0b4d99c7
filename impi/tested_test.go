package impi

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
	w := worlds(t, place{"shm", 2, 1, Config{Providers: []string{"shm"}}})
	b := make([]byte, 8)
	r := irecv(t, w[0], b, 1, 7)
	for name, test := range map[string]func() (bool, error){
		"Test":     func() (bool, error) { done, _, err := r.Test(); return done, err },
		"TestAny":  func() (bool, error) { i, _, err := TestAny(r); return i >= 0, err },
		"TestSome": func() (bool, error) { done, err := TestSome(nil, r); return len(done) > 0, err },
		"Iprobe":   func() (bool, error) { found, _, err := w[0].Iprobe(1, 8); return found, err },
		"RecvNow":  func() (bool, error) { _, got := w[0].RecvNow(b, 1, 8); return got, nil },
	} {
		var ran atomic.Bool
		go ran.Store(true)
		for tests := 0; !ran.Load(); tests++ {
			require.Less(t, tests, 4*pollBatch, name) // the scheduler would take its CPU after 10 ms
			done, err := test()
			require.NoError(t, err)
			require.False(t, done)
		}
	}
	require.NoError(t, w[1].Send(within(t), make([]byte, 8), 0, 7))
	completed(t, r)
}
