// Package layout describes the bytes of a message, blocks of one or several slices, and copies
// between any two layouts. Its copies suit memory that another core has read last or reads next.
package layout

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/span"
)

// Part is Count blocks of Block bytes. The first begins at Off of Base, each further one Stride
// bytes after the start of the one before; the stride may be negative.
type Part struct {
	Base                      []byte
	Off, Block, Count, Stride int
}

// Check fails if a block does not lie in size bytes. Of the base it uses nothing.
func (p *Part) Check(size int) error { return p.CheckIn("bytes", size) }

// CheckIn is Check of a part, and a size, in units of that name.
func (p *Part) CheckIn(unit string, size int) error {
	if p.Block < 0 || p.Count < 0 {
		return fmt.Errorf("%d blocks of %d %s: want no negative number", p.Count, p.Block, unit)
	}
	if p.Block == 0 || p.Count == 0 {
		if p.Off < 0 || p.Off > size {
			return fmt.Errorf("offset %d in a slice of %d %s", p.Off, size, unit)
		}
		return nil
	}
	way, far := 0, false // from the first block to the last
	if p.Count > 1 {
		way, far = mul(p.Count-1, p.Stride)
	}
	_, long := mul(p.Block, p.Count)
	last := p.Off + way // of an offset that is checked first
	switch {
	case far || long || p.Off > 0 && way > math.MaxInt-p.Off:
		return fmt.Errorf("%d blocks of %d %s, stride %d, at offset %d overflow", p.Count, p.Block, unit, p.Stride, p.Off)
	case p.Off < 0 || p.Off > size-p.Block || last < 0 || last > size-p.Block:
		return fmt.Errorf("%d blocks of %d %s, stride %d, at offset %d reach outside a slice of %d %s", p.Count, p.Block, unit, p.Stride, p.Off, size, unit)
	}
	return nil
}

// mul multiplies and says whether that overflows.
func mul(a, b int) (int, bool) {
	if a == 0 || b == 0 {
		return 0, false
	}
	c := a * b
	return c, c/b != a || a == -1 && b == math.MinInt || b == -1 && a == math.MinInt
}

// extent returns the range of the base that the part lies in.
func (p *Part) extent() (from, to int) {
	last := p.Off + (p.Count-1)*p.Stride
	return min(p.Off, last), max(p.Off, last) + p.Block
}

// Shape is a layout: parts, one after the other. The zero Shape has no bytes. It owns no memory;
// copies of it share its parts, so Add only to what has not been copied.
type Shape struct {
	parts  []Part // none is empty
	starts []int  // of each part in the packed order; nil for at most one part
	length int
	blocks int
}

// Flat is the shape of all bytes of b, in order.
func Flat(b []byte) (s Shape) {
	if len(b) > 0 {
		s = Shape{parts: []Part{{Base: b, Block: len(b), Count: 1}}, length: len(b), blocks: 1}
	}
	return s
}

// Of returns the shape of a channel.Layout, whose fields are not exported, or what is wrong with it. Package
// channel sets it.
var Of func(l any) (*Shape, error)

// Refill makes s the shape of all bytes of b, in the place of its parts: no copy of s may be in use.
func (s *Shape) Refill(b []byte) {
	clear(s.parts)
	*s = Shape{parts: s.parts[:0], length: len(b)}
	if len(b) > 0 {
		s.parts, s.blocks = append(s.parts, Part{Base: b, Block: len(b), Count: 1}), 1
	}
}

// Add appends a part. Bytes that follow on in memory become one block.
func (s *Shape) Add(p Part) error {
	if err := p.Check(len(p.Base)); err != nil || p.Block == 0 || p.Count == 0 {
		return err
	}
	n := p.Block * p.Count
	if n > math.MaxInt-s.length {
		return errors.New("the lengths of the parts overflow")
	}
	if p.Count == 1 || p.Stride == p.Block {
		p.Block, p.Count, p.Stride = n, 1, 0
	}
	if k := len(s.parts); k > 0 {
		q := &s.parts[k-1]
		if p.Count == 1 && q.Count == 1 && sameBase(q.Base, p.Base) && q.Off+q.Block == p.Off {
			q.Block += n
			s.length += n
			return nil
		}
		if k == 1 {
			s.starts = append(s.starts, 0)
		}
		s.starts = append(s.starts, s.length)
	}
	s.parts = append(s.parts, p)
	s.length += n
	s.blocks += p.Count
	return nil
}

func sameBase(a, b []byte) bool {
	return unsafe.SliceData(a) == unsafe.SliceData(b) && len(a) == len(b)
}

// Len returns the number of bytes.
func (s *Shape) Len() int { return s.length }

// Blocks returns the number of blocks; adjacent blocks count as one.
func (s *Shape) Blocks() int { return s.blocks }

// Parts returns the parts, which the caller must not change.
func (s *Shape) Parts() []Part { return s.parts }

// Flat returns the bytes if they are one block, otherwise nil.
func (s *Shape) Flat() []byte {
	if !s.flat() {
		return nil
	}
	p := &s.parts[0]
	return p.Base[p.Off : p.Off+p.Block : p.Off+p.Block]
}

// Bases returns the distinct slices that the parts lie in, in order of first use, and for each
// part which of them is its base.
func (s *Shape) Bases() (bases [][]byte, of []int) {
	of = make([]int, len(s.parts))
	for i := range s.parts {
		b := s.parts[i].Base
		of[i] = slices.IndexFunc(bases, func(c []byte) bool { return sameBase(b, c) })
		if of[i] < 0 {
			of[i] = len(bases)
			bases = append(bases, b)
		}
	}
	return bases, of
}

// Rebase returns the same blocks over other bases, in the order of Bases.
func (s *Shape) Rebase(bases [][]byte) (Shape, error) {
	_, of := s.Bases()
	to := *s
	to.parts = slices.Clone(s.parts)
	for i := range to.parts {
		p := &to.parts[i]
		p.Base = bases[of[i]]
		if _, end := p.extent(); end > len(p.Base) {
			return Shape{}, fmt.Errorf("slice %d has %d bytes, the layout reaches to %d", of[i], len(p.Base), end)
		}
	}
	return to, nil
}

// Disjoint fails if two blocks share a byte, because what is copied there would depend on the
// order of the copies.
func (s *Shape) Disjoint() error {
	var whole []span.Span // of the parts
	for i := range s.parts {
		p := &s.parts[i]
		if p.Count > 1 && max(p.Stride, -p.Stride) < p.Block {
			return fmt.Errorf("blocks of %d bytes with a stride of %d bytes overlap", p.Block, p.Stride)
		}
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p.Base)))
		from, to := p.extent()
		whole = append(whole, span.Span{From: at + uintptr(from), To: at + uintptr(to)})
	}
	meet := func(s []span.Span) bool {
		slices.SortFunc(s, func(a, b span.Span) int {
			switch {
			case a.From < b.From:
				return -1
			case a.From > b.From:
				return 1
			}
			return 0
		})
		for i := 1; i < len(s); i++ {
			if s[i].From < s[i-1].To {
				return true
			}
		}
		return false
	}
	if !meet(whole) {
		return nil
	}
	// The extents of parts overlap: check the blocks themselves.
	blocks := make([]span.Span, 0, s.blocks)
	for i := range s.parts {
		p := &s.parts[i]
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p.Base)))
		for j := range p.Count {
			from := at + uintptr(p.Off+j*p.Stride)
			blocks = append(blocks, span.Span{From: from, To: from + uintptr(p.Block)})
		}
	}
	if meet(blocks) {
		return errors.New("blocks overlap")
	}
	return nil
}
