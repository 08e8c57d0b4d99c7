package main

import (
	"context"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

// The lattice of a rank: latticeSide sites along each of four axes, x fastest,
// siteBytes each (a spinor of twelve complex numbers in double precision).
const (
	latticeSide = 16
	latticeDims = 4
	siteBytes   = 192
	fieldBytes  = latticeSide * latticeSide * latticeSide * latticeSide * siteBytes
	faceBytes   = fieldBytes / latticeSide
)

const longHalo = `Each rank has a lattice of 16×16×16×16 sites of 192 bytes, x fastest. It sends
both faces of an axis to its neighbours, straight from where they lie, and
receives theirs: of x 4096 blocks of 192 bytes, of y 256 of 3 KiB, of z 16 of
48 KiB, of t one of 768 KiB. One exchange is one start and one wait of a multiple
of all its messages. MB/s are those that one rank sends.`

// Axes of exchanges: all is the four others at once; half, of qmp alone, is the halo of
// examples/wilson, whose sites send half spinors along t, of 96 bytes, which lie together.
var (
	axes    = []string{"x", "y", "z", "t", axisAll}
	qmpAxes = append(slices.Clone(axes), axisHalf)
)

const (
	axisAll   = "all"
	axisHalf  = "half"
	halfBytes = faceBytes / 2
)

// axisBytes are what a rank sends in an exchange.
func axisBytes(axis string) int {
	if axis == axisHalf {
		return 2 * halfBytes
	}
	return 2 * len(axesOf(axis)) * faceBytes
}

// checkAxes: only package qmp has half faces.
func checkAxes(o *options) { parseList("axis", o.axis, axes...) }

// axesOf lists the numbers of the axes that a name stands for.
func axesOf(name string) []int {
	switch name {
	case axisAll:
		return []int{0, 1, 2, 3}
	case axisHalf:
		return []int{3}
	}
	return []int{slices.Index(axes, name)}
}

// How a face is received.
const (
	haloPacked  = "packed"
	haloStrided = "strided"
)

// blockOf is what lies together of a face: all sites along the faster axes.
func blockOf(axis int) int {
	block := siteBytes
	for range axis {
		block *= latticeSide
	}
	return block
}

// face is the layout of the sites whose coordinate along an axis is at.
func face(field []byte, axis, at int) channel.Layout {
	block := blockOf(axis)
	return channel.Strided(field, at*block, block, faceBytes/block, latticeSide*block)
}

// haloExchange gives the faces of one or all axes to both neighbours on a ring of
// ranks, which is the same for each axis, and takes theirs. There is a stream for
// each axis and direction: between two ranks, who are both neighbours of each
// other, they would not be told apart otherwise.
type haloExchange struct {
	declarations
	spec
	field []byte
	faces []haloFace
	all   startable // a multiple of all messages
}

// haloFace is a face that arrives.
type haloFace struct {
	axis, at int    // of the face at the rank that it comes from
	from, to int    // that rank, and the one that ours goes to
	into     []byte // what it is received into, and its neighbourhood
	packed   bool
}

// newHalo takes memory for the field and for what is received: packed, a buffer for each
// face; strided, a field for each axis, for the faces of different axes meet in the corners.
func newHalo(b *bed, m *measurement) *haloExchange {
	n := len(axesOf(m.axis))
	in, each := 2*n*strideOf(faceBytes), strideOf(faceBytes)
	if m.halo == haloStrided {
		in, each = n*fieldBytes, 0
	}
	field, into := b.memory(&m.spec, fieldBytes, in)
	s := &haloExchange{declarations: declarations{node: b.Node}, spec: m.spec, field: field}
	left, right := neighbours(b)
	for i, axis := range axesOf(m.axis) {
		for up, at := range []int{0, latticeSide - 1} { // down, then up
			f := haloFace{axis: axis, at: at, from: []int{right, left}[up], to: []int{left, right}[up], packed: m.halo != haloStrided}
			if f.packed {
				f.into = into[(2*i+up)*each:][:m.faceLen()+guard]
			} else {
				f.into = into[i*fieldBytes:][:fieldBytes]
			}
			s.faces = append(s.faces, f)
		}
	}
	return s
}

// faceLen are the bytes of a face.
func (s *spec) faceLen() int { return s.bytes / 2 / len(axesOf(s.axis)) }

func declareHalo(_ context.Context, b *bed, m *measurement) series {
	s := newHalo(b, m)
	for i, f := range s.faces {
		s.stream = i
		into := channel.Contiguous(f.into[:min(len(f.into), faceBytes)])
		if !f.packed {
			into = face(f.into, f.axis, f.at)
		}
		s.send(face(s.field, f.axis, f.at), f.to)
		s.receive(into, f.from)
	}
	s.all = must1(b.Multiple(s.handles...))
	return s
}

func (s *haloExchange) run(n int, samples []int64) {
	repeat(n, samples, func() { move(s.all) })
}

func (s *haloExchange) close() {
	must(s.all.Close())
	s.declarations.close()
}

func (s *haloExchange) prepare() {
	fillPattern(s.field, s.seed(s.node.Rank()))
	for _, f := range s.faces {
		fillGuard(f.into)
	}
}

func (s *haloExchange) seed(rank int) uint64 { return seedFor(rank, s.bytes, s.op+s.axis) }

// check compares what has arrived, and all around it, with what must be there.
func (s *haloExchange) check() {
	theirs, from := make([]byte, fieldBytes), -1
	want := make([]byte, fieldBytes)
	for i, f := range s.faces {
		if f.from != from {
			from = f.from
			fillPattern(theirs, s.seed(from))
		}
		want := want[:len(f.into)]
		if f.packed || i == 0 || s.faces[i-1].axis != f.axis { // both faces of an axis are received into one field
			fillGuard(want)
		}
		copyFace(want, theirs, f)
		if !f.packed && (i+1 < len(s.faces) && s.faces[i+1].axis == f.axis) {
			continue
		}
		compareBytes("face "+axes[f.axis]+" of "+s.op, f.into, want, faceBytes)
	}
}

// copyFace copies a face of a field to where a rank receives it.
func copyFace(to, field []byte, f haloFace) {
	block := blockOf(f.axis)
	at := 0
	if f.packed {
		to = to[:len(to)-guard]
	}
	for off := f.at * block; off < fieldBytes; off += latticeSide * block {
		if !f.packed {
			at = off
		}
		copy(to[at:min(at+block, len(to))], field[off:]) // of half a face, half a block
		at += block
	}
}
