package coll

import "fmt"

// Buffer is a piece of memory that steps refer to.
type Buffer uint8

// The buffers of a schedule. [Shape] says what In and Out hold.
const (
	In  Buffer = iota // input of the member; never written, unless it is Out too
	Out               // output of the member
	Tmp               // scratch
)

var bufferNames = [...]string{"in", "out", "tmp"}

// String returns "in", "out" or "tmp".
func (b Buffer) String() string { return bufferNames[b] }

// Ref is a part of a buffer; Off and Len are bytes.
type Ref struct {
	Buf      Buffer
	Off, Len int
}

// StepKind is what a step does.
type StepKind uint8

// The steps of a schedule.
const (
	Send    StepKind = iota // A to Peer
	Receive                 // Dst from Peer
	Copy                    // Dst = A
	Combine                 // Dst = A op B, in this order; Dst is A, or B, or overlaps neither
)

var stepNames = [...]string{"send", "receive", "copy", "combine"}

// String returns "send", "receive", "copy" or "combine".
func (k StepKind) String() string { return stepNames[k] }

// Step is one message or one local operation of a member.
type Step struct {
	Kind      StepKind
	Peer      int
	A, B, Dst Ref
}

// Schedule is the work of one member, as a sequence of rounds. In a round all sends and receives
// are started; when they are complete, the other steps are executed, in order. A round may have
// no messages.
type Schedule struct {
	Rounds [][]Step
	Tmp    int // bytes of scratch
}

// MaxRound bounds the messages in one round: a member with more peers takes several rounds, so that
// the number of its messages in flight does not grow with the job.
const MaxRound = 64

// Build makes the schedule of member s.Rank. The shape is not retained. Errors: [ErrShape], and
// [ErrAlgorithm] for an algorithm that the shape does not allow, or [Auto].
func Build(a Algorithm, s *Shape) (*Schedule, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if err := a.allowed(s); err != nil {
		return nil, err
	}
	b := &builder{Shape: s}
	builders[s.Kind](b, a)
	b.next()
	return &b.schedule, nil
}

var builders = [kinds]func(b *builder, a Algorithm){
	Barrier:       (*builder).barrier,
	Broadcast:     (*builder).broadcast,
	Reduce:        (*builder).reduce,
	Allreduce:     (*builder).allreduce,
	ReduceScatter: (*builder).reduceScatter,
	Scan:          (*builder).scan,
	Exscan:        (*builder).scan,
	Gather:        (*builder).gather,
	Scatter:       (*builder).scatter,
	Allgather:     (*builder).allgather,
	Alltoall:      (*builder).alltoall,
}

// builder makes a schedule step by step. Messages come before local steps in a
// round: a message after a local step begins the next.
type builder struct {
	*Shape
	schedule Schedule
	round    []Step
	messages int
}

// next ends the round, if it has begun.
func (b *builder) next() {
	if len(b.round) > 0 {
		b.schedule.Rounds = append(b.schedule.Rounds, b.round)
		b.round, b.messages = nil, 0
	}
}

func (b *builder) send(peer int, r Ref) { b.message(Step{Kind: Send, Peer: peer, A: r}) }

func (b *builder) receive(peer int, r Ref) { b.message(Step{Kind: Receive, Peer: peer, Dst: r}) }

func (b *builder) message(s Step) {
	if len(b.round) > b.messages {
		b.next()
	}
	if s.Peer == b.Rank || b.messages == MaxRound {
		panic(fmt.Sprintf("coll: %v %v of %v in a round of %d", s.Kind, s.Peer, b.Rank, b.messages))
	}
	b.messages++
	b.round = append(b.round, s)
}

// room begins another round if this one has no room for so many messages.
func (b *builder) room(messages int) {
	if b.messages+messages > MaxRound {
		b.next()
	}
}

// exchange sends and receives in a round of its own.
func (b *builder) exchange(to int, out Ref, from int, in Ref) {
	b.next()
	b.receive(from, in)
	b.send(to, out)
}

func (b *builder) copy(dst, a Ref) {
	if a.Len > 0 && dst != a {
		b.round = append(b.round, Step{Kind: Copy, A: a, Dst: dst})
	}
}

func (b *builder) combine(dst, x, y Ref) {
	if dst.Len > 0 {
		b.round = append(b.round, Step{Kind: Combine, A: x, B: y, Dst: dst})
	}
}

// tmpAlign puts each allocation of scratch on cache lines of its own.
const tmpAlign = 64

// tmp allocates scratch.
func (b *builder) tmp(n int) Ref {
	r := Ref{Tmp, b.schedule.Tmp, n}
	b.schedule.Tmp += (n + tmpAlign - 1) &^ (tmpAlign - 1)
	return r
}

// vector is the buffer as a whole vector.
func (b *builder) vector(buf Buffer) Ref { return Ref{buf, 0, b.Count * b.Elem} }

// all is the beginning of a buffer that holds the blocks of all members.
func all(buf Buffer) Ref { return Ref{Buf: buf} }

// virtual is the number of a member counted from the root, and actual its inverse.
func (b *builder) virtual(rank, root int) int { return (rank - root + b.Size) % b.Size }
func (b *builder) actual(v, root int) int     { return (v + root) % b.Size }

// blocks cuts a buffer: block i begins at byte [i] and ends at [i+1].
type blocks []int

// of is block i of the buffer that begins at base.
func (o blocks) of(base Ref, i int) Ref { return o.span(base, i, i+1) }

// span is the blocks from up to, but not including, to.
func (o blocks) span(base Ref, from, to int) Ref {
	return Ref{base.Buf, base.Off + o[from], o[to] - o[from]}
}

func (o blocks) total() int { return o[len(o)-1] }

// longest is the bytes of the longest block.
func (o blocks) longest() int {
	n := 0
	for i := range len(o) - 1 {
		n = max(n, o[i+1]-o[i])
	}
	return n
}

// even cuts a vector of count elements into n blocks whose sizes differ by at most
// one element.
func even(count, n, elem int) blocks {
	o := make(blocks, n+1)
	q, r := count/n, count%n
	for i := range o {
		o[i] = (i*q + min(i, r)) * elem
	}
	return o
}

// cut returns the blocks of the members as they lie in the buffer of all, beginning
// with member first.
func (s *Shape) cut(first int) blocks { return s.cutBy(s.Counts, first) }

func (s *Shape) cutBy(counts []int, first int) blocks {
	o := make(blocks, s.Size+1)
	for i := range s.Size {
		n := s.Count
		if counts != nil {
			n = counts[(first+i)%s.Size]
		}
		o[i+1] = o[i] + n*s.Elem
	}
	return o
}

// own is this member's block in a buffer that holds only it.
func (s *Shape) own(buf Buffer) Ref {
	n := s.Count
	if s.Counts != nil {
		n = s.Counts[s.Rank]
	}
	return Ref{buf, 0, n * s.Elem}
}
