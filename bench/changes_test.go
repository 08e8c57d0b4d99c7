package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// rounds11 are medians of 11 rounds about v, which spread by two per cent.
func rounds11(v float64) []float64 {
	var vs []float64
	for i := range 11 {
		vs = append(vs, v*(0.99+0.002*float64(i*7%11)))
	}
	return vs
}

func reportOf(results ...Result) *Report {
	return &Report{Schema: schema, Environment: takeEnvironment(nil), Results: results}
}

func resultOf(pattern string, bytes int64, medians ...float64) Result {
	m := median(append([]float64(nil), medians...))
	return Result{Pattern: pattern, Layer: layerVerbs, Provider: "shm", Peer: peerSluice, Op: "send", Mode: modeBatch, Bytes: bytes, Unit: unitOf(pattern),
		Min: m, P50: m, P99: m, P999: m, Max: m, Mean: m, Samples: 11, Rounds: len(medians), Medians: medians}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	o := changeOptions{alpha: 0.05, worse: 3}
	for _, c := range []struct {
		name     string
		pattern  string
		old, new []float64
		want     string
	}{
		{"latency as before", patternLat, rounds11(100), rounds11(100.2), verdictSame},
		{"higher latency", patternLat, rounds11(100), rounds11(110), verdictWorse},
		{"lower latency", patternLat, rounds11(100), rounds11(90), verdictBetter},
		{"higher bandwidth", patternBW, rounds11(100), rounds11(110), verdictBetter},
		{"lower bandwidth", patternBW, rounds11(100), rounds11(90), verdictWorse},
		{"lower rate", patternRate, rounds11(1e6), rounds11(9e5), verdictWorse},
		{"significant, and below the threshold", patternLat, rounds11(100), rounds11(102.5), verdictSame},
		{"far apart by chance", patternLat, []float64{100, 300, 90, 250, 110, 320}, []float64{120, 280, 100, 330, 150, 260}, verdictSame},
		{"too few rounds", patternLat, []float64{100}, []float64{200}, verdictUnknown},
		{"three rounds", patternLat, []float64{100, 101, 102}, []float64{200, 201, 202}, verdictUnknown},
	} {
		list := changes([]Result{resultOf(c.pattern, 8, c.old...)}, []Result{resultOf(c.pattern, 8, c.new...)}, o.independent)
		require.Len(t, list, 1)
		require.Equal(t, c.want, list[0].Verdict, "%s: %+v", c.name, list[0])
		require.Equal(t, c.want != verdictUnknown, list[0].P != nil, c.name)
	}
}

// What is in one report alone is no change, and is said.
func TestChangesAlone(t *testing.T) {
	t.Parallel()
	o := changeOptions{alpha: 0.05, worse: 3}
	list := changes([]Result{resultOf(patternLat, 8, rounds11(1)...), resultOf(patternLat, 64, rounds11(1)...)},
		[]Result{resultOf(patternLat, 64, rounds11(1)...), resultOf(patternBW, 64, rounds11(1)...)}, o.independent)
	require.Len(t, list, 3)
	require.Equal(t, []string{verdictSame, verdictOne, verdictOne}, []string{list[0].Verdict, list[1].Verdict, list[2].Verdict})
	require.EqualValues(t, 64, list[0].Bytes)
	require.Zero(t, list[1].Old)
	require.Zero(t, list[2].New)
}

// Of two versions that ran by turns the interval of the rounds' ratios counts.
func TestPaired(t *testing.T) {
	t.Parallel()
	times := func(vs []float64, by ...float64) (list []float64) {
		for i, v := range vs {
			list = append(list, v*by[i%len(by)])
		}
		return list
	}
	wild := []float64{100, 300, 90, 250, 110, 320, 100, 280, 95, 105, 400}
	for _, c := range []struct {
		name     string
		pattern  string
		old, new []float64
		want     string
	}{
		{"the same", patternLat, rounds11(100), rounds11(100), verdictSame},
		{"ten per cent more time on a machine that changes between rounds", patternLat, wild, times(wild, 1.1), verdictWorse},
		{"ten per cent less time", patternLat, wild, times(wild, 0.9), verdictBetter},
		{"ten per cent less bandwidth", patternBW, wild, times(wild, 0.9), verdictWorse},
		{"four per cent more", patternLat, wild, times(wild, 1.04), verdictSame},
		{"more, but the interval reaches below", patternLat, wild, times(wild, 1.2, 1.01, 1.3), verdictSame},
		{"too few rounds", patternLat, wild[:3], times(wild[:3], 2), verdictUnknown},
	} {
		got := changes([]Result{resultOf(c.pattern, 8, c.old...)}, []Result{resultOf(c.pattern, 8, c.new...)}, paired)[0]
		require.Equal(t, c.want, got.Verdict, "%s: %+v", c.name, got)
		require.Equal(t, c.want != verdictUnknown, got.High > 0, c.name)
	}
}

