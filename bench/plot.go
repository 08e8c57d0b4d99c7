package main

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// plotColours are those of Okabe and Ito, which those who see few colours tell apart.
var plotColours = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.RGBA{0x8a, 0x6d, 0x00, 0xff}, color.RGBA{0x7f, 0x7f, 0x7f, 0xff},
}

// plotAll writes a file for each chart, and one of the ratios where there are any.
func plotAll(dir, format, by string, reports []labelled) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var taken []string
	// Names that differ only in what a file's name cannot have are numbered.
	path := func(title string) string {
		name := strings.Trim(strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r) {
				return r
			}
			return '-'
		}, strings.ToLower(title)), "-")
		name = strings.Join(strings.FieldsFunc(name, func(r rune) bool { return r == '-' }), "-")
		for n, base := 2, name; slices.Contains(taken, name); n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		taken = append(taken, name)
		return filepath.Join(dir, name+"."+format)
	}
	for _, whole := range chartsOf(reports) {
		parts := []chart{whole}
		switch by {
		case byProvider:
			parts = whole.by(func(c *curve) string { return c.Provider })
		case byPeer:
			parts = whole.by(func(c *curve) string { return c.Peer })
		}
		for _, c := range parts {
			if err := c.plot(path(c.Title())); err != nil {
				return err
			}
		}
	}
	for _, l := range reports {
		if len(l.report.Comparisons) > 0 {
			if err := plotRatios(path("ratios "+l.label), l.report.Comparisons); err != nil {
				return err
			}
		}
	}
	return nil
}

// plot draws medians against sizes, both logarithmic, into a file whose name says the
// format.
func (c *chart) plot(path string) error {
	p := plot.New()
	p.Title.Text = c.Title()
	p.X.Label.Text, p.Y.Label.Text = "bytes", c.Unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(sizeTicks), plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size = vg.Points(8)
	p.Add(plotter.NewGrid())
	for i := range c.Curves {
		var points plotter.XYs
		for _, v := range c.Curves[i].Points {
			if v.P50 > 0 { // 0 has no logarithm
				points = append(points, plotter.XY{X: math.Max(float64(v.Bytes), emptySize), Y: v.P50})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		line.Color, dots.Color = plotColours[i%len(plotColours)], plotColours[i%len(plotColours)]
		line.Dashes = []vg.Length(nil)
		if round := i / len(plotColours); round > 0 {
			line.Dashes = []vg.Length{vg.Points(float64(2 + 2*round)), vg.Points(2)}
		}
		dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(1.8)
		p.Add(line, dots)
		p.Legend.Add(c.Curves[i].Name, line, dots)
	}
	if p.X.Min >= p.X.Max { // a single size
		p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	}
	if p.Y.Min >= p.Y.Max {
		p.Y.Min, p.Y.Max = p.Y.Min/2, p.Y.Max*2
	}
	p.Y.Max *= math.Pow(1.12, float64(len(c.Curves))) // room for the legend
	return save(p, 16*vg.Centimeter, 11*vg.Centimeter, path)
}

// emptySize is where a message of no bytes is on a logarithmic axis.
const emptySize = 0.5

// sizeTicks are at powers of two, at most a dozen with a label.
func sizeTicks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	first, last := math.Ceil(math.Log2(lo)-1e-9), math.Floor(math.Log2(hi)+1e-9)
	step := math.Max(1, math.Ceil((last-first)/12))
	for e := first; e <= last; e++ {
		t := plot.Tick{Value: math.Exp2(e)}
		if math.Mod(e-first, step) == 0 {
			t.Label = "0"
			if t.Value >= 1 {
				t.Label = formatSize(int64(t.Value))
			}
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// plotRatios draws a bar for each comparison, from 1 on: to the right where we are
// ahead, in red where a bar is missed.
func plotRatios(path string, list []Comparison) error {
	p := plot.New()
	p.Title.Text = "ratios to peers"
	p.X.Label.Text = "times as fast"
	p.X.Tick.Marker = plot.TickerFunc(func(lo, hi float64) []plot.Tick {
		var ticks []plot.Tick
		for e := math.Ceil(lo); e <= hi; e++ {
			ticks = append(ticks, plot.Tick{Value: e, Label: fmt.Sprintf("%g×", math.Exp2(e))})
		}
		return ticks
	})
	names := make([]string, len(list))
	for i := range list {
		c := &list[len(list)-1-i] // the first is on top
		names[i] = c.String()
		ahead := math.Log2(math.Max(c.Ratio, math.SmallestNonzeroFloat64))
		if c.Better == betterLower {
			ahead = -ahead
		}
		bars, err := plotter.NewBarChart(plotter.Values{ahead}, vg.Points(8))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		bars.Horizontal, bars.XMin, bars.LineStyle.Width = true, float64(i), 0
		bars.Color = plotColours[7]
		if c.Met != nil && *c.Met {
			bars.Color = plotColours[2]
		} else if c.Met != nil {
			bars.Color = plotColours[1]
		}
		p.Add(bars)
	}
	p.Add(plotter.NewGrid())
	p.NominalY(names...)
	return save(p, 20*vg.Centimeter, vg.Length(len(list)+6)*vg.Points(13), path)
}

// save writes a plot into a file.
func save(p *plot.Plot, w, h vg.Length, path string) (err error) {
	image, err := p.WriterTo(w, h, strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = image.WriteTo(f)
	return errors.Join(err, f.Close())
}
