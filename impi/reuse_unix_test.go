//go:build unix

package impi

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime/debug"
	"testing"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/colltest"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// children are the programs that go on. The first is started before the job is made.
var children ranks.Children

func init() {
	acts["reuse"] = act{do: reuse, before: func(int, []string) error { return children.Start() }}
}

// TestReuse: memory of the heap in all layouts is the program's again when its request is complete, and the
// collector's; nothing is written late. Programs that are started meanwhile inherit nothing of the job.
func TestReuse(t *testing.T) {
	need.Program(t, "true")
	need.Program(t, "sleep")
	apart(t, 2, "reuse")
}

// shaped is memory of the heap for n bytes in blocks, each of which is followed by a gap of its length.
type shaped struct {
	b     []byte
	n     int
	block int
}

// newShaped makes blocks of a form: one, many that are packed, and pieces.
func newShaped(n, form int) shaped {
	block := [...]int{n, 8, 2 * packMost}[form]
	if n%block != 0 {
		block = n
	}
	return shaped{make([]byte, 2*n), n, block}
}

func (s *shaped) layout() channel.Layout {
	return channel.Strided(s.b, 0, s.block, s.n/s.block, 2*s.block)
}

// at returns the i-th byte of the message.
func (s *shaped) at(i int) *byte { return &s.b[i/s.block*2*s.block+i%s.block] }

func (s *shaped) fill(k int) {
	for i := range s.n {
		*s.at(i) = byte(k + i + i>>8)
	}
}

func (s *shaped) check(k int) error {
	for i := range s.n {
		if v := *s.at(i); v != byte(k+i+i>>8) {
			return fmt.Errorf("byte %d of %d of message %d is %d, want %d", i, s.n, k, v, byte(k+i+i>>8))
		}
	}
	return nil
}

func reuse(ctx context.Context, j *Job, _ []string) error {
	defer children.End()
	debug.SetGCPercent(1)
	c := j.World()
	other := 1 - c.Rank()
	var kept []shaped
	for k := range 36 {
		if k < 4 {
			if err := children.Start(); err != nil {
				return err
			}
		} else if k%4 == 0 {
			if err := exec.Command("true").Run(); err != nil {
				return fmt.Errorf("start a program: %w", err)
			}
		}
		size := []int{8, 1000, 4 << 10, 20 << 10, 200 << 10, 1100 << 10}[k%6]
		out, in := newShaped(size, k/6%3), newShaped(size, (k/6+k%2)%3)
		out.fill(k + c.Rank())
		var requests [2]Request
		for i := range requests {
			var err error
			if i == k/2%2 {
				requests[i], err = c.IsendLayout(out.layout(), other, k)
			} else {
				requests[i], err = c.IrecvLayout(in.layout(), other, k)
			}
			if err != nil {
				return err
			}
		}
		if err := WaitAll(ctx, nil, requests[:]...); err != nil {
			return err
		}
		if k%2 == 0 { // else it has been the collector's for a while
			clear(out.b)
		}
		if kept = append(kept, in); len(kept) > 4 {
			first := k - 4
			if err := kept[0].check(first + other); err != nil {
				return err
			}
			kept = kept[1:]
		}
	}
	for i, in := range kept {
		if err := in.check(36 - len(kept) + i + other); err != nil {
			return err
		}
	}
	for kind := coll.Broadcast; kind <= coll.Alltoall; kind++ {
		t := newTrial(colltest.Reference{Kind: kind, Size: c.Size(), Count: 20_000, Seed: uint64(kind)}, false)
		o, dst := t.operation(c.Rank())
		if err := c.Run(ctx, o); err != nil {
			return err
		}
		if want := t.Want(c.Rank()); want != nil && !bytes.Equal(dst, want) {
			return fmt.Errorf("wrong result, %v", t)
		}
	}
	if err := children.Start(); err != nil { // while the job has all that it ever has
		return err
	}
	if err := leaveTogether(ctx, c); err != nil {
		return err
	}
	if err := j.Close(ctx); err != nil {
		return err
	}
	return children.Alike(ctx)
}
