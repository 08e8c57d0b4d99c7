package impi

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/logbuf"
)

// numb is a source of events that cannot be waited for.
type numb struct{ tried, polled chan struct{} }

func (n numb) poll() bool {
	select {
	case n.polled <- struct{}{}:
	default:
	}
	return false
}

func (n numb) block(context.Context) error {
	n.tried <- struct{}{}
	return errors.New("no descriptors")
}

// TestWatchFails: a source that cannot be waited for is said to be such, once, and
// polled nevertheless.
func TestWatchFails(t *testing.T) {
	var b logbuf.Buffer
	e := &engine{log: slog.New(slog.NewTextHandler(&b, nil)), bell: make(chan struct{})}
	e.life, e.stop = context.WithCancel(t.Context())
	n := numb{make(chan struct{}), make(chan struct{}, 100)}
	e.wg.Go(func() { e.watch(n, make(chan struct{})) })
	for range 5 {
		<-n.tried
		<-n.polled
	}
	e.stop()
	e.wg.Wait()
	require.Equal(t, 1, strings.Count(b.String(), "no descriptors"))
}
