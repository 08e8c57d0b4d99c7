package qmp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/jobtest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// machines makes a job of several nodes in this process, with options of the command
// line. They are finalized when the test is over.
func machines(t testing.TB, size int, args []string, opts ...channel.Option) []*Machine {
	t.Helper()
	nodes := jobtest.Join(t, size, opts...)
	list := make([]*Machine, size)
	ranks.Each(t, size, func(i int) (err error) {
		a := append([]string{"program"}, args...)
		list[i], err = New(nodes[i], &a, WithContext(ranks.Within(t)))
		if err == nil {
			require.Equal(t, []string{"program"}, a)
		}
		return err
	})
	t.Cleanup(func() { ranks.Each(t, size, func(i int) error { return list[i].Finalize() }) })
	return list
}

// over makes a job over one provider.
func over(t testing.TB, provider string, size int, args ...string) []*Machine {
	t.Helper()
	return machines(t, size, args, channel.WithProviders(provider))
}

// somewhere runs a test over shm, and in its long form over each provider: package channel is
// between them and what is tested.
func somewhere(t *testing.T, test func(t *testing.T, provider string)) {
	jobtest.Everywhere(t, func(t *testing.T, provider string) {
		if provider == "tcp" || provider == "roce" {
			need.Long(t)
		}
		test(t, provider)
	})
}

// each runs something for the default communicators of all nodes at the same time.
func each(t testing.TB, list []*Machine, do func(c *Comm) error) {
	t.Helper()
	ranks.Each(t, len(list), func(i int) error { return do(list[i].DefaultComm()) })
}

func splitOf(t testing.TB, c *Comm, color, key int) *Comm {
	t.Helper()
	split, err := c.Split(color, key)
	require.NoError(t, err)
	return split
}

// alone makes this process a job of one, and its only node.
func alone(t testing.TB, args ...string) {
	t.Helper()
	jobtest.Alone(t)
	a := append([]string{"program"}, args...)
	provided, err := Init(&a, ThreadSerialized, WithContext(ranks.Within(t)))
	require.NoError(t, err)
	require.Equal(t, ThreadMultiple, provided)
	t.Cleanup(func() { require.NoError(t, Finalize()) })
}

// status requires that an error has a status, and returns it.
func status(t testing.TB, want Status, err error) error {
	t.Helper()
	require.Error(t, err)
	require.ErrorIs(t, err, want)
	require.Equal(t, want, StatusOf(err), "%v", err)
	return err
}

// must returns the first of two results, of which the second is no error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
