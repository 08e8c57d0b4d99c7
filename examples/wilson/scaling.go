package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// scale is what runs on one number of nodes have measured: medians, in seconds.
type scale struct {
	nodes              int
	solve, application float64
}

// scaling prints, and draws into the file of -scaling, how the solution of one lattice becomes faster with the
// number of nodes. The reports are files that -json has written, several for a number of nodes if there are.
func scaling(w io.Writer, path string, reports []string) error {
	list, title, err := readScales(reports)
	if err != nil {
		return err
	}
	first := list[0]
	efficiency := func(from, to float64, nodes int) float64 {
		return from * float64(first.nodes) / (to * float64(nodes))
	}
	fmt.Fprintln(w, title)
	fmt.Fprintln(w, "nodes  iteration, efficiency   application, efficiency")
	for _, s := range list {
		fmt.Fprintf(w, "%5d  %s, %.2f   %s, %.2f\n", s.nodes, micro(s.solve), efficiency(first.solve, s.solve, s.nodes), micro(s.application), efficiency(first.application, s.application, s.nodes))
	}
	return plotScales(path, title, list)
}

// readScales reads reports, of one lattice, and returns one scale for each number of nodes, the smallest first.
func readScales(paths []string) (list []scale, title string, err error) {
	var lattice string
	of := map[int][]scale{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, "", err
		}
		var r report
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, "", fmt.Errorf("%s: it is no report of -json: %w", path, err)
		}
		nodes, iterations := r.Geometry.Product(), len(r.Residuals)-1
		if r.Times == nil || nodes < 1 || iterations < 1 || !(r.Times.Solve > 0) || !(r.Times.Application > 0) {
			return nil, "", fmt.Errorf("%s: it has no times of a solution", path)
		}
		if l := r.Lattice.String(); lattice == "" {
			lattice = l
		} else if l != lattice {
			return nil, "", fmt.Errorf("%s: its lattice is %s, that of %s is %s; draw them apart", path, l, paths[0], lattice)
		}
		of[nodes] = append(of[nodes], scale{nodes, r.Times.Solve / float64(iterations), r.Times.Application})
	}
	for nodes, runs := range of {
		median := func(value func(scale) float64) float64 {
			slices.SortFunc(runs, func(a, b scale) int { return cmp.Compare(value(a), value(b)) })
			return (value(runs[(len(runs)-1)/2]) + value(runs[len(runs)/2])) / 2
		}
		list = append(list, scale{nodes,
			median(func(s scale) float64 { return s.solve }), median(func(s scale) float64 { return s.application })})
	}
	slices.SortFunc(list, func(a, b scale) int { return cmp.Compare(a.nodes, b.nodes) })
	return list, "Strong scaling, lattice " + lattice, nil
}

// plotScales draws how many times faster than on the smallest number of nodes an iteration is, and an
// application of the operator, and a line where both would be without any cost.
func plotScales(path, title string, list []scale) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "nodes", "times as fast"
	p.Legend.Top, p.Legend.Left = true, true
	first := list[0]
	var iteration, application, ideal plotter.XYs
	for _, s := range list {
		x := float64(s.nodes)
		iteration = append(iteration, plotter.XY{X: x, Y: first.solve / s.solve})
		application = append(application, plotter.XY{X: x, Y: first.application / s.application})
		ideal = append(ideal, plotter.XY{X: x, Y: x / float64(first.nodes)})
	}
	line, err := dashed(ideal)
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), line)
	p.Legend.Add("ideal", line)
	for _, series := range []struct {
		name   string
		colour color.Color
		points plotter.XYs
	}{{"application of D", orange, application}, {"iteration of the solver", blue, iteration}} {
		l, points, err := plotter.NewLinePoints(series.points)
		if err != nil {
			return err
		}
		l.Color, points.Color = series.colour, series.colour
		points.Shape, points.Radius = draw.CircleGlyph{}, vg.Points(3)
		p.Add(l, points)
		p.Legend.Add(series.name, l, points)
	}
	return savePlot(p, path)
}
