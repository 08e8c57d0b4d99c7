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

// perSource in the name of an output stands for a source id: one file for each.
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
				return &usageError{cmd, errors.New("no --out")}
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
	flags.StringVar(&out, "out", "", "event `file` to write, or - for standard output; with "+perSource+" in it one for each source")
	flags.IntVar(&c.Events, "events", c.Events, "`number` of events in a file")
	flags.IntVar(&c.Sources, "sources", c.Sources, "`number` of sources that they are of")
	flags.Uint32Var(&c.FirstSource, "first-source", 0, "the lowest source `id`")
	flags.Float64Var(&c.Rate, "rate", c.Rate, "`events/s` in a file, at random times")
	flags.Var(&c.Size, "size", "bytes of the bodies of events: all the same, uniform, or exponential")
	flags.Uint64Var(&c.Seed, "seed", 0, "another `number` makes another file")
	flags.IntVar(&version, "version", version, "`11|12`, of NSCLDAQ")
	flags.Uint32Var(&c.Run, "run", 0, "`number` of the run")
	flags.IntVar(&c.Extension, "extension", 0, "`bytes` of extension in body headers")
	flags.IntVar(&c.NullEvery, "null-every", 0, "one event in this `number` has the null timestamp; 0: none")
	flags.IntVar(&c.ScalerEvery, "scaler-every", 0, "an item of scalers after each such `number` of events; 0: none")
	flags.Var(&choice[eventgen.Damage]{&c.Damage, eventgen.DamageNames()}, "damage", "how the file is broken: cut off, or a size that cannot be")
	flags.IntVar(&c.DamageItem, "damage-item", 0, "`index` of the item with which it is")
	flags.BoolVar(&pace, "pace", false, "write each event at its time, for a reader that waits; else as fast as can be")
	return cmd
}

const generateHelp = `Generate writes an event file: RING_FORMAT, BEGIN_RUN, the events, END_RUN. It
depends on nothing but the flags. The timestamps are nanoseconds; the body of an
event is its number in the file, 64 bits, little-endian, and then noise.

Like that of fanout, the output has its name when it is complete.`

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
