package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDoubts(t *testing.T) {
	t.Parallel()
	at := time.Now()
	before := machineState{at: at, known: true, speed: 1}
	after := func(busy, steal time.Duration, speed float64) machineState {
		return machineState{at: at.Add(10 * time.Second), known: true, speed: speed, cpu: cpuTimes{busy: busy, steal: steal, total: 20 * time.Second}}
	}
	own := 18 * time.Second
	for _, c := range []struct {
		name  string
		after machineState
		want  []string
	}{
		{"quiet", after(own+400*time.Millisecond, 100*time.Millisecond, 1.05), nil},
		{"steal", after(own, 300*time.Millisecond, 1), []string{"1.5 % of the CPU time was stolen by the hypervisor"}},
		{"busy", after(own+time.Second, 0, 1), []string{"other processes used 0.10 CPUs meanwhile"}},
		{"slower", after(own, 0, 0.8), []string{"the CPU was 20 % slower at the end than at the beginning"}},
		{"not known", machineState{at: at.Add(time.Second), speed: 1}, nil},
	} {
		require.Equal(t, c.want, doubts(before, c.after, own), c.name)
	}
}

func TestStandingDoubts(t *testing.T) {
	t.Parallel()
	rank := func(n int, cpus ...int) RankEnvironment { return RankEnvironment{Rank: n, Host: "h", CPUs: cpus} }
	require.Empty(t, standingDoubts(&Environment{Ranks: []RankEnvironment{rank(0, 0), rank(1, 1)}}))
	require.Len(t, standingDoubts(&Environment{Ranks: []RankEnvironment{rank(0, 0), rank(1, 0)}}), 1)
	require.Len(t, standingDoubts(&Environment{Ranks: []RankEnvironment{rank(0, 0, 1), rank(1, 0, 1)}}), 2)
	require.Empty(t, standingDoubts(&Environment{Ranks: []RankEnvironment{rank(0, 0, 1), rank(1, 0, 1), rank(2, 0, 1)}}))
	threads := []RankEnvironment{rank(0, 0), rank(1, 1), rank(2, 2)}
	threads[0].Core, threads[1].Core, threads[2].Core = "0,2", "1,3", "0,2"
	require.Equal(t, []string{"ranks 0 and 2 are on hardware threads of one core: each has half of it, and cache lines never leave it"},
		standingDoubts(&Environment{Ranks: threads}))
	threads[2].Host = "another"
	require.Empty(t, standingDoubts(&Environment{Ranks: threads}))
	require.Len(t, standingDoubts(&Environment{Governor: "powersave"}), 1)
	require.Empty(t, standingDoubts(&Environment{Governor: "performance"}))
}

func TestDoubtful(t *testing.T) {
	t.Parallel()
	var d doubtful
	d.add([]string{"other processes used 0.10 CPUs meanwhile"})
	d.add(nil)
	d.add([]string{"other processes used 0.55 CPUs meanwhile"})
	require.Equal(t, []string{"other processes used 0.10 CPUs meanwhile (or similar, in 2 of 3 runs)"}, d.list())
}
