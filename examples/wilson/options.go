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

// options are the command-line options.
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

	scaling string
	reports []string // that scaling draws
}

// Values of -start and -source.
const (
	startCold    = "cold"
	startHot     = "hot"
	sourcePoint  = "point"
	sourceRandom = "random"
)

// defaultExtents are the extents of the lattice without -lattice and -in.
var defaultExtents = lattice.Dims{8, 8, 8, 8}

func newFlags(o *options) *flag.FlagSet {
	f := flag.NewFlagSet("wilson", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("lattice", "`extents` along x, y, z, t, such as 8x8x8x16 (default: those of the -in file, or "+defaultExtents.String()+")", func(s string) (err error) {
		o.extents, err = lattice.ParseDims(s)
		return err
	})
	f.Func("geom", "`nodes` along x, y, z, t, such as 1x1x2x4 (default: the grid with the smallest surface)", func(s string) (err error) {
		o.geometry, err = lattice.ParseDims(s)
		return err
	})
	f.StringVar(&o.in, "in", "", "read the gauge field from this `file`, in NERSC's archive format")
	f.StringVar(&o.start, "start", startHot, "start with a `field` whose links are all 1 (cold) or random (hot)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the random numbers")
	f.Float64Var(&o.beta, "beta", 6, "coupling of the heat-bath")
	f.IntVar(&o.sweeps, "sweeps", 0, "number of sweeps of the heat-bath")
	f.StringVar(&o.out, "out", "", "write the gauge field to this `file`")
	o.format = nersc.Format{Bits: 64, Order: nersc.Big}
	f.Func("format", "format of the numbers written: IEEE32 or IEEE64, either with BIG or LITTLE (default IEEE64BIG)", func(s string) error {
		var ok bool
		if o.format, ok = nersc.ParseFormat(s); !ok {
			return errors.New("it is not a number format: use IEEE32 or IEEE64, with BIG or LITTLE")
		}
		return nil
	})
	f.IntVar(&o.rows, "rows", 3, "rows of each link written: 3, or 2, from which the third follows")
	f.Float64Var(&o.kappa, "kappa", 0.12, "hopping parameter; 0: solve nothing")
	f.BoolVar(&o.periodic, "periodic", false, "spinors are periodic along t, not antiperiodic")
	f.StringVar(&o.source, "source", sourcePoint, "`b` of D·x = b: one at the origin (point), or random")
	f.Float64Var(&o.tolerance, "tolerance", 1e-10, "‖b - D·x‖ / ‖b‖ to reach; also the allowed error of the links and averages of -in, up to 1e-5")
	f.IntVar(&o.maxIterations, "max-iterations", 2000, "largest number of iterations of the conjugate gradient")
	f.Func("sums", "sums over sites and nodes: exact, sites (each site is rounded) or plain, which depends on the grid (default exact)", func(s string) error {
		var ok bool
		if o.sumKind, ok = global.Kinds[s]; !ok {
			return errors.New("it must be exact, sites or plain")
		}
		return nil
	})
	f.BoolVar(&o.selfMessages, "self-messages", false, "also send messages along axes that are not divided")
	f.StringVar(&o.plot, "plot", "", "draw the history of the residual into this `file`, .svg or .png")
	f.StringVar(&o.json, "json", "", "write the measurements into this `file`")
	f.StringVar(&o.scaling, "scaling", "", "compute nothing, but draw into this `file`, .svg or .png, how times depend on the number of nodes; the arguments are files of -json")
	return f
}

func oneOf(value string, values ...string) error {
	for _, v := range values {
		if v == value {
			return nil
		}
	}
	return fmt.Errorf("it must be %s", strings.Join(values, " or "))
}

// usage is the text of -help.
func usage() string {
	var b strings.Builder
	b.WriteString("Usage: wilson [options]\n\n")
	f := newFlags(&options{})
	f.SetOutput(&b)
	f.PrintDefaults()
	b.WriteString("\nOptions that begin with -qmp- belong to package qmp.\n")
	return b.String()
}

// parseOptions parses a command line. The error is flag.ErrHelp if help was requested.
func parseOptions(args []string) (*options, error) {
	var o options
	f := newFlags(&o)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.reports = f.Args(); o.scaling == "" && f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: wilson takes only options", f.Arg(0))
	}
	bad := func(flag string, err error) (*options, error) { return nil, fmt.Errorf("-%s: %w", flag, err) }
	if err := oneOf(o.start, startCold, startHot); err != nil {
		return bad("start", err)
	}
	if err := oneOf(o.source, sourcePoint, sourceRandom); err != nil {
		return bad("source", err)
	}
	for flag, path := range map[string]string{"plot": o.plot, "scaling": o.scaling} {
		if path == "" {
			continue
		}
		if err := oneOf(strings.ToLower(filepath.Ext(path)), ".svg", ".png"); err != nil {
			return bad(flag, err)
		}
	}
	if o.scaling != "" && len(o.reports) == 0 {
		return bad("scaling", errors.New("it needs files that -json has written, as arguments"))
	}
	for _, c := range []struct {
		flag string
		ok   bool
		must string
	}{
		{"beta", o.beta >= 0 && o.beta <= 1e6, "it must be from 0 to 1e6"},
		{"sweeps", o.sweeps >= 0 && o.sweeps <= 1<<30, "it must be from 0 to 2^30"},
		{"rows", o.rows == 2 || o.rows == 3, "it must be 2 or 3"},
		{"kappa", o.kappa >= 0 && o.kappa <= 1, "it must be from 0 to 1"},
		{"tolerance", o.tolerance > 0 && o.tolerance < 1, "it must be between 0 and 1"},
		{"max-iterations", o.maxIterations >= 1 && o.maxIterations <= 1<<24, "it must be from 1 to 2^24"},
	} {
		if !c.ok {
			return bad(c.flag, errors.New(c.must))
		}
	}
	return &o, nil
}
