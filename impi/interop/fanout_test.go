package interop

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-hpc/sluice/fanout"
)

// What exchange.c has of fan-out, too.
const fanChunks = 60

var fanLens = []int{1, 100, packetLen, packetLen + 1, 200000}

// fanOut makes one rank fan chunks out to all others. Some of the ranks, perhaps the supplier, are
// C programs. All messages to the supplier's rank belong to it, so no other rank sends meanwhile.
func (p *process) fanOut(supplier int) error {
	if err := p.barrier(); err != nil {
		return err
	}
	var err error
	if p.Rank() == supplier {
		err = p.give()
	} else {
		err = p.pull(supplier)
	}
	if err != nil {
		return err
	}
	return p.barrier()
}

func (p *process) give() error {
	s, err := fanout.NewSupplier(p.Comm)
	if err != nil {
		return err
	}
	for i := range fanChunks {
		b := content(p.Rank(), fanout.TagData, fanLens[i%len(fanLens)])
		if err := s.Send(p.ctx, b[:len(b)/3], b[len(b)/3:]); err != nil {
			return err
		}
	}
	if err := s.End(p.ctx); err != nil {
		return err
	}
	var given uint64
	for _, w := range s.Stats().Workers {
		if given += w.Chunks; w.State != fanout.Ended {
			return fmt.Errorf("rank %d is %v", w.Rank, w.State)
		}
	}
	if given != fanChunks {
		return fmt.Errorf("%d chunks of %d", given, fanChunks)
	}
	return nil
}

func (p *process) pull(supplier int) error {
	c, err := fanout.NewClient(p.Comm, fanout.From(supplier))
	if err != nil {
		return err
	}
	return c.Each(p.ctx, time.Second, func(k fanout.Chunk) error {
		n := len(k.Bytes())
		if !slices.Contains(fanLens, n) || !bytes.Equal(k.Bytes(), content(supplier, fanout.TagData, n)) {
			return fmt.Errorf("a chunk of %d bytes is wrong", n)
		}
		return nil
	})
}
