package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch"
)

// placement is the flags of run that say where which programs run.
type placement struct {
	list, file, shell string
	mapBy             mapping
	copy              bool
	silence           time.Duration
	one               programFlags
}

type mapping int

// programFlags are those that each of several programs may have for itself.
type programFlags struct {
	size int
	set  []string
	dir  string
}

func (p *programFlags) add(flags *pflag.FlagSet) {
	flags.IntVarP(&p.size, "ranks", "n", 1, "`number` of processes; with -H or --hostfile, all slots if it is not given")
	flags.StringArrayVarP(&p.set, "export", "x", nil, "`NAME[=VALUE]` of a variable that ranks have on all hosts; without a value that of sluice. Those whose names begin with SLUICE_ or COLL_ are passed on anyway")
	flags.StringVar(&p.dir, "wdir", "", "`folder` in which the program runs, on all hosts; otherwise that of sluice, or, on a host that has not got it, that in which the agent starts")
}

func (p *placement) add(flags *pflag.FlagSet) {
	flags.StringVarP(&p.list, "host", "H", "", "hosts and their slots, as in `a:4,b:4`; without a number one slot")
	flags.StringVar(&p.file, "hostfile", "", "`file` with a host on each line, and slots=N after it")
	flags.Var(&choice[mapping]{&p.mapBy, []string{"slot", "node"}}, "map-by", "slot: fill one host after another. node: deal ranks out to the hosts in turn")
	flags.StringVar(&p.shell, "rsh", "", "`command` that runs a command on a host, in place of ssh: its arguments are followed by host and command")
	flags.BoolVar(&p.copy, "copy", false, "send sluice and the programs to hosts that do not have them, into a temporary folder that is removed at the end")
	flags.DurationVar(&p.silence, "host-timeout", launch.DefaultSilence, "`duration` for which a host may not answer before it counts as lost; 0: for ever")
}

// apply puts the flags, and the programs that the arguments name, into the options.
func (p *placement) apply(cmd *cobra.Command, o *launch.Options, args []string) error {
	programs, err := p.programs(cmd, args)
	if err != nil {
		return err
	}
	o.Size, o.Args, o.Set, o.Dir, o.More = programs[0].Size, programs[0].Args, programs[0].Set, programs[0].Dir, programs[1:]
	h := &launch.Hosts{ByNode: p.mapBy == 1, Shell: strings.Fields(p.shell), Copy: p.copy, Silence: p.silence}
	if p.silence == 0 {
		h.Silence = -1
	}
	switch {
	case p.silence < 0:
		return fmt.Errorf("--host-timeout is %v, want 0 or more", p.silence)
	case cmd.Flags().Changed("host") && cmd.Flags().Changed("hostfile"):
		return errors.New("both --host and --hostfile are given: give one of them")
	case cmd.Flags().Changed("host"): // an empty list is an error: of a variable that is not set
		h.List, err = launch.ParseHosts(p.list)
	case cmd.Flags().Changed("hostfile"):
		h.List, err = readHostfile(p.file)
	}
	if err != nil {
		return err
	}
	slots, err := allocate(h)
	if err != nil {
		return err
	}
	if len(h.List) > 0 {
		o.Hosts, slots = h, h.Slots()
	}
	if slots > 0 && len(programs) == 1 && !cmd.Flags().Changed("ranks") {
		o.Size = slots
	}
	return nil
}

// allocate heeds the allocation of a batch system in which sluice runs: without hosts these are its nodes, or,
// if that is only this one, so many slots are here; and srun reaches all nodes of Slurm's.
func allocate(h *launch.Hosts) (here int, err error) {
	nodes, slurm, err := boot.Allocation()
	switch {
	case err != nil:
		return 0, err
	case len(h.List) > 0:
	case len(nodes) == 1 && nodes[0].Here:
		return nodes[0].Slots, nil
	default:
		for _, n := range nodes {
			h.List = append(h.List, launch.Host{Name: n.Name, Slots: n.Slots})
		}
	}
	h.Slurm = slurm && len(h.Shell) == 0
	for i := range h.List {
		k := slices.IndexFunc(nodes, func(n boot.Node) bool { return n.Name == h.List[i].Name })
		h.Slurm = h.Slurm && k >= 0
		h.List[i].Here = k >= 0 && nodes[k].Here
	}
	return 0, nil
}

func readHostfile(path string) ([]launch.Host, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := launch.ReadHosts(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return list, err
}

// programs cuts the arguments up where a word is a colon: what follows are flags and a program again.
func (p *placement) programs(cmd *cobra.Command, args []string) (list []launch.Program, err error) {
	one := p.one
	for rest := args; ; {
		i := slices.Index(rest, ":")
		words, more := rest, i >= 0
		if more {
			words = rest[:i]
		}
		if len(words) == 0 {
			return nil, errors.New("no program to run is given beside a colon")
		}
		set, err := variables(one.set)
		if err != nil {
			return nil, err
		}
		list = append(list, launch.Program{Size: one.size, Args: words, Set: set, Dir: one.dir})
		if !more {
			return list, nil
		}
		one = programFlags{}
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		flags.SetInterspersed(false)
		flags.SetOutput(io.Discard)
		flags.Usage = func() {}
		one.add(flags)
		next := rest[i+1:]
		end := slices.Index(next, ":")
		if end < 0 {
			end = len(next)
		}
		if err := flags.Parse(next[:end]); err != nil {
			return nil, fmt.Errorf("after a colon, where -n, -x and --wdir may stand: %w", inWords(err))
		}
		rest = next[end-flags.NArg():]
	}
}

// variables gives those that have none the value that they have here.
func variables(list []string) (set []string, err error) {
	for _, v := range list {
		name, _, given := strings.Cut(v, "=")
		if name == "" {
			return nil, fmt.Errorf("-x %q names no variable", v)
		}
		if !given {
			value, ok := os.LookupEnv(name)
			if !ok {
				return nil, fmt.Errorf("-x %s: it is not set here: set it, or give -x %s=VALUE", name, name)
			}
			v = name + "=" + value
		}
		set = append(set, v)
	}
	return set, nil
}
