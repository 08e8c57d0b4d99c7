package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// perSource in the name of an output stands for the source id: one file for each source.
const perSource = "%d"

func newGenerate() *cobra.Command {
	c := eventgen.Config{Version: ring.V12, Events: 10_000, Sources: 1, Rate: eventgen.DefaultRate}
	version := int(c.Version)
	var out string
	var pace bool
	cmd := &cobra.Command{
		Use:   "generate --out FILE [flags]",
		Short: "Make an event file of ring items, for tests and measurements",
		Long:  generateHelp,
		Example: `  sluice generate --out run.evt
  sluice generate --events 1000000 --sources 3 --size exp:1024 --out run-%d.evt
  sluice generate --events 1000 --damage cut --damage-item 500 --out cut.evt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Version = ring.Version(version)
			if out == "" {
				return &usageError{cmd, errors.New("no --out is given")}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err := generate(ctx, cmd, out, c, pace)
			if errors.Is(err, eventgen.ErrConfig) {
				return &usageError{cmd, err}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&out, "out", "", "event `file` to write, or - for standard output; with "+perSource+" in the name, one file for each source")
	flags.IntVar(&c.Events, "events", c.Events, "`number` of events in a file")
	flags.IntVar(&c.Sources, "sources", c.Sources, "`number` of sources that the events come from")
	flags.Uint32Var(&c.FirstSource, "first-source", 0, "the lowest source `id`")
	flags.Float64Var(&c.Rate, "rate", c.Rate, "`events/s` in a file, at random times")
	flags.Var(&c.Size, "size", "size in bytes of event bodies: fixed, uniform, or exponential")
	flags.Uint64Var(&c.Seed, "seed", 0, "seed: each `number` makes a different file")
	flags.IntVar(&version, "version", version, "`11|12`, of NSCLDAQ")
	flags.Uint32Var(&c.Run, "run", 0, "`number` of the run")
	flags.IntVar(&c.Extension, "extension", 0, "`bytes` of extension in body headers")
	flags.IntVar(&c.NullEvery, "null-every", 0, "one event in this `number` has the null timestamp; 0: none")
	flags.IntVar(&c.ScalerEvery, "scaler-every", 0, "write a scaler item after this `number` of events; 0: none")
	flags.Var(&choice[eventgen.Damage]{&c.Damage, eventgen.DamageNames()}, "damage", "how to damage the file: cut it off, or give an item or its header an invalid size")
	flags.IntVar(&c.DamageItem, "damage-item", 0, "`index` of the damaged item")
	flags.BoolVar(&pace, "pace", false, "write each event at its time, for a reader that follows; default: as fast as possible")
	return cmd
}

const generateHelp = `Generate writes an event file: RING_FORMAT, BEGIN_RUN, the events, END_RUN. The
file depends only on the flags. The timestamps are in nanoseconds; the body of an
event is its number in the file, 64 bits, little-endian, followed by noise.

As with fanout, the output gets its name when it is complete.`

func generate(ctx context.Context, cmd *cobra.Command, out string, c eventgen.Config, pace bool) error {
	if !strings.Contains(out, perSource) {
		return generateFile(ctx, cmd, out, c, pace)
	}
	sources := c.Sources
	c.Sources = 1
	for range sources {
		name := strings.ReplaceAll(out, perSource, fmt.Sprint(c.FirstSource))
		if err := generateFile(ctx, cmd, name, c, pace); err != nil {
			return err
		}
		c.FirstSource++
	}
	return nil
}

func generateFile(ctx context.Context, cmd *cobra.Command, name string, c eventgen.Config, pace bool) error {
	if _, err := eventgen.New(c); err != nil {
		return err // before there is a file
	}
	o, err := createOutput(name)
	if err != nil {
		return err
	}
	s, err := eventgen.Write(ctx, o, c, pace)
	if err != nil {
		return errors.Join(err, o.Discard())
	}
	if err := o.Commit(); err != nil {
		return err
	}
	damage := ""
	if s.Damaged >= 0 {
		damage = fmt.Sprintf("; damaged at byte %d", s.Damaged)
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d items, %d bytes%s\n", name, s.Items, s.Bytes, damage)
	return err
}
