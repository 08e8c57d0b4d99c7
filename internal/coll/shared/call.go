package shared

import (
	"github.com/sluice-hpc/sluice/internal/coll"
)

// Span is a block of a vector, in bytes.
type Span struct{ Off, Len int }

// Call holds the arguments of a member's call. It may be used again, but must not
// change between calls. All members must agree on what Signature covers: if it differs,
// they fail with [*MismatchError].
type Call struct {
	Kind      coll.Kind
	Signature uint64
	Root      int
	Dst, Src  []byte
	Block     int    // bytes of each member's block, if Blocks is nil
	Blocks    []Span // Gather, Scatter, Allgather, ReduceScatter: of the vector of all members' blocks; Alltoall: of Dst
	From      []Span // Alltoall: of Src, with Blocks
	Uneven    bool   // blocks differ, and not every member knows all: at all members, or at none
	Elem      int    // bytes of an element: pieces are cut between elements
	Combine   func(dst, a, b []byte)
	Fold      func(dst []byte, srcs [][]byte) // the same for many, from left to right; nil: use Combine

	form form
}

// span is the block of member i in the vector of all.
func (c *Call) span(i int) Span {
	if c.Blocks != nil {
		return c.Blocks[i]
	}
	return Span{i * c.Block, c.Block}
}

// total is the bytes of the blocks of all members.
func (c *Call) total(size int) int {
	if c.Blocks != nil {
		last := c.Blocks[size-1]
		return last.Off + last.Len
	}
	return size * c.Block
}

// from is the block for member i in Src, of Alltoall.
func (c *Call) from(i int) Span {
	if c.From != nil {
		return c.From[i]
	}
	return Span{i * c.Block, c.Block}
}

// given is the block for member i in Src, of a blockwise call.
func (c *Call) given(i int) Span {
	if c.Kind == coll.Alltoall {
		return c.from(i)
	}
	return c.span(i)
}

// got is the block from member i in Dst, of Scatter and Alltoall.
func (c *Call) got(i int) Span {
	if c.Kind == coll.Scatter {
		return Span{0, len(c.Dst)}
	}
	return c.span(i)
}

// in returns a block of b.
func (s Span) in(b []byte) []byte { return b[s.Off : s.Off+s.Len : s.Off+s.Len] }

// piece is the part of a block from off on, at most n bytes.
func (s Span) piece(off, n int) Span {
	if off >= s.Len {
		return Span{s.Off + s.Len, 0}
	}
	return Span{s.Off + off, min(n, s.Len-off)}
}

// blockwise says whether each member gives a different block to each other member.
func blockwise(k coll.Kind) bool {
	return k == coll.ReduceScatter || k == coll.Scatter || k == coll.Alltoall
}

// part returns the input of member me if that is one vector; nil if it has no input.
func (c *Call) part(me int) []byte {
	switch c.Kind {
	case coll.Broadcast:
		if me == c.Root {
			return c.Dst
		}
		return nil
	case coll.Scatter:
		if me == c.Root {
			return c.Src
		}
		return nil
	case coll.Barrier:
		return nil
	}
	return c.Src
}

// exposed says whether the others can read what member me gives, and write to where it gets its result,
// if they can access src and dst. What a member need not give or get counts as accessible.
func (c *Call) exposed(me int, src, dst bool) (gives, gets bool) {
	root := me == c.Root
	switch c.Kind {
	case coll.Broadcast:
		return dst || !root, dst || root
	case coll.Scatter:
		return src || !root, dst || root
	case coll.Gather:
		return src || root, dst || !root
	case coll.Reduce:
		return src, dst || !root
	}
	return src, dst
}

// gives is the block that member me gives to member i in a blockwise call.
func (c *Call) gives(me, i int) []byte {
	if c.Kind == coll.Scatter && me != c.Root {
		return nil
	}
	return c.given(i).in(c.Src)
}

// needs returns the range of members, excluding to, whose parts member me needs.
func (c *Call) needs(me, size int) (from, to int) {
	switch c.Kind {
	case coll.Broadcast, coll.Scatter:
		return c.Root, c.Root + 1
	case coll.Reduce, coll.Gather:
		if me != c.Root {
			return 0, 0
		}
	case coll.Scan:
		return 0, me + 1
	case coll.Exscan:
		return 0, me
	}
	return 0, size
}
