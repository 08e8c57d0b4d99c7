package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageInBrowser: the page of a report works in a browser: without a network and
// without an error it shows every series, and does what its controls say.
func TestPageInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a browser")
	}
	path := filepath.Join(t.TempDir(), "bench.html")
	reports := []labelled{{report: sampleReport()}}
	require.NoError(t, writePageFile(path, reports))
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
	charts := `[...document.querySelectorAll("#charts figure")].map((f) => f.dataset.chart)`
	curves := `[...document.querySelectorAll("#charts polyline")].map((l) => l.dataset.curve)`
	var want, byProvider []string
	points := 0
	for _, c := range chartsOf(reports) {
		for _, part := range c.by(func(c *curve) string { return c.Provider }) {
			byProvider = append(byProvider, part.Title())
			for _, s := range part.Curves {
				want = append(want, s.Name)
				points += len(s.Points)
			}
		}
	}
	require.Equal(t, byProvider, texts(charts))
	require.Equal(t, want, texts(curves), "every series is there")
	require.Equal(t, points, count("#charts circle"), "every point is")
	require.Equal(t, len(reports[0].report.Results), count("tbody tr"))
	require.Equal(t, len(reports[0].report.Comparisons), count("#ratios rect"))
	var body string
	b.eval("document.body.innerText", &body)
	for _, part := range []string{"an EPYC", "busy <machine>", "not measured: ibv"} {
		require.Contains(t, body, part)
	}

	// Figures under the pointer.
	var tip string
	b.eval(`(() => { document.querySelector("#charts circle").dispatchEvent(new PointerEvent("pointermove", {clientX: 50, clientY: 50}));
		const tip = document.getElementById("tip"); return tip.hidden ? "" : tip.textContent; })()`, &tip)
	require.Contains(t, tip, want[0])
	require.Contains(t, tip, "p99.9")
	b.eval(`(() => { document.querySelector("#charts circle").dispatchEvent(new PointerEvent("pointerleave"));
		return document.getElementById("tip").hidden ? "" : "still there"; })()`, &tip)
	require.Empty(t, tip)

	// A series switched off, and on again.
	toggle := `(() => { [...document.querySelectorAll(".legend button")].find((e) => e.textContent === ` + quote(want[0]) + `).click(); return ""; })()`
	var none string
	b.eval(toggle, &none)
	require.NotContains(t, texts(curves), want[0])
	b.eval(toggle, &none)
	require.Equal(t, want, texts(curves))

	// Axes, figures, and what charts are divided by.
	set := func(id, value string) {
		b.eval(`(() => { const e = document.getElementById(`+quote(id)+`); if (e.type === "checkbox") e.checked = !e.checked; else e.value = `+quote(value)+
			`; e.dispatchEvent(new Event("change")); return ""; })()`, &none)
	}
	line := `[document.querySelector("#charts polyline").getAttribute("points")]`
	for _, c := range [][2]string{{"logx", ""}, {"logy", ""}, {"figure", "max"}} {
		before := texts(line)
		set(c[0], c[1])
		require.NotEqual(t, before, texts(line), c[0])
		require.Equal(t, want, texts(curves), c[0])
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
