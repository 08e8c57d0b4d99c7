package main

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotResiduals draws the history of the residual, its logarithm over iterations, and a
// line at the tolerance, into a file whose name says the format: .svg or .png.
func plotResiduals(path, title string, residuals []float64, tolerance float64) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err = drawResiduals(file, filepath.Ext(path), title, residuals, tolerance); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if e := file.Close(); err == nil {
		err = e
	}
	return err
}

func drawResiduals(w io.Writer, format, title string, residuals []float64, tolerance float64) error {
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
		return fmt.Errorf("no residual to draw")
	}
	history, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	history.Color = color.RGBA{R: 0x1f, G: 0x4e, B: 0x9e, A: 0xff}
	goal, err := plotter.NewLine(plotter.XYs{{X: 0, Y: tolerance}, {X: float64(len(residuals) - 1), Y: tolerance}})
	if err != nil {
		return err
	}
	goal.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(plotter.NewGrid(), goal, history)
	image, err := p.WriterTo(16*vg.Centimeter, 10*vg.Centimeter, strings.TrimPrefix(strings.ToLower(format), "."))
	if err != nil {
		return err
	}
	_, err = image.WriteTo(w)
	return err
}
