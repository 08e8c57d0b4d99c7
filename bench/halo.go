package main

import (
	"bytes"
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

// axes are those that bench halo knows; all is the four others at once.
var axes = []string{"x", "y", "z", "t", axisAll}

const axisAll = "all"

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

// face is the layout of the sites whose coordinate along an axis is at.
func face(field []byte, axis, at int) channel.Layout {
	block := siteBytes // what lies together: all sites along the faster axes
	for range axis {
		block *= latticeSide
	}
	return channel.Strided(field, at*block, block, faceBytes/block, latticeSide*block)
}

// haloArena is the memory that an exchange needs: the field, and what it receives
// into. Strided, each axis has a field of its own to receive into, for the faces
// of different axes meet in the corners.
func haloArena(s *spec) int {
	n := len(axesOf(s.axis))
	if s.halo == haloStrided {
		return (1 + n) * fieldBytes
	}
	return fieldBytes + 2*n*strideOf(faceBytes)
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
	all   *channel.Handle // a multiple of all messages
}

// haloFace is a face that arrives.
type haloFace struct {
	axis, at int    // of the face at the rank that it comes from
	from     int    // that rank
	into     []byte // what it is received into, and its neighbourhood
	packed   bool
}

func declareHalo(n *node, m spec, arena []byte) (*haloExchange, error) {
	s := &haloExchange{declarations: declarations{node: n}, spec: m, field: arena[:fieldBytes]}
	arena = arena[fieldBytes:]
	left, right := (n.Rank()+n.Size()-1)%n.Size(), (n.Rank()+1)%n.Size()
	for _, axis := range axesOf(m.axis) {
		for up, at := range []int{0, latticeSide - 1} { // down, then up
			to, from := left, right
			if up == 1 {
				to, from = right, left
			}
			f := haloFace{axis: axis, at: at, from: from, packed: m.halo == haloPacked}
			var l channel.Layout
			if f.packed {
				f.into = arena[:faceBytes+guard]
				arena = arena[strideOf(faceBytes):]
				l = channel.Contiguous(f.into[:faceBytes])
			} else {
				f.into = arena[:fieldBytes]
				l = face(f.into, axis, at)
			}
			s.faces = append(s.faces, f)
			s.stream = 2*axis + up
			s.send(face(s.field, axis, at), to)
			s.receive(l, from)
		}
		if m.halo == haloStrided {
			arena = arena[fieldBytes:]
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	var err error
	s.all, err = n.Multiple(s.handles...)
	return s, err
}

func (s *haloExchange) run(n int, _ []int64) error {
	for range n {
		if err := s.all.Start(); err != nil {
			return err
		}
		if err := s.all.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (s *haloExchange) close() error {
	if err := s.all.Close(); err != nil {
		return err
	}
	return s.declarations.close()
}

func (s *haloExchange) prepare() {
	fillPattern(s.field, s.seed(s.node.Rank()))
	for _, f := range s.faces {
		fillGuard(f.into)
	}
}

func (s *haloExchange) seed(rank int) uint64 { return seedFor(rank, s.bytes, s.op.name+s.axis) }

// check compares what has arrived, and all around it, with what must be there.
func (s *haloExchange) check() error {
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
		if bytes.Equal(want, f.into) {
			continue
		}
		for at, b := range want {
			if f.into[at] != b {
				return &CorruptError{Op: "face " + axes[f.axis] + " of " + s.op.name, Bytes: faceBytes, Offset: at, Got: f.into[at], Want: b}
			}
		}
	}
	return nil
}

// copyFace copies a face of a field to where a rank receives it.
func copyFace(to, field []byte, f haloFace) {
	block := siteBytes
	for range f.axis {
		block *= latticeSide
	}
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
