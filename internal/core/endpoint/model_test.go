package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// The model: two endpoints, wires between them that break at any moment, seen by either
// side first, and frames that arrive at any moment before the fence. All interleavings are
// explored: a state is reached by a list of choices, carried out from the beginning, and
// states that have been seen are not explored again.

// choices are what may happen next.
func (p *pair) choices(cuts int) (list []string) {
	for i, w := range p.wires {
		for side, e := range w.ends {
			if len(e.queue) > 0 && !e.fenced {
				list = append(list, fmt.Sprintf("deliver %d %d", i, side))
			}
			if i < cuts && !e.broken && !e.fenced {
				list = append(list, fmt.Sprintf("fail %d %d", i, side))
			}
		}
	}
	for side, e := range p.ends {
		if len(e.asked) > 0 {
			list = append(list, fmt.Sprintf("quiet %d 0", side))
		}
	}
	return list
}

func (p *pair) choose(choice string) error {
	var what string
	var a, b int
	if _, err := fmt.Sscanf(choice, "%s %d %d", &what, &a, &b); err != nil {
		return err
	}
	switch what {
	case "deliver":
		_, err := p.wires[a].ends[b].deliver()
		return err
	case "fail":
		p.wires[a].ends[b].fail()
	case "quiet":
		p.ends[a].Quiet()
	}
	return p.err
}

// key describes a state.
func (p *pair) key() string {
	var b strings.Builder
	for i, e := range p.ends {
		fmt.Fprintf(&b, "[%v %v %v", e.state, p.ran[i], p.done[i])
		for n := range uint32(3) {
			if s := e.streams[n]; s != nil {
				out, in := -1, -1
				if s.out != nil {
					out = int(s.out.number)
				}
				if s.in != nil {
					in = int(s.in.number)
				}
				fmt.Fprintf(&b, " %d:%d.%d.%d %d %v %d.%d %v%v", n, s.sent, s.acked, s.posted, out, s.held, s.taken, in, s.asked, s.question)
			}
		}
		for _, n := range e.notices {
			fmt.Fprintf(&b, " %v%d%v", n.header.Kind, n.header.Arg, n.marks)
			if n.way != nil {
				fmt.Fprintf(&b, "@%d%v", n.way.number, n.way.fenced)
			}
		}
		fmt.Fprintf(&b, " %d past %d gone %d]", len(e.asked), len(e.past), len(e.gone))
	}
	for _, w := range p.wires {
		for _, e := range w.ends {
			fmt.Fprintf(&b, "(%v%v", e.fenced, e.broken)
			for _, f := range e.queue {
				fmt.Fprintf(&b, " %x", f.b)
			}
			b.WriteByte(')')
		}
	}
	return b.String()
}

// explore carries out every interleaving of a scenario, in which the first cuts wires may
// break, and checks each end.
func explore(t *testing.T, start func() *pair, cuts int, check func(p *pair) error) {
	seen := map[string]bool{}
	ends := 0
	var visit func(path []string)
	visit = func(path []string) {
		p := start()
		for _, c := range path {
			require.NoError(t, p.choose(c), "%v", path)
		}
		k := p.key()
		if seen[k] {
			return
		}
		seen[k] = true
		list := p.choices(cuts)
		if len(list) == 0 {
			ends++
			require.NoError(t, check(p), "%v\n%s", path, k)
		}
		for _, c := range list {
			visit(append(slices.Clip(path), c))
		}
	}
	visit(nil)
	t.Logf("%d states, %d ends", len(seen), ends)
	require.Positive(t, ends)
}

// exactly checks that what was sent has run once, in order in each stream, and is done.
func exactly(p *pair, want map[int][]string) error {
	for from, list := range want {
		if got := p.ran[1-from]; !sameStreams(got, list) {
			return fmt.Errorf("sent by %d: ran %v, want %v", from, got, list)
		}
		if len(p.done[from]) != len(list) {
			return fmt.Errorf("sent by %d: done %v of %v", from, p.done[from], list)
		}
	}
	for i, e := range p.ends {
		if len(e.past) > 0 {
			return fmt.Errorf("end %d still remembers %d fenced paths", i, len(e.past))
		}
	}
	return p.err
}

// sameStreams compares messages stream by stream.
func sameStreams(got, want []string) bool {
	by := func(list []string) map[string][]string {
		m := map[string][]string{}
		for _, s := range list {
			n, _, _ := strings.Cut(s, ":")
			m[n] = append(m[n], s)
		}
		return m
	}
	g, w := by(got), by(want)
	if len(g) != len(w) {
		return false
	}
	for n := range w {
		if !slices.Equal(g[n], w[n]) {
			return false
		}
	}
	return true
}

func TestModel(t *testing.T) {
	t.Run("one stream, one cut", func(t *testing.T) {
		explore(t, func() *pair {
			p := newPair()
			p.wire()
			p.wire()
			p.send(0, 0, 1, "")
			p.send(0, 0, 2, "")
			p.send(1, 0, 3, "")
			return p
		}, 1, func(p *pair) error { return exactly(p, map[int][]string{0: {"0:1", "0:2"}, 1: {"0:3"}}) })
	})
	t.Run("two streams, one cut", func(t *testing.T) {
		explore(t, func() *pair {
			p := newPair()
			p.wire()
			p.wire()
			p.send(0, 0, 1, "")
			p.send(0, 1, 2, "")
			return p
		}, 1, func(p *pair) error { return exactly(p, map[int][]string{0: {"0:1", "1:2"}}) })
	})
	t.Run("two streams, two cuts", func(t *testing.T) {
		need.Long(t)
		explore(t, func() *pair {
			p := newPair()
			p.wire()
			p.wire()
			p.wire()
			p.send(0, 0, 1, "")
			p.send(0, 1, 2, "")
			return p
		}, 2, func(p *pair) error { return exactly(p, map[int][]string{0: {"0:1", "1:2"}}) })
	})
	t.Run("leave, one cut", func(t *testing.T) {
		explore(t, func() *pair {
			p := newPair()
			p.wire()
			p.wire()
			p.send(0, 0, 1, "")
			p.ends[0].Leave(func(err error) { p.done[0] = append(p.done[0], fmt.Sprint("left ", err)) })
			return p
		}, 1, func(p *pair) error {
			if s, _ := p.ends[0].State(); s != Closed {
				return fmt.Errorf("the end that left is %v", s)
			}
			if s, _ := p.ends[1].State(); s != Left {
				return fmt.Errorf("its peer is %v", s)
			}
			if !slices.Equal(p.done[0], []string{"0:1 <nil>", "left <nil>"}) || len(p.ran[1]) != 1 {
				return fmt.Errorf("done %v, ran %v", p.done[0], p.ran[1])
			}
			return p.err
		})
	})
}
