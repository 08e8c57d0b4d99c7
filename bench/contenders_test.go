package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"4.1.4": "4.1", "5.0.7": "5", "6.0.0": "6", "4.0.2": "4", "5": "5", "": ""} {
		require.Equal(t, want, shortVersion(version))
	}
	require.Positive(t, compareVersions("1.18.1", "1.9"))
	require.Negative(t, compareVersions("1.13.1", ucxCopies))
	require.Zero(t, compareVersions("2.1.0", "2.1.0"))

	here := &place{versions: map[string]string{"openmpi": "4.1.4", "mpich": "4.2.1", peerUCX: "1.13.1"}}
	root := &place{root: "/r", versions: map[string]string{"openmpi": "6.0.0", "mpich": "4.2.9", peerUCX: "1.23.0"}}
	var labels []string
	for _, m := range findMPIs([]*place{here, root}) {
		labels = append(labels, m.label)
	}
	require.Equal(t, []string{"openmpi@4.1", "mpich@4.2", "openmpi@6"}, labels, "of equal versions the first")
	c := comparison{places: []*place{here, root}}
	require.Same(t, root, c.newest(peerUCX))
	require.Nil(t, c.newest(peerZMQ))
}

// With more ranks than CPUs a peer that takes far longer than the best is named, not
// quoted; of each point the best MPI and the best other remain.
func TestPick(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		name    string
		crowded bool
		took    map[string]map[string]float64
		hung    []string
		want    map[string][]string
		crawls  []string
	}{
		{"of each point the two best", false, map[string]map[string]float64{
			"openmpi@4.1": {"8": 300, "64": 100}, "openmpi@6": {"8": 200, "64": 300}, "mpich@5": {"8": 900, "64": 200},
		}, nil, map[string][]string{"openmpi@4.1": {"8", "64"}, "openmpi@6": {"8"}, "mpich@5": {"64"}}, nil},
		{"the best MPI, though others are faster", false, map[string]map[string]float64{
			"ucx@tag": {"8": 100}, "fi@shm": {"8": 200}, "mpich@5": {"8": 300}, "openmpi@6": {"8": 400},
		}, nil, map[string][]string{"ucx@tag": {"8"}, "mpich@5": {"8"}}, nil},
		{"no MPI", false, map[string]map[string]float64{"ucx@tag": {"8": 100}, "fi@shm": {"8": 200}}, nil, map[string][]string{"ucx@tag": {"8"}, "fi@shm": {"8"}}, nil},
		{"crowded: one that crawls", true, map[string]map[string]float64{
			"openmpi@4.1": {"8": 4e3}, "mpich@4.2": {"8": 8e6}, "mpich@5": {"8": 12e3},
		}, nil, map[string][]string{"openmpi@4.1": {"8"}, "mpich@5": {"8"}}, []string{"mpich@4.2"}},
		{"exactly as many times as is allowed", true, map[string]map[string]float64{"openmpi@4.1": {"8": 100}, "mpich@4.2": {"8": crawlsFrom * 100}}, nil,
			map[string][]string{"openmpi@4.1": {"8"}, "mpich@4.2": {"8"}}, nil},
		{"a core each: slow is not crawling", false, map[string]map[string]float64{"openmpi@4.1": {"8": 1}, "mpich@4.2": {"8": 1000}}, nil,
			map[string][]string{"openmpi@4.1": {"8"}, "mpich@4.2": {"8"}}, nil},
		{"crowded: one that never ended", true, map[string]map[string]float64{"openmpi@4.1": {"8": 1}, "mpich@4.2": {}}, []string{"mpich@4.2"},
			map[string][]string{"openmpi@4.1": {"8"}}, []string{"mpich@4.2"}},
	} {
		r := &row{sizes: "8,64"}
		c := comparison{crawls: map[*row][]string{}}
		list := []*contender{{row: r, peer: peerSluice, points: r.points()}}
		took, hung := map[*contender]map[string]float64{}, map[*contender]bool{}
		for _, peer := range []string{"openmpi@4.1", "openmpi@6", "mpich@4.2", "mpich@5", "ucx@tag", "fi@shm"} {
			if k.took[peer] == nil {
				continue
			}
			one := &contender{row: r, peer: peer, picked: true}
			list = append(list, one)
			took[one] = k.took[peer]
			for _, h := range k.hung {
				if h == peer {
					hung[one] = true
				}
			}
		}
		got := map[string][]string{}
		for _, one := range c.pick(list, took, hung, k.crowded)[1:] {
			got[one.peer] = one.points
		}
		require.Equal(t, k.want, got, k.name)
		require.Equal(t, k.crawls, c.crawls[r], k.name)
	}
}

