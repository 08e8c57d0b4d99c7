package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sampleReport has two patterns over two providers by two peers, a collective, and
// ratios.
func sampleReport() *Report {
	r := &Report{Schema: schema, Warnings: []string{"a busy <machine>"}, Missing: []string{"ibv: no device"}}
	r.Environment = takeEnvironment(map[string]string{"quick": "true"})
	r.Environment.CPU = "an EPYC"
	add := func(pattern, provider, peer, layer, op string, ranks int64, sizes ...int64) {
		for _, n := range sizes {
			v := 100 + float64(n)/10
			if peer == "mpich" {
				v *= 1.5
			}
			r.Results = append(r.Results, Result{Pattern: pattern, Layer: layer, Provider: provider, Peer: peer, Op: op, Ranks: ranks, Mode: modeBatch, Bytes: n,
				Unit: unitOf(pattern), Min: v, P50: 1.1 * v, P99: 2 * v, P999: 3 * v, Max: v * v, Mean: 1.2 * v, Samples: 1000, Rounds: 3, Spread: 0.02})
		}
	}
	for _, provider := range []string{"shm", "tcp"} {
		add(patternLat, provider, peerSluice, layerVerbs, "send", 0, 0, 8, 1<<10, 1<<20)
		add(patternLat, provider, "mpich", "mpi", "", 0, 8, 1<<10, 1<<20)
		add(patternBW, provider, peerSluice, layerChannel, memoryAlloc, 0, 64<<10)
	}
	add("allreduce", "shm", peerSluice, layerChannel, calledAlloc, 4, 8, 1<<10)
	limit, met := 1., true
	for i := range r.Results[:4] {
		v := &r.Results[i]
		r.Comparisons = append(r.Comparisons, Comparison{Row: "shm verbs lat", Pattern: v.Pattern, Bytes: v.Bytes, Unit: v.Unit, Op: v.Op, Ours: v.P50, Peer: "mpich@4",
			Theirs: 1.5 * v.P50, Ratio: 1 / 1.5, Better: betterLower})
	}
	r.Comparisons[1].Bar, r.Comparisons[1].Met = &limit, &met
	r.Comparisons[3].Peer = ucxPut // for information alone
	return r
}

func TestCharts(t *testing.T) {
	t.Parallel()
	charts := chartsOf([]labelled{{Report: sampleReport()}})
	require.Len(t, charts, 3)
	require.Equal(t, []string{"latency", "bandwidth", "allreduce, 4 ranks"}, []string{charts[0].title(), charts[1].title(), charts[2].title()})
	var names []string
	for _, c := range charts[0].curves {
		names = append(names, c.name)
	}
	require.Equal(t, []string{"shm sluice verbs send", "shm mpich mpi", "tcp sluice verbs send", "tcp mpich mpi"}, names)
	require.Len(t, charts[0].curves[0].points, 4)
	require.Equal(t, "shm sluice channel", charts[2].curves[0].name, "what all curves have in common is not said")
	parts := divided(charts[:1], byPeer)
	require.Equal(t, "latency, sluice", parts[0].title())
	require.Len(t, parts[1].curves, 2)

	two := chartsOf([]labelled{{Label: "old", Report: sampleReport()}, {Label: "new", Report: sampleReport()}})
	require.Len(t, two[0].curves, 8)
	require.Equal(t, "new tcp mpich mpi", two[0].curves[7].name)
}

// Sizes come in any order, and as often as there are reports.
func TestCurvesAreSorted(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	r.Results[0], r.Results[3] = r.Results[3], r.Results[0]
	points := chartsOf([]labelled{{Report: r}})[0].curves[0].points
	for i := range points[1:] {
		require.Less(t, points[i].Bytes, points[i+1].Bytes)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := json.Marshal(sampleReport())
	require.NoError(t, err)
	in, page, plots := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.html"), filepath.Join(dir, "plots")
	require.NoError(t, os.WriteFile(in, b, 0o600))
	require.Empty(t, output(t, "report", in, "-o", page, "--svg", plots, "--png", plots))

	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), in+": a busy &lt;machine&gt;", "a warning names its file")
	for _, outside := range []string{"http://", "https://", "src=", "@import", "<link"} {
		// The name space of SVG is a name, not an address.
		require.NotContains(t, strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", ""), outside, "the page has everything within")
	}
	for _, name := range []string{"latency-shm", "latency-tcp", "bandwidth-shm", "bandwidth-tcp", "allreduce-4-ranks-shm"} {
		f, err := os.Open(filepath.Join(plots, name+".png"))
		require.NoError(t, err)
		image, err := png.Decode(f)
		require.NoError(t, err, name)
		require.Greater(t, image.Bounds().Dx(), 400)
		require.Greater(t, coloursOf(image), 20, "%s has lines and words", name)
		require.NoError(t, f.Close())
		f, err = os.Open(filepath.Join(plots, name+".svg"))
		require.NoError(t, err)
		for d := xml.NewDecoder(f); ; {
			if _, err = d.Token(); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, io.EOF, name)
		require.NoError(t, f.Close())
	}
	entries, err := os.ReadDir(plots)
	require.NoError(t, err)
	require.Len(t, entries, 10)

	require.Regexp(t, `<span class="met">≤ 1×</span>`, string(text))
	require.True(t, bytes.HasPrefix(output(t, "report", in, "-o", "-"), []byte("<!DOCTYPE html>")))
	output(t, "report", "one="+in, "two="+in, "-o", page)
	text, err = os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "one shm mpich mpi")
}

