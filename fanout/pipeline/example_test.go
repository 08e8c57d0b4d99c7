package pipeline_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// Two files of one detector each are merged by time; events without a body are dropped,
// and the others get the length of theirs as an extension of the body header.
func Example() {
	event := func(timestamp uint64, source uint32, body string) []byte {
		it := ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Header: ring.Header{Timestamp: timestamp, SourceID: source}, Body: []byte(body)}
		return it.Append(nil, ring.V12)
	}
	first := bytes.Join([][]byte{event(10, 1, "a"), event(30, 1, "bc"), event(40, 1, "")}, nil)
	second := bytes.Join([][]byte{event(20, 2, "def"), event(30, 2, "g")}, nil)

	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{
			pipeline.File(bytes.NewReader(first), pipeline.FileOptions{Clump: 2}).Next,
			pipeline.File(bytes.NewReader(second), pipeline.FileOptions{Clump: 2}).Next,
		},
		Workers: 2,
		NewWorker: func(context.Context, int) (pipeline.Worker, error) {
			return pipeline.Items(ring.V12, 0, func(it *ring.Item) (keep bool, err error) {
				it.Header.Extension = []byte{byte(len(it.Body))}
				return len(it.Body) > 0, nil
			}), nil
		},
		Sink: func(_ context.Context, items []byte) error {
			for e, err := range ring.Entries(items, 0) {
				if err != nil {
					return err
				}
				fmt.Println(e.Timestamp, e.Item.Header.SourceID, e.Item.Header.Extension, string(e.Item.Body))
			}
			return nil
		},
	})
	if err == nil {
		err = p.Run(context.Background())
	}
	fmt.Println(err)
	// Output:
	// 10 1 [1] a
	// 20 2 [3] def
	// 30 1 [2] bc
	// 30 2 [1] g
	// <nil>
}
