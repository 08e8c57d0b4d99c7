package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// comms makes a job of nodes in this process, and returns the world of each rank: with a
// provider of verbs, with impi's own packets over TCP ("packets"), or as processes of one
// host ("here").
func comms(t testing.TB, place string, size int) []*impi.Comm {
	t.Helper()
	var list []*impi.Comm
	for _, j := range jobsOf(t, place, size) {
		list = append(list, j.Worlds()...)
	}
	return list
}

func jobsOf(t testing.TB, place string, size int) []*impi.Job {
	t.Helper()
	c := configOf(place)
	hosts := size
	if place == "here" {
		c.Processes, hosts = size, 1
	}
	nodes := jobtest.Join(t, hosts)
	jobs := make([]*impi.Job, hosts)
	ranks.Each(t, hosts, func(i int) (err error) {
		jobs[i], err = impi.FromNode(ranks.Within(t), nodes[i], c)
		return err
	})
	t.Cleanup(func() {
		ranks.Each(t, hosts, func(i int) error { return jobs[i].Close(context.WithoutCancel(t.Context())) })
	})
	return jobs
}

// configOf returns the configuration of jobs of that place.
func configOf(place string) impi.Config {
	c := impi.Config{Addr: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	switch place {
	case "here":
	case "packets":
		c.Providers = []string{}
	default:
		c.Providers = []string{place}
	}
	return c
}

// dup makes a duplicate of a communicator, which is freed when the test is over.
func dup(t testing.TB, w []*impi.Comm) []*impi.Comm {
	t.Helper()
	list := make([]*impi.Comm, len(w))
	ranks.Each(t, len(w), func(i int) (err error) {
		list[i], err = w[i].Dup(ranks.Within(t))
		return err
	})
	t.Cleanup(func() {
		ranks.Each(t, len(w), func(i int) error { return list[i].Free(context.WithoutCancel(t.Context())) })
	})
	return list
}

// needPlace states what a test needs whose ranks are at that place.
func needPlace(t testing.TB, place string) {
	t.Helper()
	if place != "here" && place != "packets" {
		jobtest.Need(t, place)
	}
}

// places are where the ranks of a test are.
func places() []string { return append([]string{"here", "packets"}, jobtest.Providers()...) }

// seldom reports whether a provider is rarely tested: package impi carries the messages, so for
// this package it is like the others. Only one test delivers chunks over it, the others do in
// their long form. With -short they also skip impi's packets.
func seldom(place string) bool { return place == "tcp" || place == "roce" }

func everywhere(t *testing.T, test func(t *testing.T, place string)) {
	for _, p := range places() {
		t.Run(p, func(t *testing.T) {
			needPlace(t, p)
			switch {
			case seldom(p):
				need.Long(t)
			case p == "packets":
				need.Full(t)
			}
			test(t, p)
		})
	}
}

// together runs functions at the same time, and returns their errors.
func together(fs ...func() error) []error {
	errs := make([]error, len(fs))
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errs
}

func newSupplier(t testing.TB, c *impi.Comm, opts ...Option) *Supplier {
	t.Helper()
	s, err := NewSupplier(c, opts...)
	require.NoError(t, err)
	return s
}

func newClient(t testing.TB, c *impi.Comm, opts ...ClientOption) *Client {
	t.Helper()
	client, err := NewClient(c, opts...)
	require.NoError(t, err)
	return client
}

func newCollector(t testing.TB, c *impi.Comm, opts ...CollectorOption) *Collector {
	t.Helper()
	collector, err := NewCollector(c, opts...)
	require.NoError(t, err)
	return collector
}

func newResults(t testing.TB, c *impi.Comm, opts ...ResultsOption) *Results {
	t.Helper()
	r, err := NewResults(c, opts...)
	require.NoError(t, err)
	return r
}

// received is what a client or a collector receives.
func received[T any](t testing.TB, ctx context.Context, from interface {
	Receive(context.Context) (T, error)
}) T {
	t.Helper()
	got, err := from.Receive(ctx)
	require.NoError(t, err)
	return got
}

func noErrors(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		require.NoError(t, err, "side %d", i)
	}
}

// releaseAll has a client receive chunks to the end and close; its error comes when it has.
func releaseAll(w *impi.Comm, opts ...ClientOption) <-chan error {
	ended := make(chan error, 1)
	go func() {
		c, err := NewClient(w, opts...)
		for err == nil {
			var k Chunk
			if k, err = c.Receive(context.Background()); err == nil {
				k.Release()
			}
		}
		if err == io.EOF {
			err = c.Close()
		}
		ended <- err
	}()
	return ended
}

// collectAll receives that many results in order, the i-th with the bytes want(i), and the end.
func collectAll(ctx context.Context, c *Collector, count int, want func(i int) []byte) error {
	for i := 0; ; i++ {
		r, err := c.Receive(ctx)
		if err == io.EOF && i == count {
			return nil
		}
		if err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
		if r.Seq() != uint64(i) || !bytes.Equal(r.Bytes(), want(i)) {
			return fmt.Errorf("result %d has %d bytes and number %d", i, len(r.Bytes()), r.Seq())
		}
		if err := errors.Join(r.Release(), r.Release()); err != nil { // the second has no effect
			return err
		}
	}
}

// over returns a context that has ended, for calls that do what can be done at once, such as a
// Receive that asks, and then fail.
func over(t testing.TB) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	t.Cleanup(cancel)
	return ctx
}

// once returns a context that ends once something holds.
func once(t testing.TB, holds func() bool) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for !holds() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	t.Cleanup(func() {
		cancel()
		<-looked
	})
	return ctx
}

// pattern returns a chunk that contains its number, see [seqOf].
func pattern(seq, n int) []byte {
	b := make([]byte, n)
	const period = 1 << 16
	for i := range min(n, period) {
		b[i] = byte(seq*31 + i*7 + i>>8)
	}
	for i := period; i < n; i += period {
		copy(b[i:], b[:period])
	}
	return b
}

// seqOf is the number of a chunk that is a pattern, of the first 256: 31·223 is 1 mod 256.
func seqOf(b []byte) int { return int(b[0] * 223) }
