package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotResiduals draws the history of the residual, its logarithm over iterations, and a
// line at the tolerance, into a file whose name says the format: .svg or .png.
func plotResiduals(path, title string, residuals []float64, tolerance float64) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "iteration", "‖b - D·x‖ / ‖b‖"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: 1}
	points := make(plotter.XYs, 0, len(residuals))
	for i, r := range residuals {
		if r > 0 { // 0, of b = 0, has no logarithm
			points = append(points, plotter.XY{X: float64(i), Y: r})
		}
	}
	if len(points) == 0 {
		return fmt.Errorf("%s: no residual to draw", path)
	}
	history, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	history.Color = blue
	goal, err := dashed(plotter.XYs{{X: 0, Y: tolerance}, {X: float64(len(residuals) - 1), Y: tolerance}})
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), goal, history)
	return savePlot(p, path)
}

var (
	blue   = color.RGBA{R: 0x1f, G: 0x4e, B: 0x9e, A: 0xff}
	orange = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
)

func dashed(points plotter.XYs) (*plotter.Line, error) {
	l, err := plotter.NewLine(points)
	if err == nil {
		l.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	return l, err
}

// savePlot writes a plot into a file whose name says the format.
func savePlot(p *plot.Plot, path string) (err error) {
	image, err := p.WriterTo(16*vg.Centimeter, 10*vg.Centimeter, strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), "."))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = image.WriteTo(file); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if e := file.Close(); err == nil {
		err = e
	}
	return err
}
