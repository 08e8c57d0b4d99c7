//go:build unix

package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func init() { acts["layouts"] = act{do: layouts} }

// letter is a message from one layout to another.
type letter struct {
	name     string
	src, dst drawn
}

// drawLetter makes that of a rank in a round, which its sender and its receiver draw alike.
// src and dst give memory, of their nodes if it is to be so.
func drawLetter(seed uint64, round, rank int, src, dst func(n int, own bool) []byte) letter {
	r := rand.New(rand.NewPCG(seed, uint64(round)<<32|uint64(rank)))
	n := r.IntN([]int{100, 5000, 100_000, 600_000}[r.IntN(4)])
	var l letter
	l.src = draw(r, n, func(n int) []byte { return src(n, r.IntN(2) == 0) })
	l.dst = draw(r, n, func(n int) []byte { return dst(n, r.IntN(2) == 0) })
	for _, b := range l.src.bases {
		random(r, b)
	}
	l.name = fmt.Sprintf("round %d, from rank %d: %d bytes, %s to %s", round, rank, n, l.src.name, l.dst.name)
	return l
}

// layouts: each rank sends the next one messages of any layout, which receives them in any.
// The arguments are the seed and the number of messages.
func layouts(ctx context.Context, n *Node, args []string) error {
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	var failed error
	mine := func(size int, own bool) []byte {
		if !own {
			return make([]byte, size)
		}
		m, err := n.Alloc(size)
		if err != nil {
			failed = err
			return make([]byte, size)
		}
		return m.Bytes()
	}
	theirs := func(size int, _ bool) []byte { return make([]byte, size) }
	next, last := (n.Rank()+1)%n.Size(), (n.Rank()+n.Size()-1)%n.Size()
	for round := range number(args[1]) {
		out := drawLetter(seed, round, n.Rank(), mine, theirs)
		in := drawLetter(seed, round, last, theirs, mine)
		if failed != nil {
			return failed
		}
		want := in.dst.images(in.src.packed())
		s, err := n.DeclareSend(out.src.layout, next)
		if err != nil {
			return fmt.Errorf("%s: %w", out.name, err)
		}
		r, err := n.DeclareReceive(in.dst.layout, last)
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
		if err := errors.Join(r.Start(), s.Start(), WaitAllContext(ctx, s, r)); err != nil {
			return fmt.Errorf("%s; %s: %w", out.name, in.name, err)
		}
		for i := range want {
			if !bytes.Equal(want[i], in.dst.bases[i]) {
				return fmt.Errorf("%s: wrong bytes", in.name)
			}
		}
		if err := errors.Join(s.Close(), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// TestLayoutsProcesses: any layout to any layout between processes.
func TestLayoutsProcesses(t *testing.T) {
	count := need.InLong("8", "60")
	processes(t, func(t *testing.T, provider string, run runner) {
		r, out := run(t, 2, "layouts", strconv.FormatUint(seed(t), 10), count)
		require.Zero(t, r.ExitStatus(), out)
	})
}
