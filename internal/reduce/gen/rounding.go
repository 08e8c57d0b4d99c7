package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// rounding writes the loops that exact sums are measured against: as many chains as keep both
// adders busy, and no more than the rounded sum. n is a multiple of 64.
func rounding(width int, suffix string) {
	if width == 32 {
		TEXT("setMXCSR", NOSPLIT, "func(v uint32) (old uint32)")
		Doc("setMXCSR sets the floating-point environment, and returns what it was.")
		v := Load(Param("v"), GP32())
		old, area := GP32(), AllocLocal(double)
		STMXCSR(area)
		MOVL(area, old)
		MOVL(v, area)
		LDMXCSR(area)
		Store(old, ReturnIndex(0))
		RET()
	}
	const chains = 8
	for _, dot := range []bool{false, true} {
		name, signature, doc := "sum"+suffix, "func(x *float64, n int) float64", "adds n elements, rounding."
		if dot {
			name, signature, doc = "dot"+suffix, "func(x, y *float64, n int) float64", "adds n products, rounding."
		}
		TEXT(name, NOSPLIT, signature)
		Pragma("noescape")
		Doc(name + " " + doc)
		x := Load(Param("x"), GP64())
		y := x
		if dot {
			y = Load(Param("y"), GP64())
		}
		n := Load(Param("n"), GP64())
		sum := several(chains, width)
		for _, v := range sum {
			VXORPD(v.AsX(), v.AsX(), v.AsX())
		}
		Label("loop")
		for u := range chains {
			m := Mem{Base: x, Disp: u * width}
			if dot {
				a := register(width)
				load(Mem{Base: y, Disp: u * width}, a, width)
				VFMADD231PD(m, a, sum[u])
			} else {
				VADDPD(m, sum[u], sum[u])
			}
		}
		ADDQ(U32(chains*width), x)
		if dot {
			ADDQ(U32(chains*width), y)
		}
		SUBQ(U32(chains*width/double), n)
		JNZ(LabelRef("loop"))
		r := total(sum, width)
		VZEROUPPER()
		Store(r, ReturnIndex(0))
		RET()
	}
}
