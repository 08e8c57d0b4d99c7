package channel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/nettest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// Every algorithm of every kind over channels, wherever it is possible.
func TestForcedAlgorithms(t *testing.T) {
	const size = 5
	count := need.InLong(4, 12)
	all := trials(3, size, 400, 9000)
	for _, provider := range append([]string{"shm"}, nettest.Providers()...) {
		t.Run(provider, func(t *testing.T) {
			need.Provider(t, provider)
			if provider == "shm" {
				need.Full(t)
			}
			// One job: a call is planned by what the settings of its node are then, and kept by
			// its group. Each algorithm has a group of its own.
			worlds := worlds(t, size, WithProviders(provider), withHosts(func(rank int) int { return rank }))
			for kind := coll.Barrier; kind <= coll.Alltoall; kind++ {
				var list []colltest.Reference
				for _, c := range all {
					if c.Kind == kind && len(list) < count {
						list = append(list, c)
					}
				}
				require.NotEmpty(t, list)
				for _, a := range coll.Algorithms(kind) {
					o, err := newOptions([]Option{WithTuning(fmt.Sprintf("%s=%v=%v", coll.EnvAlgorithm, kind, a))})
					require.NoError(t, err)
					t.Run(fmt.Sprintf("%v by %v", kind, a), func(t *testing.T) {
						each(t, size, func(rank int) error {
							g := splitOf(t, worlds[rank], within(t), 0, rank)
							g.node.opt.coll = o.coll
							return runTrials(within(t), g, list)
						})
					})
				}
			}
		})
	}
}

// Ranks whose settings differ do not join, and the error says what differs.
func TestSettingsDiffer(t *testing.T) {
	_, errs := tryJoinEach(t, 3, func(rank int) []Option {
		if rank == 2 {
			return []Option{WithTuning("COLL_XSIZE=2048")}
		}
		return nil
	})
	for _, err := range errs {
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "COLL_XSIZE")
		require.ErrorContains(t, err, "2048")
	}
}

func TestSettings(t *testing.T) {
	for _, bad := range []string{"COLL_XSIZE", "COLL_XSIZE=x", "COLL_XSIZE=-2", "COLL_YSIZE=1", "SLUICE_COLL_ALGORITHM=allreduce=fast"} {
		_, err := newOptions([]Option{WithTuning(bad)})
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
	t.Setenv("COLL_XSIZE", "4096")
	t.Setenv("COLL_MAXLINEAR", "7")
	o, err := newOptions([]Option{WithTuning("COLL_MAXLINEAR=9")})
	require.NoError(t, err)
	require.Equal(t, []int{4096, 9}, []int{o.coll.XSize, o.coll.MaxLinear})
	t.Setenv("COLL_XSIZE", "many")
	_, err = newOptions(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "COLL_XSIZE")
}

// In the memory of one host nothing is allocated for a collective, nor between hosts
// for one that is called again.
func TestCollectiveAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	groups := worlds(t, 1)
	g := groups[0]
	b := make([]float64, 5000)
	for _, n := range []int{1, 100, 5000} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if err := g.Run(t.Context(), Allreduce(Sum, b[:n], b[:n])); err != nil {
				t.Error(err)
			}
		}), "%d elements", n)
		c, err := g.Declare(Allreduce(Sum, b[:n], b[:n]))
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if c.Start() != nil || c.WaitContext(t.Context()) != nil {
				t.Error("not started")
			}
		}), "%d elements", n)
	}
	for _, place := range placements[:2] {
		groups := worlds(t, 2, WithProviders("shm"), withHosts(place.hosts))
		var calls [2]*Collective
		each(t, 2, func(rank int) (err error) {
			calls[rank], err = groups[rank].Declare(Allreduce(Sum, make([]float64, 100), make([]float64, 100)))
			return err
		})
		round := func() {
			if calls[0].Start() != nil || calls[1].Start() != nil {
				t.Error("not started")
			}
			for over := [2]bool{}; !over[0] || !over[1]; {
				for i, c := range calls {
					var err error
					if over[i], err = c.Test(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}
		for range 100 {
			round()
		}
		require.Zero(t, ranks.Allocs(100, 0, round), place.name)
	}
}
