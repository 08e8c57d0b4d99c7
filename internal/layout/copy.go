package layout

import "unsafe"

// Messages are copied in packed order: byte i of the message is byte i of every
// layout of its length. A copy of a range of that order can therefore begin
// anywhere, which is how two sides share one.

// Position is a place in the packed order of a layout.
type Position struct {
	Part   int // which
	block  int // of the part
	within int // bytes into the block
}

// flat says whether the bytes are one block.
func (s *Shape) flat() bool { return len(s.parts) == 1 && s.parts[0].Count == 1 }

// Seek returns the position of byte n of the message; n < length.
func (s *Shape) Seek(n int) Position {
	at := Position{}
	if len(s.parts) > 1 {
		lo, hi := 0, len(s.parts)
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; s.starts[mid] <= n {
				lo = mid
			} else {
				hi = mid
			}
		}
		at.Part = lo
		n -= s.starts[lo]
	}
	if b := s.parts[at.Part].Block; n >= b {
		at.block = n / b
		n -= at.block * b
	}
	at.within = n
	return at
}

// rest returns the bytes of the block at the position, from there on.
func (s *Shape) rest(at *Position) []byte {
	p := &s.parts[at.Part]
	o := p.Off + at.block*p.Stride
	return p.Base[o+at.within : o+p.Block]
}

// advance advances the position by n bytes, which lie in its block.
func (s *Shape) advance(at *Position, n int) {
	p := &s.parts[at.Part]
	at.within += n
	if at.within < p.Block {
		return
	}
	at.within = 0
	if at.block++; at.block < p.Count {
		return
	}
	at.block = 0
	at.Part++
}

// Move copies n bytes of the message, from byte from on, from src to dst, which
// have the same length.
func Move(dst, src *Shape, from, n int) { moveAt(dst, src, from, from, n) }

// moveAt copies n bytes: from byte s of src on to byte d of dst on.
func moveAt(dst, src *Shape, to, from, n int) {
	if n == 0 {
		return
	}
	if dst.flat() && src.flat() {
		dp, sp := &dst.parts[0], &src.parts[0]
		Copy(dp.Base[dp.Off+to:dp.Off+to+n], sp.Base[sp.Off+from:sp.Off+from+n])
		return
	}
	d, s := dst.Seek(to), src.Seek(from)
	for n > 0 {
		m := moveBlocks(dst, src, &d, &s, n)
		if m == 0 {
			a, b := dst.rest(&d), src.rest(&s)
			m = min(len(a), len(b), n)
			Copy(a[:m], b[:m])
			dst.advance(&d, m)
			src.advance(&s, m)
		}
		n -= m
	}
}

// moveBlocks copies the next whole blocks, at most n bytes, if both sides have blocks of the
// same size or one of them is contiguous. It returns the bytes moved.
func moveBlocks(dst, src *Shape, d, s *Position, n int) int {
	dp, sp := &dst.parts[d.Part], &src.parts[s.Part]
	size := dp.Block
	switch {
	case dp.Count == 1 && sp.Count == 1:
		return 0
	case dp.Count == 1:
		size = sp.Block
	case sp.Count > 1 && sp.Block != size:
		return 0
	}
	do, dstep, dcount := dp.run(d, size)
	so, sstep, scount := sp.run(s, size)
	count := min(dcount, scount, n/size)
	if count == 0 {
		return 0
	}
	copyRun(dp.Base, sp.Base, do, so, size, count, dstep, sstep)
	dst.skip(d, count, size)
	src.skip(s, count, size)
	return count * size
}

// copyRun copies count blocks of size, the first from so of src to do of dst, each
// sstep and dstep bytes after the one before it.
func copyRun(dst, src []byte, do, so, size, count, dstep, sstep int) {
	if size >= blocksMin && size <= blocksMax {
		// The first and the last: the others lie between them.
		d, s := dst[do:do+size], src[so:so+size]
		dlast, slast := do+(count-1)*dstep, so+(count-1)*sstep
		_, _ = dst[dlast:dlast+size], src[slast:slast+size]
		copyBlocks(unsafe.Pointer(unsafe.SliceData(d)), unsafe.Pointer(unsafe.SliceData(s)), size, count, dstep, sstep)
		return
	}
	for range count {
		d, s := dst[do:do+size], src[so:so+size]
		if size == 8 {
			*(*[8]byte)(d) = *(*[8]byte)(s)
		} else {
			Copy(d, s)
		}
		do += dstep
		so += sstep
	}
}

// run returns the offset of the blocks of size from the position on, their distance, and
// their number, which is 0 inside a block.
func (p *Part) run(at *Position, size int) (off, step, count int) {
	if p.Count == 1 {
		return p.Off + at.within, size, (p.Block - at.within) / size
	}
	if at.within > 0 {
		return 0, 0, 0
	}
	return p.Off + at.block*p.Stride, p.Stride, p.Count - at.block
}

// skip advances the position over count blocks that run has returned.
func (s *Shape) skip(at *Position, count, size int) {
	p := &s.parts[at.Part]
	if p.Count == 1 {
		s.advance(at, count*size)
		return
	}
	if at.block += count; at.block == p.Count {
		at.block = 0
		at.Part++
	}
}

// Gather copies the bytes of the message from from on into b.
func (s *Shape) Gather(b []byte, from int) {
	flat := Shape{parts: []Part{{Base: b, Block: len(b), Count: 1}}, length: len(b)}
	moveAt(&flat, s, 0, from, len(b))
}

// GatherPast is Gather with CopyPast, where that can store whole lines.
func (s *Shape) GatherPast(b []byte, from int) {
	if !Past || s.length < s.blocks*pastMin {
		s.Gather(b, from)
		return
	}
	for at := s.Seek(from); len(b) > 0; {
		b = b[CopyPast(b, s.Next(&at, len(b))):]
	}
}

// pastMin is the mean length of blocks from which on nearly all of their lines are whole.
const pastMin = 1 << 10

// Scatter copies b into the message, from byte from on.
func (s *Shape) Scatter(b []byte, from int) {
	flat := Shape{parts: []Part{{Base: b, Block: len(b), Count: 1}}, length: len(b)}
	moveAt(s, &flat, from, 0, len(b))
}

// Next returns the next bytes, at most n of one block, and advances over them.
func (s *Shape) Next(at *Position, n int) []byte {
	b := s.rest(at)
	b = b[:min(len(b), n)]
	s.advance(at, len(b))
	return b
}
