package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/nersc"
)

// options are those of the command line.
type options struct {
	extents  lattice.Dims // zero: not given
	geometry lattice.Dims // zero: not given

	in     string
	start  string
	seed   uint64
	beta   float64
	sweeps int
	out    string
	format nersc.Format
	rows   int

	kappa         float64
	periodic      bool
	source        string
	tolerance     float64
	maxIterations int
	sumKind       global.Kind
	selfMessages  bool

	plot string
	json string
}

// Values of -start and -source.
const (
	startCold    = "cold"
	startHot     = "hot"
	sourcePoint  = "point"
	sourceRandom = "random"
)

// defaultExtents are those of a lattice without -lattice and -in.
var defaultExtents = lattice.Dims{8, 8, 8, 8}

func newFlags(o *options) *flag.FlagSet {
	f := flag.NewFlagSet("wilson", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("lattice", "`extents` along x, y, z, t, as 8x8x8x16 (of the file of -in, or "+defaultExtents.String()+")", func(s string) (err error) {
		o.extents, err = lattice.ParseDims(s)
		return err
	})
	f.Func("geom", "`nodes` along x, y, z, t, as 1x1x2x4 (those with the least surface)", func(s string) (err error) {
		o.geometry, err = lattice.ParseDims(s)
		return err
	})
	f.StringVar(&o.in, "in", "", "read the gauge field from this `file`, in NERSC's archive format")
	f.StringVar(&o.start, "start", startHot, "begin with a `field` where all links are 1 (cold) or random (hot)")
	f.Uint64Var(&o.seed, "seed", 1, "of random numbers")
	f.Float64Var(&o.beta, "beta", 6, "coupling of the heat-bath")
	f.IntVar(&o.sweeps, "sweeps", 0, "number of sweeps of the heat-bath")
	f.StringVar(&o.out, "out", "", "write the gauge field to this `file`")
	o.format = nersc.Format{Bits: 64, Order: nersc.Big}
	f.Func("format", "of the numbers written: IEEE32, IEEE64, either with BIG or LITTLE (IEEE64BIG)", func(s string) error {
		var ok bool
		if o.format, ok = nersc.ParseFormat(s); !ok {
			return errors.New("no format of numbers")
		}
		return nil
	})
	f.IntVar(&o.rows, "rows", 3, "of each link written: 3, or 2 of which the third follows")
	f.Float64Var(&o.kappa, "kappa", 0.12, "hopping parameter; 0: solve nothing")
	f.BoolVar(&o.periodic, "periodic", false, "spinors are periodic along t, not antiperiodic")
	f.StringVar(&o.source, "source", sourcePoint, "`b` of D·x = b: one at the origin (point), or random")
	f.Float64Var(&o.tolerance, "tolerance", 1e-10, "‖b - D·x‖ / ‖b‖ to reach; the links and averages of -in may be as far off, too, up to 1e-5")
	f.IntVar(&o.maxIterations, "max-iterations", 2000, "of the conjugate gradient")
	f.Func("sums", "over sites and nodes: exact, sites (each site is rounded) or plain, which depends on the grid (exact)", func(s string) error {
		var ok bool
		if o.sumKind, ok = global.Kinds[s]; !ok {
			return errors.New("it is exact, sites or plain")
		}
		return nil
	})
	f.BoolVar(&o.selfMessages, "self-messages", false, "send messages along axes that are not divided, too")
	f.StringVar(&o.plot, "plot", "", "draw the history of the residual into this `file`, .svg or .png")
	f.StringVar(&o.json, "json", "", "write what was measured into this `file`")
	return f
}

func oneOf(value string, values ...string) error {
	for _, v := range values {
		if v == value {
			return nil
		}
	}
	return fmt.Errorf("it is %s", strings.Join(values, " or "))
}

// usage is the text of -help.
func usage() string {
	var b strings.Builder
	b.WriteString("Usage: wilson [options]\n\n")
	f := newFlags(&options{})
	f.SetOutput(&b)
	f.PrintDefaults()
	b.WriteString("\nOptions that begin with -qmp- are those of package qmp.\n")
	return b.String()
}

// parseOptions reads a command line. The error is flag.ErrHelp where help is asked for.
func parseOptions(args []string) (*options, error) {
	var o options
	f := newFlags(&o)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q: there are no arguments, only options", f.Arg(0))
	}
	bad := func(flag string, err error) (*options, error) { return nil, fmt.Errorf("-%s: %w", flag, err) }
	if err := oneOf(o.start, startCold, startHot); err != nil {
		return bad("start", err)
	}
	if err := oneOf(o.source, sourcePoint, sourceRandom); err != nil {
		return bad("source", err)
	}
	if o.plot != "" {
		if err := oneOf(strings.ToLower(filepath.Ext(o.plot)), ".svg", ".png"); err != nil {
			return bad("plot", err)
		}
	}
	for _, c := range []struct {
		flag string
		ok   bool
		must string
	}{
		{"beta", o.beta >= 0 && o.beta <= 1e6, "it is a number from 0 to 1e6"},
		{"sweeps", o.sweeps >= 0 && o.sweeps <= 1<<30, "it is a number from 0 on"},
		{"rows", o.rows == 2 || o.rows == 3, "it is 2 or 3"},
		{"kappa", o.kappa >= 0 && o.kappa <= 1, "it is a number from 0 to 1"},
		{"tolerance", o.tolerance > 0 && o.tolerance < 1, "it is a number between 0 and 1"},
		{"max-iterations", o.maxIterations >= 1 && o.maxIterations <= 1<<24, "it is a number from 1 on"},
	} {
		if !c.ok {
			return bad(c.flag, errors.New(c.must))
		}
	}
	return &o, nil
}