// Where there is nothing to choose from nothing is screened.
func TestScreen(t *testing.T) {
	t.Parallel()
	r := &row{sizes: "8"}
	runs := 0
	peer := func(name string, p50 float64) *contender {
		return &contender{row: r, peer: name, picked: true, points: r.points(), run: func(context.Context, []string, time.Duration) ([]Result, error) {
			runs++
			return []Result{{Peer: peerName(name), Bytes: 8, Unit: unitLatency, P50: p50}}, nil
		}}
	}
	c := comparison{crawls: map[*row][]string{}}
	list := []*contender{{row: r, peer: peerSluice, points: r.points()}, peer("openmpi@4.1", 3), peer("mpich@4", 4)}
	got := c.screen(t.Context(), list)
	require.Equal(t, list, got)
	require.Zero(t, runs)

	broken := peer("mpich@5", 1)
	broken.run = func(context.Context, []string, time.Duration) ([]Result, error) { return nil, errNotInstalled }
	got = c.screen(t.Context(), append(list, peer("openmpi@6", 2), broken))
	var peers []string
	for _, k := range got {
		peers = append(peers, k.peer)
	}
	require.Equal(t, []string{peerSluice, "openmpi@4.1", "openmpi@6"}, peers)
	require.Equal(t, 3, runs)
	require.Equal(t, []string{errNotInstalled.Error()}, c.report.Missing)
}

// A load is on the machine while a peer runs.
func TestSetting(t *testing.T) {
	t.Parallel()
	c := comparison{self: "/bin/bench"}
	require.Equal(t, setting{env: []string{"RANKS=2"}}, c.setting(&row{}))
	require.Equal(t, setting{env: []string{"RANKS=8", "UNBOUND=1"}, within: []string{"/bin/bench", "load", "busy", "-n", "8"}}, c.setting(&row{ranks: 8, unbound: true, load: "busy"}))
	p := place{root: "/r", dir: "/d"}
	require.Equal(t, []string{"/bin/bench", "load", "busy", "-n", "2", "sh", "/d/enter.sh", "/r", "/d", "sh", "/mnt/run.sh", "limit"},
		p.script(t.Context(), c.setting(&row{load: "busy"}), "run.sh", "limit").Args)
}

// One that takes too long is ended, and named; one that fails in time fails by itself.
func TestContenderBound(t *testing.T) {
	t.Parallel()
	waits := contender{row: &row{pattern: "sleep"}, peer: "sleeper", run: func(ctx context.Context, _ []string, _ time.Duration) ([]Result, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for _, bound := range []time.Duration{0, time.Millisecond} {
		_, err := waits.runBounded(context.Background(), nil, 0, bound)
		require.ErrorIs(t, err, errHung)
		require.ErrorContains(t, err, "sleep: sleeper")
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	_, err := waits.runBounded(stopped, nil, 0, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errHung)
	breaks := contender{run: func(context.Context, []string, time.Duration) ([]Result, error) { return nil, errNotInstalled }}
	_, err = breaks.runBounded(context.Background(), nil, 0, time.Minute)
	require.Equal(t, errNotInstalled, err)
}

// One that fails is in no further round, which is said; the others go on. Where it is one of
// ours the comparison has failed in the end.
func TestTakeAll(t *testing.T) {
	t.Parallel()
	runs := map[string]int{}
	r := &row{pattern: patternLat}
	named := func(name string, breaks bool) *contender {
		return &contender{row: r, peer: name, run: func(context.Context, []string, time.Duration) ([]Result, error) {
			if runs[name]++; breaks {
				return nil, errNotInstalled
			}
			return []Result{{Peer: name, P50: float64(runs[name])}, {Peer: name, Figure: "idle", Failed: "hung"}}, nil
		}}
	}
	c := comparison{pace: pace{rounds: 5, bound: time.Hour, each: time.Hour, began: time.Now()}, latest: map[*row]*Result{}}
	figures := c.takeAll(t.Context(), []*contender{named("one", false), named("broken", true), named(peerSluice, false)})
	require.Len(t, figures, 2)
	require.Equal(t, 5, figures[1].Rounds)
	require.Equal(t, map[string]int{"one": 5, "broken": 1, peerSluice: 5}, runs)
	require.Equal(t, []string{"lat: one: hung", errNotInstalled.Error(), "lat: sluice: hung"}, c.report.Missing)
	require.EqualValues(t, 5, c.latest[r].P50)

	require.NoError(t, c.failed, "a peer is none of ours")
	c.pace = pace{rounds: 5, bound: time.Hour, each: time.Hour, began: time.Now()}
	figures = c.takeAll(t.Context(), []*contender{named(peerSluice, true), named("one", false)})
	require.Len(t, figures, 1)
	require.ErrorIs(t, c.failed, errNotInstalled)
}
