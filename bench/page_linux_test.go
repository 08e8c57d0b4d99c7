package main

import (
	"encoding/json"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestPageInBrowser: the page of a report works in a browser: without a network and
// without an error it shows every series, and does what its controls say.
func TestPageInBrowser(t *testing.T) {
	need.Long(t) // it starts a browser
	path := filepath.Join(t.TempDir(), "bench.html")
	reports := []labelled{{Report: sampleReport()}}
	require.NoError(t, writeFile(path, func(w io.Writer) error { return writePage(w, reports, "p50") }))
	b := startBrowser(t)
	b.open("file://" + path)

	texts := func(expression string) (list []string) {
		b.eval(expression, &list)
		return list
	}
	count := func(selector string) (n int) {
		b.eval("document.querySelectorAll("+quote(selector)+").length", &n)
		return n
	}
	shown := `.filter((e) => e.checkVisibility())`
	charts := `[...document.querySelectorAll("#charts figure")]` + shown + `.map((f) => f.dataset.chart)`
	curves := `[...document.querySelectorAll("#charts polyline[data-series]")]` + shown + `.map((l) => l.dataset.series)`
	var want, titles []string
	points := 0
	for _, part := range divided(chartsOf(reports), byProvider) {
		titles = append(titles, part.title())
		for _, s := range part.curves {
			want = append(want, s.name)
			points += len(s.points)
		}
	}
	require.Equal(t, titles, texts(charts))
	require.Equal(t, want, texts(curves), "every series is there")
	require.Equal(t, 3*points, count("#charts circle"), "every point is, by provider, by peer, and all in one")
	require.Equal(t, len(reports[0].Report.Results), count(".results tbody tr"))
	require.Equal(t, len(reports[0].Report.Comparisons), count(".ratios tbody tr"))
	var body string
	b.eval("document.body.innerText", &body)
	for _, part := range []string{"an EPYC", "busy <machine>", "not measured: ibv"} {
		require.Contains(t, body, part)
	}

	// Figures under the pointer.
	var tip string
	b.eval(`(() => { document.querySelector("#charts circle").dispatchEvent(new PointerEvent("pointermove", {clientX: 50, clientY: 50, bubbles: true}));
		const tip = document.getElementById("tip"); return tip.hidden ? "" : tip.textContent; })()`, &tip)
	require.Contains(t, tip, want[0])
	require.Contains(t, tip, "p99.9")
	b.eval(`(() => { document.body.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
		return document.getElementById("tip").hidden ? "" : "still there"; })()`, &tip)
	require.Empty(t, tip)

	// A series switched off, and on again.
	toggle := `(() => { [...document.querySelectorAll(".legend button")].find((e) => e.textContent === ` + quote(want[0]) + `).click(); return ""; })()`
	var none string
	b.eval(toggle, &none)
	require.NotContains(t, texts(curves), want[0])
	b.eval(toggle, &none)
	require.Equal(t, want, texts(curves))

	// What charts are divided by.
	set := func(id, value string) {
		b.eval(`(() => { const e = document.getElementById(`+quote(id)+`); e.value = `+quote(value)+
			`; e.dispatchEvent(new Event("change")); return ""; })()`, &none)
	}
	set("by", "peer")
	require.Contains(t, texts(charts), "latency, mpich")
	set("by", "all")
	require.Equal(t, []string{"latency", "bandwidth", "allreduce, 4 ranks"}, texts(charts))

	require.Empty(t, b.wrong)
	require.Equal(t, []string{"file://" + path}, b.asked, "nothing else is asked for")
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
