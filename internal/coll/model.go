package coll

import (
	"fmt"
	"math/bits"
)

// Model counts the cost of a collective, over all members unless a field says
// otherwise.
type Model struct {
	Messages int64
	Bytes    int64 // of payloads, without headers
	Most     int64 // messages sent and received by the busiest member
	Depth    int   // messages in the longest chain in which each depends on the one before
	Combined int64 // bytes that are combined with as many others
}

// Cost returns the model of a shape performed by an algorithm, from formulas, not from
// the schedules; tests verify that the two agree. The shape must be that of a member
// that knows all counts. Errors: those of [Build]; [ErrShape] for Alltoall with counts
// by member, which no member knows.
func Cost(a Algorithm, s *Shape) (Model, error) {
	if err := s.Check(); err != nil {
		return Model{}, err
	}
	if err := a.allowed(s); err != nil {
		return Model{}, err
	}
	if s.SendCounts != nil || !s.known() {
		return Model{}, fmt.Errorf("%w: no cost of an alltoall whose counts no member knows", ErrShape)
	}
	if s.Size == 1 {
		return Model{}, nil
	}
	return newTerms(s).cost(a), nil
}

// terms are the terms of the formulas.
type terms struct {
	*Shape
	p          int64 // members
	others     int64 // p-1
	up, down   int   // log2 p, rounded up and down
	power      int64 // the largest power of two up to p
	rest       int64 // p - power
	folds      int   // 1 if there is a rest
	opposite   int   // 1 if it has two members whose numbers differ in all bits
	vector     int64 // bytes of the vector
	total      int64 // bytes of all blocks
	segments   int64 // of a vector
	along      int64 // messages of the busiest member of a chain, for each segment
	inner      int64 // members of a chain that pass on what they combine: not the ends
	forward    int64 // 1 if member 0 has the result of an ordered reduction for the root
	directions int   // rounds of a linear exchange between all members
}

func newTerms(s *Shape) *terms {
	t := &terms{Shape: s, p: int64(s.Size), up: ceilLog2(s.Size), down: log2(s.Size)}
	t.others = t.p - 1
	t.power = 1 << t.down
	t.rest = t.p - t.power
	t.folds = int(min(t.rest, 1))
	if t.rest > t.power/2 {
		t.opposite = 1
	}
	t.vector = int64(s.Count) * int64(s.Elem)
	t.total = int64(s.total())
	if s.Kind != Barrier {
		t.segments = int64(len((&builder{Shape: s}).segments()) - 1)
	}
	t.inner = t.p - 2
	t.along = min(t.p-1, 2)
	if s.Ordered && s.Kind == Reduce && s.Root != 0 {
		t.forward = 1
	}
	t.directions = (s.Size - 1 + MaxRound/2 - 1) / (MaxRound / 2)
	return t
}

// tree is the bytes sent over the binomial tree when the blocks o are scattered or gathered: block
// v takes as many steps as v has bits set.
func tree(o blocks) int64 {
	n := int64(0)
	for v := range len(o) - 1 {
		n += int64(bits.OnesCount(uint(v))) * int64(o[v+1]-o[v])
	}
	return n
}

func (t *terms) cost(a Algorithm) Model {
	switch t.Kind {
	case Barrier:
		return t.barrier(a)
	case Broadcast:
		return t.broadcast(a)
	case Reduce:
		return t.reduce(a)
	case Allreduce:
		return t.allreduce(a)
	case ReduceScatter:
		return t.reduceScatter(a)
	case Scan, Exscan:
		return t.scan(a)
	case Gather, Scatter:
		if a == Linear {
			return Model{t.others, t.total - int64(t.cut(0).of(all(In), t.Root).Len), t.others, 1, 0}
		}
		return Model{t.others, tree(t.cut(t.Root)), int64(t.up), t.down, 0}
	case Allgather:
		return t.allgather(a)
	}
	return t.alltoall(a)
}

func (t *terms) barrier(a Algorithm) Model {
	switch a {
	case Linear:
		return Model{2 * t.others, 0, 2 * t.others, 2, 0}
	case Binomial:
		return Model{2 * t.others, 0, 2 * int64(t.up), 2 * t.down, 0}
	}
	return Model{t.p * int64(t.up), 0, 2 * int64(t.up), t.up, 0}
}

func (t *terms) broadcast(a Algorithm) Model {
	v := t.vector * t.others
	switch a {
	case Linear:
		return Model{t.others, v, t.others, 1, 0}
	case Binomial:
		return Model{t.others, v, int64(t.up), t.down, 0}
	case Pipeline:
		return Model{t.segments * t.others, v, t.along * t.segments, int(t.others), 0}
	}
	scatter := tree(even(t.Count, t.Size, t.Elem))
	if t.rest == 0 {
		return Model{t.others + t.p*int64(t.down), scatter + v, int64(3 * t.down), 2 * t.down, 0}
	}
	return Model{t.others + t.p*t.others, scatter + v, int64(t.up) + 2*t.others, t.down + int(t.others), 0}
}

