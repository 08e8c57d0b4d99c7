// Classify is an example of a worker for event files. It drops events that are too small,
// classifies the others, and writes the class into an extension of their body headers. All
// other items stay unchanged.
//
//	classify --in run.evt --out out.evt --workers 4      # workers are goroutines
//	sluice fanout --in run.evt --out out.evt -- classify --filter
//
// Both write the same bytes.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// classes has the lower bound of each class: an event's class depends on the mean of its bytes.
var classes = []uint32{0, 100, 120, 128, 136}

// classifier is the state of one worker.
type classifier struct {
	least     int    // an event is kept if its body has at least so many bytes
	extension []byte // of the event that is written
}

// item classifies an item, and reports whether it is kept. The class is appended to an existing
// extension.
func (c *classifier) item(it *ring.Item) (keep bool, err error) {
	if it.Type != ring.PhysicsEvent || !it.HasHeader {
		return true, nil
	}
	if len(it.Body) < c.least {
		return false, nil
	}
	c.extension = append(c.extension[:0], it.Header.Extension...)
	c.extension = binary.LittleEndian.AppendUint32(c.extension, class(it.Body))
	it.Header.Extension = c.extension
	return true, nil
}

func class(body []byte) uint32 {
	var sum uint32
	for _, b := range body {
		sum += uint32(b)
	}
	mean := sum / uint32(max(len(body), 1))
	i, found := slices.BinarySearch(classes, mean)
	if !found {
		i--
	}
	return uint32(i)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "classify:", err)
		os.Exit(1)
	}
}

func run() error {
	in := pflag.String("in", "", "event `file` to read")
	out := pflag.String("out", "", "event `file` to write")
	workers := pflag.Int("workers", 2, "`number` of workers")
	least := pflag.Int("least", 16, "keep events whose body has at least so many `bytes`")
	asFilter := pflag.Bool("filter", false, "run as a filter of sluice fanout")
	pflag.Parse()
	if *asFilter {
		return serve(*least)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return classify(ctx, *in, *out, *workers, *least)
}

// classify does the work with goroutines.
func classify(ctx context.Context, in, out string, workers, least int) error {
	file, err := os.Open(in)
	if err != nil {
		return err
	}
	defer file.Close()
	o, err := pipeline.Create(out)
	if err != nil {
		return err
	}
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{pipeline.File(file, pipeline.FileOptions{Name: in}).Next},
		Workers: workers,
		NewWorker: func(context.Context, int) (pipeline.Worker, error) {
			c := &classifier{least: least}
			return pipeline.Items(ring.V12, 0, c.item), nil
		},
		Sink: o.Sink,
	})
	if err == nil {
		// A signal ends the reading; items already read are still written.
		defer context.AfterFunc(ctx, p.Drain)()
		err = p.Run(context.WithoutCancel(ctx))
	}
	var damage *ring.DamageError
	if err != nil && !errors.As(err, &damage) {
		return errors.Join(err, o.Discard())
	}
	return errors.Join(err, o.Commit())
}

// serve runs the worker as a process of its own: it reads frames of items on standard input and
// writes the answers to standard output.
func serve(least int) error {
	c := &classifier{least: least}
	return filter.Serve(os.Stdin, os.Stdout, 0, func(items, out []byte) ([]byte, error) {
		for len(items) > 0 {
			var it ring.Item
			n, err := ring.Parse(&it, items, 0)
			if err != nil {
				return out, err
			}
			items = items[n:]
			if keep, err := c.item(&it); err != nil {
				return out, err
			} else if keep {
				out = it.Append(out, ring.V12)
			}
		}
		return out, nil
	})
}