func coloursOf(p image.Image) int {
	seen := map[color.Color]bool{}
	for y := range p.Bounds().Dy() {
		for x := range p.Bounds().Dx() {
			seen[p.At(x, y)] = true
		}
	}
	return len(seen)
}

// Axes and figures are as they are asked for.
func TestDraw(t *testing.T) {
	t.Parallel()
	c := chartsOf([]labelled{{Report: sampleReport()}})[0]
	picture := func(figure string, legend bool) string {
		var b strings.Builder
		require.NoError(t, c.draw(figure, legend).svg(&b))
		return b.String()
	}
	usual := picture("p50", false)
	require.NotContains(t, usual, "NaN")
	require.Equal(t, 4, strings.Count(usual, `stroke-width="1.8"`), "a line for each curve")
	require.Equal(t, 14, strings.Count(usual, "<circle"))
	require.Contains(t, usual, "p99.9  ")
	require.NotEqual(t, usual, picture("p99", false))
	require.NotEqual(t, usual, picture("p50", true))
	_, status := fails(t, "report", "x.json", "--figure", "p42")
	require.Equal(t, exitUsage, status)

	// One size, and one figure.
	one := chart{subject: subject{pattern: patternLat, unit: unitLatency}, curves: []curve{{name: "a", points: []*Result{{Bytes: 8, P50: 100}}}, {name: "b", points: []*Result{{Bytes: 8}}}}}
	var b strings.Builder
	require.NoError(t, one.draw("p50", false).svg(&b))
	require.NotContains(t, b.String(), "NaN")
	require.Equal(t, 1, strings.Count(b.String(), "<circle"))
}

func TestTicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		axis axis
		base float64
		want []float64
	}{
		{axis{lo: 8, hi: 128}, 2, []float64{8, 16, 32, 64, 128}},
		{axis{lo: 90, hi: 1200}, 10, []float64{100, 200, 500, 1000}},
		{axis{lo: 1, hi: 1e7}, 10, []float64{1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7}},
	} {
		require.InDeltaSlice(t, c.want, c.axis.ticks(c.base), 1e-6)
	}
	require.LessOrEqual(t, len((&axis{lo: 0.5, hi: 1 << 22}).ticks(2)), 13)
}

// --html writes the page of what has just been measured.
func TestHTML(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "r.html")
	output(t, append([]string{"verbs", "lat", "--provider", "tcp", "--sizes", "8", "--html", page}, tiny...)...)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "tcp sluice verbs")
}

func TestReportRefuses(t *testing.T) {
	t.Parallel()
	good, err := json.Marshal(sampleReport())
	require.NoError(t, err)
	for name, c := range map[string]struct{ text, why string }{
		"no JSON":         {"results", "no JSON of bench"},
		"another version": {`{"schema":"sluice-bench/2"}`, `its schema is "sluice-bench/2"`},
		"nonsense":        {strings.Replace(string(good), `"unit":"ns"`, `"unit":"h"`, 1), `result 0: unit "h" does not fit lat`},
	} {
		_, err := parseReport("r.json", strings.NewReader(c.text))
		var r *ReportError
		require.True(t, errors.As(err, &r), name)
		require.Equal(t, "r.json", r.File)
		require.Contains(t, r.Error(), c.why)
	}
	r, err := parseReport("r.json", bytes.NewReader(good))
	require.NoError(t, err)
	require.Len(t, r.Results, 18)
	said, status := fails(t, "report", filepath.Join(t.TempDir(), "nosuch.json"))
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "nosuch.json")
}

// Any file may be given as a report: what is none is refused, and what is taken can be shown.
func FuzzParseReport(f *testing.F) {
	good, err := json.Marshal(sampleReport())
	require.NoError(f, err)
	f.Add(string(good))
	f.Add(`{"schema":"sluice-bench/1","environment":{},"results":[]}`)
	f.Add(`{"schema":"sluice-bench/1","results":[{"pattern":"lat","layer":"</script>","provider":"&","peer":"<","unit":"ns","samples":1}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReport("fuzz", strings.NewReader(text))
		if err != nil {
			return
		}
		var page bytes.Buffer
		require.NoError(t, writePage(&page, []labelled{{Report: r}}, "p50"))
		require.Equal(t, 1, strings.Count(page.String(), "</script>"), "nothing gets out of the data")
	})
}