func (t *terms) reduce(a Algorithm) Model {
	v := t.vector * t.others
	switch a {
	case Linear:
		return Model{t.others, v, t.others, 1, v}
	case Binomial:
		return Model{t.others + t.forward, v + t.forward*t.vector, int64(t.up) + t.forward, t.down + int(t.forward), v}
	case Pipeline:
		most := t.along * t.segments
		if t.forward == 1 && (t.p == 2 || t.Root < t.Size-1) { // the root is the busiest
			most++
		}
		return Model{t.segments*t.others + t.forward, v + t.forward*t.vector, most, int(t.others + t.forward), v}
	}
	gather := tree(even(t.Count, int(t.power), t.Elem))
	return Model{
		t.rest + t.power*int64(t.down) + t.power - 1, v + gather,
		int64(3*t.down + t.folds), 2*t.down + t.folds, v,
	}
}

func (t *terms) allreduce(a Algorithm) Model {
	v, down := t.vector*t.others, int64(t.down)
	switch a {
	case Linear:
		return Model{2 * t.others, 2 * v, 2 * t.others, 2, v}
	case Binomial:
		return Model{2 * t.others, 2 * v, 2 * int64(t.up), 2 * t.down, v}
	case RecursiveDoubling:
		n := t.power*down + 2*t.rest
		return Model{n, n * t.vector, int64(2 * (t.down + t.folds)), t.down + t.folds + t.opposite, (n - t.rest) * t.vector}
	case Rabenseifner:
		return Model{2 * (t.power*down + t.rest), 2 * v, int64(4*t.down + 2*t.folds), 2 * (t.down + t.folds), v}
	case Ring:
		return Model{2 * t.p * t.others, 2 * v, 4 * t.others, int(2 * t.others), v}
	}
	return Model{2 * t.segments * t.others, 2 * v, 2 * t.along * t.segments, int(2 * t.others), v}
}

func (t *terms) reduceScatter(a Algorithm) Model {
	v := t.total * t.others
	o := t.cut(0)
	switch a {
	case Linear:
		return Model{2 * t.others, v + int64(o.total()-o[1]), 2 * t.others, 2, v}
	case RecursiveHalving:
		back := int64(0)
		for i := range int(t.rest) {
			back += int64(o[2*i+2] - o[2*i+1])
		}
		return Model{
			t.power*int64(t.down) + 2*t.rest, v + back,
			int64(2 * (t.down + t.folds)), t.down + t.folds + t.opposite, v,
		}
	}
	return Model{t.p * t.others, v, 2 * t.others, int(t.others), v}
}

func (t *terms) scan(a Algorithm) Model {
	if a != RecursiveDoubling {
		messages, along := t.others, t.along
		if a == Pipeline {
			messages, along = t.segments*t.others, t.along*t.segments
		}
		combined := t.others
		if t.Kind == Exscan {
			combined = t.inner
		}
		return Model{messages, t.vector * t.others, along, int(t.others), t.vector * combined}
	}
	var messages, combined, most int64
	for d := int64(1); d < t.p; d *= 2 {
		messages += t.p - d
		if t.Kind == Exscan {
			combined += max(t.p-3*d, 0) // with the own part, for others
			if d == 1 {
				continue
			}
		}
		combined += t.p - d
	}
	for r := range t.Size {
		most = max(most, int64(ceilLog2(t.Size-r)+bits.Len(uint(r))))
	}
	return Model{messages, messages * t.vector, most, t.down, combined * t.vector}
}

func (t *terms) allgather(a Algorithm) Model {
	v := t.total * t.others
	switch a {
	case RecursiveDoubling, Bruck:
		return Model{t.p * int64(t.up), v, int64(2 * t.up), t.up, 0}
	case Linear:
		return Model{t.p * t.others, v, 2 * t.others, t.directions, 0}
	}
	return Model{t.p * t.others, v, 2 * t.others, int(t.others), 0}
}

func (t *terms) alltoall(a Algorithm) Model {
	switch a {
	case Bruck:
		return Model{t.p * int64(t.up), t.p * tree(t.cut(0)), int64(2 * t.up), t.up, 0}
	case Linear:
		return Model{t.p * t.others, t.total * t.others, 2 * t.others, t.directions, 0}
	}
	return Model{t.p * t.others, t.total * t.others, 2 * t.others, int(t.others), 0}
}
