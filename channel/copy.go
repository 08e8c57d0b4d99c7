package channel

import "unsafe"

// Messages are copied in packed order: byte i of the message is byte i of every
// layout of its length. A copy of a range of that order can therefore begin
// anywhere, which is how two sides share one.

// position is a place in the packed order of a layout.
type position struct {
	part   int // which
	block  int // of the part
	within int // bytes into the block
}

// shape is a layout as copies need it: its parts, and where each begins in the
// packed order.
type shape struct {
	parts  []part
	starts []int // nil for one part
	length int
}

func newShape(parts []part, length int) shape {
	s := shape{parts: parts, length: length}
	if len(parts) > 1 {
		s.starts = make([]int, len(parts))
		n := 0
		for i := range parts {
			s.starts[i] = n
			n += parts[i].block * parts[i].count
		}
	}
	return s
}

// contiguous says whether the layout is one piece.
func (s *shape) contiguous() bool { return len(s.parts) == 1 && s.parts[0].count == 1 }

// seek returns the position of byte n of the message; n < length.
func (s *shape) seek(n int) position {
	at := position{}
	if len(s.parts) > 1 {
		lo, hi := 0, len(s.parts)
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; s.starts[mid] <= n {
				lo = mid
			} else {
				hi = mid
			}
		}
		at.part = lo
		n -= s.starts[lo]
	}
	if b := s.parts[at.part].block; n >= b {
		at.block = n / b
		n -= at.block * b
	}
	at.within = n
	return at
}

// rest returns the bytes of the block at the position, from there on.
func (s *shape) rest(at *position) []byte {
	p := &s.parts[at.part]
	o := p.off + at.block*p.stride
	return p.base[o+at.within : o+p.block]
}

// advance advances the position by n bytes, which lie in its block.
func (s *shape) advance(at *position, n int) {
	p := &s.parts[at.part]
	at.within += n
	if at.within < p.block {
		return
	}
	at.within = 0
	if at.block++; at.block < p.count {
		return
	}
	at.block = 0
	at.part++
}

// move copies n bytes of the message, from byte from on, from src to dst, which
// have the same length.
func move(dst, src *shape, from, n int) { moveAt(dst, src, from, from, n) }

// moveAt copies n bytes: from byte s of src on to byte d of dst on.
func moveAt(dst, src *shape, to, from, n int) {
	if n == 0 {
		return
	}
	if dst.contiguous() && src.contiguous() {
		dp, sp := &dst.parts[0], &src.parts[0]
		copyBytes(dp.base[dp.off+to:dp.off+to+n], sp.base[sp.off+from:sp.off+from+n])
		return
	}
	d, s := dst.seek(to), src.seek(from)
	for n > 0 {
		m := moveBlocks(dst, src, &d, &s, n)
		if m == 0 {
			a, b := dst.rest(&d), src.rest(&s)
			m = min(len(a), len(b), n)
			copyBytes(a[:m], b[:m])
			dst.advance(&d, m)
			src.advance(&s, m)
		}
		n -= m
	}
}

// moveBlocks copies the next whole blocks, at most n bytes, if both sides have blocks of the
// same size or one of them is contiguous. It returns the bytes moved.
func moveBlocks(dst, src *shape, d, s *position, n int) int {
	dp, sp := &dst.parts[d.part], &src.parts[s.part]
	size := dp.block
	switch {
	case dp.count == 1 && sp.count == 1:
		return 0
	case dp.count == 1:
		size = sp.block
	case sp.count > 1 && sp.block != size:
		return 0
	}
	do, dstep, dcount := dp.run(d, size)
	so, sstep, scount := sp.run(s, size)
	count := min(dcount, scount, n/size)
	if count == 0 {
		return 0
	}
	copyRun(dp.base, sp.base, do, so, size, count, dstep, sstep)
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
		switch {
		case size == 8:
			*(*[8]byte)(d) = *(*[8]byte)(s)
		case size < 1<<10:
			copy(d, s)
		default:
			copyBytes(d, s)
		}
		do += dstep
		so += sstep
	}
}

// run returns the offset of the blocks of size from the position on, their distance, and
// their number, which is 0 inside a block.
func (p *part) run(at *position, size int) (off, step, count int) {
	if p.count == 1 {
		return p.off + at.within, size, (p.block - at.within) / size
	}
	if at.within > 0 {
		return 0, 0, 0
	}
	return p.off + at.block*p.stride, p.stride, p.count - at.block
}

// skip advances the position over count blocks that run has returned.
func (s *shape) skip(at *position, count, size int) {
	p := &s.parts[at.part]
	if p.count == 1 {
		s.advance(at, count*size)
		return
	}
	if at.block += count; at.block == p.count {
		at.block = 0
		at.part++
	}
}

// gather copies the bytes of the message from from on into b.
func (s *shape) gather(b []byte, from int) {
	flat := shape{parts: []part{{base: b, block: len(b), count: 1}}, length: len(b)}
	moveAt(&flat, s, 0, from, len(b))
}

// scatter copies b into the message, from byte from on.
func (s *shape) scatter(b []byte, from int) {
	flat := shape{parts: []part{{base: b, block: len(b), count: 1}}, length: len(b)}
	moveAt(s, &flat, from, 0, len(b))
}

// next returns the next bytes, at most n of one block, and advances over them.
func (s *shape) next(at *position, n int) []byte {
	b := s.rest(at)
	b = b[:min(len(b), n)]
	s.advance(at, len(b))
	return b
}
