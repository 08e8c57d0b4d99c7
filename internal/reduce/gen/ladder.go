package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

type vec = reg.VecVirtual

// unroll registers are in flight at once: the loads of one need not wait for the
// arithmetic of another.
const unroll = 4

// register returns a new vector register of so many bytes; of fewer than 16 it is
// the low part that counts.
func register(size int) vec {
	switch size {
	case 64:
		return ZMM()
	case 32:
		return YMM()
	}
	return XMM()
}

// part returns the low bytes of v as the register that instructions of that size
// name.
func part(v vec, size int) reg.Register {
	switch size {
	case 64:
		return v.AsZ()
	case 32:
		return v.AsY()
	}
	return v.AsX()
}

func load(m Mem, v vec, size int) {
	switch size {
	case 64:
		VMOVDQU64(m, v)
	case 8:
		VMOVQ(m, v)
	case 4:
		VMOVD(m, v)
	default:
		VMOVDQU(m, v)
	}
}

func store(v vec, m Mem, size int) {
	switch size {
	case 64:
		VMOVDQU64(v, m)
	case 8:
		VMOVQ(v, m)
	case 4:
		VMOVD(v, m)
	default:
		VMOVDQU(v, m)
	}
}

// ladder calls rung for n bytes from offset i on: four registers at a time while
// there are as many, then one at a time, then for each half of a register down to
// the element. Every element meets the same instruction wherever it lies, none
// twice: dst may be an operand.
func ladder(o operator, width int, i, n reg.Register, rung func(size, count int)) {
	loop := func(name string, count int) {
		Label(name)
		CMPQ(n, U32(count*width))
		JB(LabelRef(name + "_end"))
		rung(width, count)
		ADDQ(U32(count*width), i)
		SUBQ(U32(count*width), n)
		JMP(LabelRef(name))
		Label(name + "_end")
	}
	loop("block", unroll)
	loop("register", 1)
	names := map[int]string{32: "bytes32", 16: "bytes16", 8: "bytes8", 4: "bytes4"}
	for size := width / 2; size >= o.element; size /= 2 {
		after := names[size] + "_end"
		TESTQ(U32(size), n)
		JZ(LabelRef(after))
		rung(size, 1)
		if size > o.element {
			ADDQ(U32(size), i)
		}
		Label(after)
	}
	VZEROUPPER()
	RET()
}

// binary writes dst = a op b over n bytes.
func binary(o operator, width int, name string) {
	TEXT(name, NOSPLIT, "func(dst, a, b *byte, n int)")
	Pragma("noescape")
	Doc(name + " sets dst to " + o.doc + " of a and b, n bytes each.")
	dst := Load(Param("dst"), GP64())
	a := Load(Param("a"), GP64())
	b := Load(Param("b"), GP64())
	n := Load(Param("n"), GP64())
	i := GP64()
	XORQ(i, i)
	constant := o.prepare(width)
	ladder(o, width, i, n, func(size, count int) {
		for u := range count {
			at := func(p reg.Register) Mem { return Mem{Base: p, Index: i, Scale: 1, Disp: u * size} }
			x, y := register(size), register(size)
			load(at(a), x, size)
			load(at(b), y, size)
			o.combine(x, y, constant, size)
			store(x, at(dst), size)
		}
	})
}

// fold writes dst = srcs[0] op srcs[1] op ... srcs[k-1] over the n bytes from off
// on, with the result in registers while the sources are read.
func fold(o operator, width int, name string) {
	TEXT(name, NOSPLIT, "func(dst *byte, srcs *[]byte, k, off, n int)")
	Pragma("noescape")
	Doc(name+" sets dst to "+o.doc+" of the k sources, one after the other,",
		"n bytes from off on.")
	dst := Load(Param("dst"), GP64())
	srcs := Load(Param("srcs"), GP64())
	k := Load(Param("k"), GP64())
	i := Load(Param("off"), GP64())
	n := Load(Param("n"), GP64())
	DECQ(k)
	constant := o.prepare(width)
	rungs := 0
	ladder(o, width, i, n, func(size, count int) {
		at := func(p reg.Register, u int) Mem { return Mem{Base: p, Index: i, Scale: 1, Disp: u * size} }
		src, header, left := GP64(), GP64(), GP64()
		acc := make([]vec, count)
		MOVQ(srcs, header)
		MOVQ(k, left)
		MOVQ(Mem{Base: header}, src)
		for u := range acc {
			acc[u] = register(size)
			load(at(src, u), acc[u], size)
		}
		rungs++
		next := fmt.Sprintf("sources%d", rungs)
		Label(next)
		ADDQ(Imm(sliceHeader), header)
		MOVQ(Mem{Base: header}, src)
		for u := range acc {
			y := register(size)
			load(at(src, u), y, size)
			o.combine(acc[u], y, constant, size)
		}
		DECQ(left)
		JNZ(LabelRef(next))
		for u := range acc {
			store(acc[u], at(dst, u), size)
		}
	})
}

// sliceHeader is the size of a []byte; its first word is the address.
const sliceHeader = 24
