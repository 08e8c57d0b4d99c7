package main

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// A crossover is set where the ways cross, and left alone where that gains nothing.
func TestWayFit(t *testing.T) {
	t.Parallel()
	sizes := []int{1 << 10, 4 << 10, 16 << 10, 64 << 10}
	const floor = 512
	for name, c := range map[string]struct {
		variable string
		includes bool
		first    []float64
		second   []float64
		want     string
	}{
		"as by default":     {channel.EnvEagerTCP, true, []float64{1, 1, 3, 3}, []float64{2, 2, 2, 2}, ""},
		"no difference":     {channel.EnvEagerTCP, true, []float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}, ""},
		"longer":            {channel.EnvEagerTCP, true, []float64{1, 1, 1, 3}, []float64{2, 2, 2, 2}, channel.EnvEagerTCP + "=16384"},
		"never":             {channel.EnvEagerRDMA, true, []float64{3, 3, 3, 3}, []float64{2, 2, 2, 2}, channel.EnvEagerRDMA + "=512"},
		"blocks always":     {channel.EnvPackTCP, false, []float64{3, 3, 3, 3}, []float64{2, 2, 2, 2}, channel.EnvPackTCP + "=0"},
		"blocks never":      {channel.EnvPackTCP, false, []float64{1, 1, 1, 1}, []float64{2, 2, 2, 2}, channel.EnvPackTCP + "=131072"},
		"blocks by default": {channel.EnvPackRDMA, false, []float64{3, 3, 3, 3}, []float64{2, 2, 2, 2}, ""},
		"one that wanders":  {channel.EnvPackTCP, false, []float64{1, 1, 2.05, 3}, []float64{2, 2, 2, 2}, ""},
	} {
		w := way{variable: c.variable, includes: c.includes, sizes: sizes, figures: [2][]float64{c.first, c.second}}
		if c.includes {
			w.floor = floor
		}
		if name == "blocks by default" { // 1024: the first size is of the second way already
			require.Zero(t, w.loss(channel.DefaultCrossover(c.variable)))
		}
		w.fit()
		require.Equal(t, c.want, w.setting, name)
	}
	w := way{higher: true, includes: true, sizes: []int{8}, figures: [2][]float64{{10}, {5}}}
	require.Zero(t, w.loss(8))
	require.InDelta(t, math.Log(2), w.loss(0), 1e-9)
}

// Where roce is there it is measured beside tcp, and set to come first where it was faster.
func TestTuneProvider(t *testing.T) {
	need.NoRace(t, "it tells nothing of processes, and is slow")
	need.Provider(t, providerRoCE)
	args := []string{"tune", "--what", tuneProvider, "-n", "2", "--time", "5ms", "--rounds", "1"}
	r := decode(t, output(t, append(args, "--json")...))
	for range 3 { // if no rank gets a CPU for seconds, connecting may fail
		if len(r.Missing) > 0 {
			r = decode(t, output(t, append(args, "--json")...))
		}
	}
	require.Empty(t, r.Missing)
	figures := map[string][]float64{}
	for _, v := range r.Results {
		require.Equal(t, v.Algorithm, v.Provider)
		require.True(t, v.Verified)
		figures[v.Provider] = append(figures[v.Provider], v.P50)
	}
	for _, name := range []string{providerRoCE, carrierTCP} {
		require.Len(t, figures[name], strings.Count(tunedLat, ",")+1, name)
		for _, ns := range figures[name] {
			require.Positive(t, ns)
		}
	}
	require.Equal(t, orderOf(t, &r), r.Settings)
}

// measures tunes messages over a provider, in two ranks, and returns the file that it
// wrote: all ways have been measured, with every size, and verified.
func measures(t *testing.T, provider, what string) (path string) {
	t.Helper()
	path = t.TempDir() + "/tuning"
	r := decode(t, output(t, "tune", "--provider", provider, "--what", what, "-n", "2", "--time", "1ms", "--rounds", "1", "--json", "--file", path))
	ways := map[string]int{}
	for _, v := range r.Results {
		ways[v.Algorithm]++
		require.True(t, v.Verified)
		require.Equal(t, slices.Contains([]string{"packed", "blocks", "written", "fetched"}, v.Algorithm), v.Block > 0)
		require.Equal(t, v.Algorithm == "written" || v.Algorithm == "fetched", v.Receive == "packed late")
		if v.Block > 0 {
			require.Equal(t, provider, v.Provider)
		}
	}
	for _, c := range []struct{ what, sizes, one, other string }{
		{"eager", tunedEager, "copied", "straight"},
		{"pack", tunedBlocks, "packed", "blocks"},
		{"read", tunedReads, "written", "fetched"},
	} {
		want := 0
		if slices.Contains(strings.Split(what, ","), c.what) {
			want = strings.Count(c.sizes, ",") + 1
		}
		require.Equal(t, []int{want, want}, []int{ways[c.one], ways[c.other]}, c.what)
	}
	for _, s := range r.Settings {
		name, _, _ := strings.Cut(s, "=")
		require.Contains(t, append(messageVariables, channel.EnvTransport), name)
	}
	return path
}

// All methods are measured, and a process that joins can read the settings.
func TestTuneMessages(t *testing.T) {
	need.NoRace(t, "it tells nothing of processes, and is slow")
	need.Full(t)
	path := measures(t, "tcp", "eager,pack,read,copy,provider")
	t.Setenv(channel.EnvTuningFile, path)
	output(t, append([]string{"channel", "lat", "--provider", "tcp", "--sizes", "8,64k"}, tiny...)...)
}

// The same over a device: chains of scatter and gather against packing, RDMA_READ against
// RDMA_WRITE.
func TestTuneRDMA(t *testing.T) {
	need.RDMA(t)
	what := need.InLong("read", "eager,pack,read") // what no other provider has; a guest that emulates its CPUs takes its time
	path := measures(t, providerIBV, what)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(b), "SLUICE_TCP_", "what has not been measured is not set")
	t.Setenv(channel.EnvTuningFile, path)
	output(t, append([]string{"channel", "lat", "--provider", providerIBV, "--sizes", "8,64k"}, tiny...)...)
}

// What has been measured is shown as tables, with the settings behind them.
func TestTuneTable(t *testing.T) {
	need.NoRace(t, "it tells nothing of processes, and is slow")
	table := string(output(t, "tune", "--what", "eager", "-n", "2", "--time", "1ms", "--rounds", "1"))
	for _, part := range []string{"copied", "straight", "tcp messages", channel.EnvEagerTCP} {
		require.Contains(t, table, part)
	}
}
