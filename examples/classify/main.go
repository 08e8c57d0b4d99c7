// Classify is an example of a worker for event files: it drops events that are too small,
// gives the others a class, and writes that into an extension of their body headers. All
// other items stay as they are.
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

// classes are from which mean of its bytes on an event is of which class.
var classes = []uint32{0, 100, 120, 128, 136}

// classifier is what one worker has.
type classifier struct {
	least     int    // bytes of the body of an event that is kept
	extension []byte // of the event that is written
}

// item classifies an item, and says whether it is kept. An extension that there is
// already comes before the class.
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
	least := pflag.Int("least", 16, "`bytes` of the body of an event that is kept")
	asFilter := pflag.Bool("filter", false, "be a filter of sluice fanout")
	pflag.Parse()
	if *asFilter {
		return serve(*least)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return classify(ctx, *in, *out, *workers, *least)
}

// classify has goroutines do the work.
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
		// A signal ends the reading, and what was read is written.
		defer context.AfterFunc(ctx, p.Drain)()
		err = p.Run(context.WithoutCancel(ctx))
	}
	var damage *ring.DamageError
	if err != nil && !errors.As(err, &damage) {
		return errors.Join(err, o.Discard())
	}
	return errors.Join(err, o.Commit())
}

// serve is the worker as a process of its own: frames of items on standard input, the
// answers on standard output.
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