func TestVerdictError(t *testing.T) {
	t.Parallel()
	p := 0.5
	change := func(verdict string, ours bool) Change {
		c := Change{Verdict: verdict, ours: ours, RoundsN: 3, RoundsO: 11}
		if verdict != verdictUnknown && verdict != verdictOne {
			c.P = &p
		}
		return c
	}
	require.NoError(t, verdictError(nil))
	require.NoError(t, verdictError([]Change{change(verdictSame, true), change(verdictBetter, true), change(verdictUnknown, false)}), "a peer that was slow is none of ours")
	require.Equal(t, &RegressionError{1}, verdictError([]Change{change(verdictWorse, true), change(verdictUnknown, true)}))
	require.Equal(t, &TooFewRoundsError{1, 3}, verdictError([]Change{change(verdictSame, true), change(verdictUnknown, true)}))
	var few *TooFewRoundsError
	require.ErrorAs(t, verdictError([]Change{change(verdictOne, true)}), &few, "nothing could be judged")
}

func TestCompareReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, r *Report) string {
		b, err := json.Marshal(r)
		require.NoError(t, err)
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		return path
	}
	old := file("old.json", reportOf(resultOf(patternLat, 8, rounds11(100)...), resultOf(patternBW, 64, rounds11(100)...)))
	good := file("good.json", reportOf(resultOf(patternLat, 8, rounds11(100)...), resultOf(patternBW, 64, rounds11(120)...)))
	bad := reportOf(resultOf(patternLat, 8, rounds11(150)...), resultOf(patternBW, 64, rounds11(100)...))
	bad.Environment.Kernel = "another"
	bad.Warnings = []string{"a busy machine"}
	worse := file("worse.json", bad)

	require.Contains(t, string(output(t, "compare", old, good)), "better")
	said, status := fails(t, "compare", old, worse)
	require.Equal(t, exitWorse, status)
	require.Contains(t, said, "+50.0 %")
	require.Contains(t, said, "1 figure worse than before")
	require.Contains(t, said, `and is "another"`)
	require.Contains(t, said, "warning: "+worse+": a busy machine", "a warning names its report")
	require.Contains(t, string(output(t, "compare", old, worse, "--only", "verbs bw")), "~", "what is worse is not looked at")
	require.Contains(t, string(output(t, "compare", old, worse, "--worse", "60")), "~")
	r := decode(t, output(t, "compare", old, good, "--json"))
	require.Equal(t, []string{verdictSame, verdictBetter}, []string{r.Changes[0].Verdict, r.Changes[1].Verdict})

	for _, args := range [][]string{{"compare", old}, {"compare", old, good, worse}, {"compare", old, good, "--alpha", "1"}, {"compare", old, good, "--worse", "-1"}, {"compare", old, good, "--only", "("}} {
		_, status := fails(t, args...)
		require.Equal(t, exitUsage, status, args)
	}
	// What cannot be told is not taken for good.
	few := file("few.json", reportOf(resultOf(patternLat, 8, 100, 101, 99), resultOf(patternBW, 64, 100, 101, 99)))
	said, status = fails(t, "compare", few, few)
	require.Equal(t, exitFew, status)
	require.Contains(t, said, "2 figures cannot be judged: 3 rounds are too few; measure with --rounds 10 or more")
	said, status = fails(t, "compare", old, filepath.Join(dir, "none.json"))
	require.Equal(t, exitFailed, status, said)
}
