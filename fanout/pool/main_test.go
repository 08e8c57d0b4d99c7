package pool

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Call)
	leak.Main(m)
}

var acts = map[string]func(args []string) error{
	"mortal": func(args []string) error {
		// A worker that comes just when the supplier ends may find none.
		if err := mortal(args[0]); err != nil && !errors.As(err, new(*SupplierError)) {
			return err
		}
		return nil
	},
}

// mortal works until it kills itself: before or just after it has answered a chunk.
func mortal(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := config()
	c.Window = 1 + rand.IntN(4)
	w, err := Join(ctx, c, addr)
	if err != nil {
		return err
	}
	moment := rand.IntN(2)
	for life := rand.IntN(40); ; life-- {
		k, err := w.Receive(ctx)
		if err == io.EOF {
			return w.Close()
		}
		if err != nil {
			return err
		}
		for i := range 2 {
			if life == 0 && moment == i {
				self, err := os.FindProcess(os.Getpid())
				if err != nil {
					return err
				}
				if err := self.Kill(); err != nil {
					return err
				}
				select {}
			}
			if i == 0 {
				if err := k.Done(work(k.Bytes())); err != nil {
					return err
				}
			}
		}
	}
}

// Processes are killed while they work, and others replace them: no result is lost or duplicated.
func TestKilled(t *testing.T) {
	ctx := ranks.Within(t)
	count := need.ByForm(250, 1000, 4000) // some 50 are killed
	c := config()
	c.Attempts = -1
	s := listen(t, c)
	over := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	killed := 0
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				out, err := ranks.Command(ctx, "mortal", s.Addr().String()).CombinedOutput()
				if err != nil && strings.Contains(err.Error(), "killed") {
					mu.Lock()
					killed++
					mu.Unlock()
				} else if err != nil {
					t.Errorf("%v: %s", err, out)
				}
			}
		})
	}
	err := supply(ctx, s, count)
	close(over)
	require.NoError(t, err)
	wg.Wait()
	require.GreaterOrEqual(t, killed, count/200)
	redelivered := uint64(0)
	for _, w := range s.Stats().Workers {
		redelivered += w.Redelivered
	}
	t.Logf("%d workers were killed, %d chunks went to others", killed, redelivered)
}
