package main

import (
	"fmt"
	"math/bits"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	// double is the size of an element.
	double = 8
	// maskBits are the bits of a mantissa that an upper half does not have: of 53, it keeps
	// 26, and leaves 27.
	maskBits = 27
	// chains are the sums of one kind that grow side by side: an addition takes 3 or 4
	// cycles, and two begin in each.
	chains = 4

	// Terms, or products, of which is known whether they were summed exactly before the
	// next are begun.
	sumBlock = 1024
	dotBlock = 512

	// Levels of the sums and products of many exponents: 42 bits each.
	sumLevels = 7
	dotLevels = 4

	// Levels for all exponents of products, as far apart. A product whose exponent field is gridExponent, and
	// no larger one, begins with the first level. What a call may use of them, and the registers that go through
	// them together.
	gridLevels   = 60
	gridBits     = 42
	gridExponent = 2031
	stateLevels  = 16
	gridGroup    = 4

	// Exception flags of MXCSR (Intel SDM, volume 1, 10.2.3), and its state in which nothing
	// has happened: all exceptions masked, round to nearest, subnormals kept.
	flagInvalid   = 1 << 0
	flagOverflow  = 1 << 3
	flagUnderflow = 1 << 4
	flagInexact   = 1 << 5
	cleanMXCSR    = 0x1f80

	unordered = 3 // predicate of VCMPPD
)

// environment is the floating-point environment of a kernel: its own, whatever the caller has,
// so that the exception flags are those of its own arithmetic.
type environment struct{ saved, own Mem }

func enter() environment {
	area := AllocLocal(8)
	e := environment{area, area.Offset(4)}
	STMXCSR(e.saved)
	MOVL(U32(cleanMXCSR), e.own)
	LDMXCSR(e.own)
	return e
}

// clear forgets all exceptions.
func (e environment) clear() {
	MOVL(U32(cleanMXCSR), e.own)
	LDMXCSR(e.own)
}

// raised jumps to label if one of these exceptions has happened.
func (e environment) raised(exceptions int, label string) {
	STMXCSR(e.own)
	TESTL(U32(uint32(exceptions)), e.own)
	JNZ(LabelRef(label))
}

func (e environment) leave() { LDMXCSR(e.saved) }

// loadPart loads a register, or one element, whose rest is zero.
func loadPart(m Mem, v vec, size int) {
	if size == double {
		VMOVSD(m, part(v, 16))
		return
	}
	load(m, v, size)
}

// upperMask makes the constant that keeps the upper half of each mantissa.
func upperMask(width int) vec {
	v := register(width)
	if width == 64 {
		VPTERNLOGD(Imm(0xff), v, v, v)
	} else {
		VPCMPEQD(v, v, v)
	}
	VPSLLQ(Imm(maskBits), v, v)
	return v
}

// ones makes the constant 1. A product with it and a sum is the sum, but is computed by the
// multipliers, beside those that can only add.
func ones(width int) vec {
	v := register(width)
	if width == 64 {
		VPTERNLOGD(Imm(0xff), v, v, v)
	} else {
		VPCMPEQD(v, v, v)
	}
	VPSLLQ(Imm(54), v, v)
	VPSRLQ(Imm(2), v, v)
	return v
}

// aligned returns the address of so many bytes of the frame that begin a line of the cache: a
// register that lies across two lines is stored in two steps.
func aligned(size int) reg.Register {
	const line = 64
	p := GP64()
	LEAQ(AllocLocal(size+line), p)
	ADDQ(Imm(line-1), p)
	ANDQ(I32(-line), p)
	return p
}

func zero(v vec) { VPXOR(part(v, 16), part(v, 16), part(v, 16)) }

// clearAll is zero for any register, of the full width.
func clearAll(v vec, width int) {
	if width == 64 {
		VPXORQ(v, v, v)
	} else {
		VPXOR(v, v, v)
	}
}

// and sets z to x and y, all of the full width.
func and(x, y, z vec, width int) {
	if width == 64 {
		VPANDQ(x, y, z)
	} else {
		VPAND(x, y, z)
	}
}

// several returns n registers of the width.
func several(n, width int) []vec {
	v := make([]vec, n)
	for i := range v {
		v[i] = register(width)
	}
	return v
}

// chainsIn loads what chainsOut has stored at p.
func chainsIn(p reg.Register, off int, v []vec, width int) {
	for i := range v {
		load(Mem{Base: p, Disp: off + i*width}, v[i], width)
	}
}

func chainsOut(v []vec, p reg.Register, off int, width int) {
	for i := range v {
		store(v[i], Mem{Base: p, Disp: off + i*width}, width)
	}
}

// total adds up the chains and the elements of a register.
func total(v []vec, width int) vec {
	for n := len(v); n > 1; n /= 2 {
		for i := range n / 2 {
			VADDPD(v[i+n/2], v[i], v[i])
		}
	}
	t := v[0]
	if width == 64 {
		h := YMM()
		VEXTRACTF64X4(Imm(1), t, h)
		VADDPD(h, t.AsY(), t.AsY())
	}
	h := XMM()
	VEXTRACTF128(Imm(1), t.AsY(), h)
	VADDPD(h, t.AsX(), t.AsX())
	VPERMILPD(Imm(1), t.AsX(), h)
	VADDSD(h, t.AsX(), t.AsX())
	return t.AsX().(vec)
}

// notNumbers jumps to label if an element of v is NaN.
func notNumbers(v []vec, width int, label string) {
	for i := 0; i < len(v); i += 2 {
		if width == 64 {
			k := K()
			VCMPPD(Imm(unordered), v[i], v[i+1], k)
			KORTESTB(k, k)
		} else {
			y := YMM()
			VCMPPD(Imm(unordered), v[i], v[i+1], y)
			VPTEST(y, y)
		}
		JNZ(LabelRef(label))
	}
}

// strips calls body for the elements that are left of a block: turn registers at a time, then
// one, then one element.
func strips(name string, width int, turn int, i, left reg.Register, body func(u, count, size int)) {
	step := func(label string, size, count int) {
		Label(label)
		SUBQ(U32(size/double*count), left)
		JB(LabelRef(label + "_end"))
		for u := range count {
			body(u, count, size)
		}
		ADDQ(U32(size*count), i)
		JMP(LabelRef(label))
		Label(label + "_end")
		ADDQ(U32(size/double*count), left)
	}
	step(name+"_turn", width, turn)
	step(name+"_register", width, 1)
	step(name+"_element", double, 1)
}

// nextBlock begins the loop over blocks of a kernel: left is how many elements the next one has, end where
// it ends. After the last one it goes to "sum".
func nextBlock(block int, n, done, left, end reg.Register) {
	Label("block")
	MOVQ(n, left)
	SUBQ(done, left)
	JZ(LabelRef("sum"))
	MOVQ(U32(uint32(block)), end)
	CMPQ(left, end)
	CMOVQGT(end, left)
	MOVQ(left, end)
	ADDQ(done, end)
}

// finish returns done, and whether nothing was rounded since the exceptions were cleared.
func finish(env environment, done reg.Register) {
	STMXCSR(env.own)
	env.leave()
	bit := GP32()
	MOVL(env.own, bit)
	TESTL(U32(flagInexact|flagInvalid|flagOverflow), bit)
	whole := GP8()
	SETEQ(whole)
	VZEROUPPER()
	Store(done, ReturnIndex(0))
	Store(whole, ReturnIndex(1))
	RET()
}

// sumKernel writes the sum of n elements. Each is cut into the upper and the lower half of its
// mantissa, which is exact; the halves are added up apart, and have room for the carries: the
// additions are exact as long as the exponents do not differ by too much. The flag of the
// inexact exception says at the end of a block whether they were.
func sumKernel(width int, name string) {
	TEXT(name, NOSPLIT, "func(x *float64, n int, state *float64) (done int, whole bool)")
	Pragma("noescape")
	Doc(name+" adds the elements of x to the chains of state, block by block, up to the",
		"first block for which this is not exact; done is the number of those added. If the",
		"chains add up exactly, whole is true and state.total has their sums.")
	x := Load(Param("x"), GP64())
	n := Load(Param("n"), GP64())
	state := Load(Param("state"), GP64())
	env := enter()
	mask, one := upperMask(width), ones(width)
	upper, lower := several(chains, width), several(chains, width)
	chainsIn(state, 0, upper, width)
	chainsIn(state, chains*width, lower, width)
	i, done, left, end := GP64(), GP64(), GP64(), GP64()
	XORQ(i, i)
	XORQ(done, done)

	nextBlock(sumBlock, n, done, left, end)
	strips("add", width, chains, i, left, func(u, count, size int) {
		v, up := register(width), register(width)
		loadPart(Mem{Base: x, Index: i, Scale: 1, Disp: u * size}, v, size)
		and(mask, v, up, width)
		VSUBPD(up, v, v)
		VADDPD(up, upper[u], upper[u])
		VFMADD231PD(one, v, lower[u])
	})
	notNumbers(lower, width, "sum")
	env.raised(flagInexact|flagInvalid|flagOverflow, "sum")
	chainsOut(upper, state, 0, width)
	chainsOut(lower, state, chains*width, width)
	MOVQ(end, done)
	JMP(LabelRef("block"))

	Label("sum")
	chainsIn(state, 0, upper, width)
	chainsIn(state, chains*width, lower, width)
	env.clear()
	VMOVSD(total(upper, width), Mem{Base: state, Disp: 2 * chains * 64})
	VMOVSD(total(lower, width), Mem{Base: state, Disp: 2*chains*64 + double})
	finish(env, done)
}

// dotKernel writes the inner product of n elements. The rounded product p goes to a running sum
// above, which is so large that p keeps its place in it, and so does the error of p, which FMA
// gives, to one below; what the running sums do not take is left in scratch memory (these
// are the two-term transformations of Dekker, exact while the running sum is the larger
// operand). The second pass adds up what was left, in which the flag of the inexact exception
// says whether that was exact.
func dotKernel(width int, name string) {
	TEXT(name, 0, "func(x, y *float64, n int, fresh bool, above, below float64, state *float64) (done int, whole bool)")
	Pragma("noescape")
	Doc(name+" adds the products of x and y to the chains of state, which are empty if it is fresh,",
		"whatever is there; block by block, up to the first block for which this is not exact. done is the",
		"number of those added. If the chains add up exactly, whole is true and state.total has their sums.")
	x := Load(Param("x"), GP64())
	y := Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	state := Load(Param("state"), GP64())
	lanes := width / double
	// An element that is alone takes a whole register of the scratch.
	vectors := dotBlock/lanes + lanes
	scratch := aligned(2 * vectors * width)
	env := enter()
	// One register holds where the running sums begin, in its other uses too.
	start := func(param string) (v vec) {
		v = register(width)
		m, err := Param(param).Resolve()
		if err != nil {
			panic(err)
		}
		VBROADCASTSD(m.Addr, v)
		return v
	}
	const running = 2
	sizes := running * width
	offHigh, offLow := 0, sizes
	offRest, offTail := 2*sizes, 2*sizes+chains*width
	high, low := [2][]vec{several(running, width), several(running, width)}, [2][]vec{several(running, width), several(running, width)}
	begun := GP64()
	{
		a, b := start("above"), start("below")
		fresh := Load(Param("fresh"), GP8())
		MOVQ(U32(1), begun)
		TESTB(fresh, fresh)
		JNZ(LabelRef("fresh"))
		for u := range running {
			for k, v := range []vec{a, b} {
				sum, m := register(width), Mem{Base: state, Disp: k*sizes + u*width}
				VADDPD(m, v, sum)
				store(sum, m, width)
			}
		}
		JMP(LabelRef("first"))
		Label("fresh")
		XORQ(begun, begun)
		for u := range running {
			store(a, Mem{Base: state, Disp: offHigh + u*width}, width)
			store(b, Mem{Base: state, Disp: offLow + u*width}, width)
		}
		Label("first")
	}
	i, s, done, left, end := GP64(), GP64(), GP64(), GP64(), GP64()
	XORQ(i, i)
	XORQ(done, done)

	nextBlock(dotBlock, n, done, left, end)
	chainsIn(state, offHigh, high[0], width)
	chainsIn(state, offLow, low[0], width)
	above, one, strayed := start("above"), ones(width), register(width)
	clearAll(strayed, width)
	XORQ(s, s)
	at := func(kind, u int) Mem {
		return Mem{Base: scratch, Index: s, Scale: 1, Disp: (kind*vectors + u) * width}
	}
	strips("product", width, 2*running, i, left, func(u, count, size int) {
		e, p := register(width), register(width)
		my := Mem{Base: y, Index: i, Scale: 1, Disp: u * size}
		loadPart(Mem{Base: x, Index: i, Scale: 1, Disp: u * size}, e, size)
		if size == width {
			VMULPD(my, e, p)
			VFMSUB132PD(my, p, e)
		} else {
			b := register(width)
			loadPart(my, b, size)
			VMULPD(b, e, p)
			VFMSUB132PD(b, p, e)
		}
		// split takes from v what sum can take, and leaves the new sum in t.
		split := func(v, sum, t vec) {
			VADDPD(v, sum, t)
			VFMSUB231PD(one, t, sum)
			VSUBPD(sum, v, v)
		}
		// Each register is the old sum and the new one by turns; with one at a time, what is new
		// has to go back.
		h, l := u%running, u%running
		from, to := 0, 1
		if u/running == 1 {
			from, to = 1, 0
		}
		split(p, high[from][h], high[to][h])
		if width == 64 {
			VPTERNLOGQ(Imm(0xf6), above, high[to][h], strayed)
		} else {
			t := register(width)
			VPXOR(above, high[to][h], t)
			VPOR(t, strayed, strayed)
		}
		store(p, at(0, u), width)
		split(e, low[from][l], low[to][l])
		store(e, at(1, u), width)
		if count == 1 {
			VMOVAPD(high[to][h], high[from][h])
			VMOVAPD(low[to][l], low[from][l])
		}
		if u == count-1 {
			ADDQ(U32(count*width), s)
		}
	})
	// The upper 12 bits of a running sum never change.
	if width == 64 {
		VPSRLQ(Imm(52), strayed, strayed)
		k := K()
		VPTESTMQ(strayed, strayed, k)
		KORTESTB(k, k)
	} else {
		VPSRLQ(Imm(52), strayed, strayed)
		VPTEST(strayed, strayed)
	}
	JNZ(LabelRef("sum"))
	env.raised(flagUnderflow|flagOverflow|flagInvalid, "sum")

	env.clear()
	rest, tail := several(chains, width), several(chains, width)
	TESTQ(begun, begun)
	JZ(LabelRef("nothing_left"))
	chainsIn(state, offRest, rest, width)
	chainsIn(state, offTail, tail, width)
	JMP(LabelRef("left"))
	Label("nothing_left")
	for u := range chains {
		clearAll(rest[u], width)
		clearAll(tail[u], width)
	}
	Label("left")
	// s is the end of what was left.
	j := GP64()
	XORQ(j, j)
	atj := func(kind, u int) Mem {
		m := at(kind, u)
		m.Index = j
		return m
	}
	pass := func(label string, count int) {
		Label(label)
		SUBQ(U32(count*width), s)
		JB(LabelRef(label + "_end"))
		for u := range count {
			VFMADD231PD(atj(0, u), one, rest[u])
			VADDPD(atj(1, u), tail[u], tail[u])
		}
		ADDQ(U32(count*width), j)
		JMP(LabelRef(label))
		Label(label + "_end")
		ADDQ(U32(count*width), s)
	}
	pass("rest_turn", chains)
	pass("rest_register", 1)
	env.raised(flagInexact|flagOverflow|flagInvalid, "sum")
	chainsOut(high[0], state, offHigh, width)
	chainsOut(low[0], state, offLow, width)
	chainsOut(rest, state, offRest, width)
	chainsOut(tail, state, offTail, width)
	MOVQ(end, done)
	MOVQ(U32(1), begun)
	JMP(LabelRef("block"))

	Label("sum")
	TESTQ(begun, begun)
	JNZ(LabelRef("begun"))
	finish(env, done)
	Label("begun")
	chainsIn(state, offHigh, high[0], width)
	chainsIn(state, offLow, low[0], width)
	{
		a, b := start("above"), start("below")
		for u := range running {
			VSUBPD(a, high[0][u], high[0][u])
			VSUBPD(b, low[0][u], low[0][u])
		}
	}
	chainsOut(high[0], state, offHigh, width)
	chainsOut(low[0], state, offLow, width)
	rest, tail = several(chains, width), several(chains, width)
	chainsIn(state, offRest, rest, width)
	chainsIn(state, offTail, tail, width)
	env.clear()
	for k, v := range [][]vec{high[0], low[0], rest, tail} {
		VMOVSD(total(v, width), Mem{Base: state, Disp: (2*running+2*chains)*64 + k*double})
	}
	finish(env, done)
}

// wideKernel writes the sum of n elements, or of n products, of more exponents than sumKernel and dotKernel
// have room for. There is a running sum for each of some levels, which lie so far apart that what one of them
// does not take has its place in the next; a rounded product begins with the first level, its error
// with the second one and ends a level further down. Nothing may be left in the end. Unlike in dotKernel,
// nothing waits in memory for a second pass: a level costs three operations, as many as that.
func wideKernel(width, levels int, products bool, name string) {
	signature, what := "func(x *float64, n int, starts, state *float64) (done int, whole bool)", "elements of x"
	if products {
		signature, what = "func(x, y *float64, n int, starts, state *float64) (done int, whole bool)", "products of x and y"
	}
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name+" adds all n "+what+" to running sums that begin with starts; done is n, or 0",
		"if this is not exact. state then has the sums, less starts, of each element of a",
		"register; if they add up exactly, whole is true and the totals of the levels follow.")
	x := Load(Param("x"), GP64())
	var y reg.Register
	if products {
		y = Load(Param("y"), GP64())
	}
	n := Load(Param("n"), GP64())
	starts := Load(Param("starts"), GP64())
	state := Load(Param("state"), GP64())
	env := enter()
	start := func(level int) vec {
		v := register(width)
		VBROADCASTSD(Mem{Base: starts, Disp: level * double}, v)
		return v
	}
	sums := make([]vec, levels)
	for i := range sums {
		sums[i] = start(i)
	}
	above, one := start(0), ones(width)
	strayed, rest := register(width), register(width)
	for _, v := range []vec{strayed, rest} {
		if width == 64 {
			VPXORQ(v, v, v)
		} else {
			zero(v)
		}
	}
	i, left, zeroDone := GP64(), GP64(), GP64()
	XORQ(i, i)
	XORQ(zeroDone, zeroDone)
	MOVQ(n, left)
	or := func(v, into vec) {
		if width == 64 {
			VPORQ(v, into, into)
		} else {
			VPOR(v, into, into)
		}
	}
	// Two registers of terms go through the levels side by side: the chain of operations on one is long,
	// and the processor looks ahead for less than the next one.
	var v, e [2]vec
	strips("term", width, len(v), i, left, func(u, count, size int) {
		v[u] = register(width)
		mx, my := Mem{Base: x, Index: i, Scale: 1, Disp: u * size}, Mem{Base: y, Index: i, Scale: 1, Disp: u * size}
		loadPart(mx, v[u], size)
		switch {
		case !products:
		case size == width:
			e[u], v[u] = v[u], register(width)
			VMULPD(my, e[u], v[u])
			VFMSUB132PD(my, v[u], e[u])
		default:
			b := register(width)
			loadPart(my, b, size)
			e[u], v[u] = v[u], register(width)
			VMULPD(b, e[u], v[u])
			VFMSUB132PD(b, v[u], e[u])
		}
		if u < count-1 {
			return
		}
		for level := range levels {
			first := sums[level]
			sum := first
			// split takes from v what sum can take, which the old sum's register has then.
			split := func(v vec) {
				t := first
				if sum == first {
					t = register(width)
				}
				VADDPD(v, sum, t)
				VFMSUB231PD(one, t, sum)
				if level%2 == 0 {
					VSUBPD(sum, v, v)
				} else { // the multipliers, for balance
					VFNMADD231PD(one, sum, v)
				}
				sum = t
			}
			for u := range count {
				if !products || level < levels-1 {
					split(v[u])
				}
				if level == 0 {
					if width == 64 {
						VPTERNLOGQ(Imm(0xf6), above, sum, strayed)
					} else {
						t := register(width)
						VPXOR(above, sum, t)
						VPOR(t, strayed, strayed)
					}
				}
			}
			for u := range count {
				if products && level > 0 {
					split(e[u])
				}
			}
			if sum != first {
				VMOVAPD(sum, first)
			}
		}
		for u := range count {
			or(v[u], rest)
			if products {
				or(e[u], rest)
			}
		}
	})
	// The upper 12 bits of the first running sum never change, and the others have room. What is left
	// is a zero, of either sign.
	VPSRLQ(Imm(52), strayed, strayed)
	VPADDQ(rest, rest, rest)
	or(rest, strayed)
	if width == 64 {
		k := K()
		VPTESTMQ(strayed, strayed, k)
		KORTESTB(k, k)
	} else {
		VPTEST(strayed, strayed)
	}
	JNZ(LabelRef("none"))
	env.raised(flagUnderflow|flagOverflow|flagInvalid, "none")

	env.clear()
	for level, v := range sums {
		VSUBPD(start(level), v, v)
		store(v, Mem{Base: state, Disp: level * width}, width)
		VMOVSD(total([]vec{v}, width), Mem{Base: state, Disp: levels*width + level*double})
	}
	finish(env, n)

	Label("none")
	finish(env, zeroDone)
}

// gridKernel writes the sum of n products of more exponents than wideKernel has room for. There are running sums
// for all exponents, at levels that lie so far apart that what one of
// them does not take has its place in the next. Some registers at a time begin with the level that has room for
// the largest of their elements, and go on until nothing is left: mostly after the levels that are written out
// here. A rounded product begins with the first level, its error with the second one, and ends a level further
// down.
func gridKernel(width int, name string) {
	const group = gridGroup
	lanes := width / double
	TEXT(name, 0, "func(x, y *float64, n int, starts, state *float64) (levels int, whole bool)")
	Pragma("noescape")
	Doc(name+" adds all n products of x and y, a multiple of "+fmt.Sprint(group*lanes)+", to running sums that begin",
		"with starts. state then has the sums of so many levels, less starts, of each element of a register; levels",
		"is 0 if this is not exact, or takes more levels than state has. If the sums of each level add up exactly,",
		"whole is true, and these totals follow.")
	x := Load(Param("x"), GP64())
	y := Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	starts := Load(Param("starts"), GP64())
	// Rounded products, and errors, have running sums of their own: a chain of additions takes longer than
	// all else.
	const kinds = 2
	size := kinds * width
	scratch := aligned(gridLevels * size)
	env := enter()
	one, magnitude := ones(width), register(width)
	if width == 64 {
		VPTERNLOGD(Imm(0xff), magnitude, magnitude, magnitude)
	} else {
		VPCMPEQD(magnitude, magnitude, magnitude)
	}
	VPSRLQ(Imm(1), magnitude, magnitude)
	// The levels from low to high are in use.
	i, first, now, low, high, at, t := GP64(), GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	XORQ(i, i)
	XORQ(low, low)
	XORQ(high, high)
	MOVQ(U32(gridLevels), now)
	place := func(level, p reg.Register) {
		MOVQ(level, p)
		SHLQ(Imm(uint64(bits.TrailingZeros(uint(size)))), p)
		ADDQ(scratch, p)
	}
	open := func(level reg.Register) {
		v, p := register(width), GP64()
		VBROADCASTSD(Mem{Base: starts, Index: level, Scale: double}, v)
		place(level, p)
		for kind := range kinds {
			store(v, Mem{Base: p, Disp: kind * width}, width)
		}
	}
	// reach opens levels up to the one before t.
	reach := func(label string) {
		CMPQ(t, high)
		JBE(LabelRef(label + "_end"))
		Label(label)
		open(high)
		INCQ(high)
		CMPQ(high, t)
		JB(LabelRef(label))
		SUBQ(low, t)
		CMPQ(t, Imm(stateLevels))
		JA(LabelRef("none"))
		Label(label + "_end")
	}
	// take has a running sum take what it can of v, and leaves the rest.
	turn := 0
	take := func(v []vec, m Mem) {
		sum := register(width)
		load(m, sum, width)
		for _, v := range v {
			t := register(width)
			VADDPD(v, sum, t)
			VFMSUB231PD(one, t, sum)
			if turn++; turn%2 == 0 {
				VSUBPD(sum, v, v)
			} else { // the multipliers, for balance
				VFNMADD231PD(one, sum, v)
			}
			sum = t
		}
		store(sum, m, width)
	}
	v, e := several(group, width), several(group, width)
	left := func(label string) {
		all := slices.Concat(v, e)
		rest := register(width)
		if width == 64 {
			VPORQ(all[0], all[1], rest)
			for u := 2; u < len(all); u += 2 {
				VPTERNLOGQ(Imm(0xfe), all[u], all[u+1], rest)
			}
			k := K()
			VPTESTMQ(magnitude, rest, k)
			KORTESTB(k, k)
		} else {
			VPOR(all[0], all[1], rest)
			for _, v := range all[2:] {
				VPOR(v, rest, rest)
			}
			VPTEST(magnitude, rest)
		}
		JNZ(LabelRef(label))
	}

	Label("group")
	largest := register(width)
	for u := range group {
		mx, my := Mem{Base: x, Index: i, Scale: 1, Disp: u * width}, Mem{Base: y, Index: i, Scale: 1, Disp: u * width}
		load(mx, e[u], width)
		VMULPD(my, e[u], v[u])
		VFMSUB132PD(my, v[u], e[u])
		// Without signs; the upper halves decide.
		if u == 0 {
			VPADDQ(v[u], v[u], largest)
			continue
		}
		d := register(width)
		VPADDQ(v[u], v[u], d)
		VPMAXUD(d, largest, largest)
	}
	if width == 64 {
		h := YMM()
		VEXTRACTI64X4(Imm(1), largest, h)
		VPMAXUD(h, largest.AsY(), largest.AsY())
	}
	h := XMM()
	if width == 64 {
		VEXTRACTI64X2(Imm(1), largest.AsY(), h)
	} else {
		VEXTRACTI128(Imm(1), largest.AsY(), h)
	}
	VPMAXUD(h, largest.AsX(), largest.AsX())
	VPSHUFD(Imm(0x4e), largest.AsX(), h)
	VPMAXUD(h, largest.AsX(), largest.AsX())
	VMOVQ(largest.AsX(), t)
	TESTQ(t, t)
	JZ(LabelRef("next")) // zeroes, of which fields have many
	SHRQ(Imm(53), t)
	MOVQ(U32(gridExponent), first)
	SUBQ(t, first)
	JB(LabelRef("none")) // too large, or not finite
	IMUL3Q(U32((1<<16+gridBits)/gridBits), first, first)
	SHRQ(Imm(16), first)
	const written = 4
	// It is most often that of the group before, which the processor takes it for before it is known.
	CMPQ(first, now)
	JE(LabelRef("ready"))
	MOVQ(first, now)
	CMPQ(high, Imm(0))
	JNE(LabelRef("begun"))
	MOVQ(first, low)
	MOVQ(first, high)
	Label("begun")
	LEAQ(Mem{Base: first, Disp: written}, t)
	reach("reach")
	CMPQ(first, low)
	JAE(LabelRef("placed"))
	Label("lower")
	DECQ(low)
	open(low)
	CMPQ(first, low)
	JB(LabelRef("lower"))
	MOVQ(high, t)
	SUBQ(low, t)
	CMPQ(t, Imm(stateLevels))
	JA(LabelRef("none"))
	Label("placed")
	place(now, at)
	Label("ready")
	for level := range written {
		if level < written-1 {
			take(v, Mem{Base: at, Disp: level * size})
		}
		if level > 0 {
			take(e, Mem{Base: at, Disp: level*size + width})
		}
	}
	left("more")
	Label("next")
	ADDQ(U32(uint32(group*width)), i)
	SUBQ(U32(uint32(group*lanes)), n)
	JNZ(LabelRef("group"))
	env.raised(flagUnderflow|flagOverflow|flagInvalid, "none")

	env.clear()
	state := Load(Param("state"), GP64())
	CMPQ(high, Imm(0))
	JNE(LabelRef("some"))
	open(high)
	INCQ(high)
	Label("some")
	XORQ(i, i)
	MOVQ(low, first)
	place(first, at)
	Label("level")
	begin, d := register(width), register(width)
	VBROADCASTSD(Mem{Base: starts, Index: first, Scale: double}, begin)
	load(Mem{Base: at}, d, width)
	VSUBPD(begin, d, d)
	second := register(width)
	load(Mem{Base: at, Disp: width}, second, width)
	VSUBPD(begin, second, second)
	VADDPD(second, d, d) // both are less than half of start
	MOVQ(i, t)
	SHLQ(Imm(uint64(bits.TrailingZeros(uint(width)))), t)
	store(d, Mem{Base: state, Index: t, Scale: 1}, width)
	VMOVSD(total([]vec{d}, width), Mem{Base: state, Index: i, Scale: double, Disp: stateLevels * 64})
	ADDQ(U32(uint32(size)), at)
	INCQ(i)
	INCQ(first)
	CMPQ(first, high)
	JB(LabelRef("level"))
	finish(env, i)

	// Several levels at a time: the processor has to guess where the last one is.
	const step = 4
	Label("more")
	after := GP64()
	MOVQ(at, after)
	Label("again")
	ADDQ(Imm(step), first)
	LEAQ(Mem{Base: first, Disp: written}, t)
	reach("reach_again")
	for level := written; level < written+step; level++ {
		take(v, Mem{Base: after, Disp: (level - 1) * size})
		take(e, Mem{Base: after, Disp: level*size + width})
	}
	ADDQ(U32(uint32(step*size)), after)
	left("again")
	JMP(LabelRef("next"))

	Label("none")
	XORQ(i, i)
	finish(env, i)
}

// limbKernel adds n numbers to limbs of 32 bits, as Accumulator.add does. It cuts the
// mantissas into pieces for two limbs, four at a time, and then adds them one by one.
func limbKernel(name string) {
	const width, lanes, batch = 32, 4, 2
	TEXT(name, NOSPLIT, "func(x *float64, n int, limb *int64) (done int)")
	Pragma("noescape")
	Doc(name+" adds elements of x to limb, up to the first four that are not all finite; done",
		"is the number of those added, a multiple of four.")
	x := Load(Param("x"), GP64())
	n := Load(Param("n"), GP64())
	limb := Load(Param("limb"), GP64())
	scratch := AllocLocal(3 * batch * width)
	constant := func(v uint64) vec {
		r, g := YMM(), GP64()
		MOVQ(U64(v), g)
		VMOVQ(g, r.AsX())
		VPBROADCASTQ(r.AsX(), r)
		return r
	}
	mantissa, implicit := constant(1<<52-1), constant(1<<52)
	special, bias := constant(0x7ff), constant(1075)
	limbBits, limbShift, limbMask := constant(32), constant(31), constant(1<<32-1)
	none := YMM()
	zero(none)
	i, done := GP64(), GP64()
	XORQ(i, i)
	XORQ(done, done)
	at := func(kind, u, lane int) Mem { return scratch.Offset((kind*batch+u)*width + lane*double) }
	loop := func(label string, count int) {
		Label(label)
		SUBQ(U32(count*lanes), n)
		JB(LabelRef(label + "_end"))
		for u := range count {
			b, e, m, t := YMM(), YMM(), YMM(), YMM()
			VMOVDQU(Mem{Base: x, Index: i, Scale: 1, Disp: u * width}, b)
			VPADDQ(b, b, e)
			VPSRLQ(Imm(53), e, e)
			VPCMPEQQ(special, e, t)
			VPTEST(t, t)
			JNZ(LabelRef("end"))
			VPAND(mantissa, b, m)
			// A subnormal number, or zero, has the exponent 1, and no implicit bit.
			VPCMPEQQ(none, e, t)
			VPSUBQ(t, e, e)
			VPANDN(implicit, t, t)
			VPOR(t, m, m)
			sign := YMM()
			VPCMPGTQ(b, none, sign)
			VPADDQ(bias, e, e)
			VPAND(limbShift, e, t)
			VPSRLQ(Imm(5), e, e)
			VMOVDQU(e, at(0, u, 0))
			low := YMM()
			VPSLLVQ(t, m, low)
			VPAND(limbMask, low, low)
			VPSUBQ(t, limbBits, t)
			VPSRLVQ(t, m, m)
			for kind, v := range []vec{low, m} {
				VPXOR(sign, v, v)
				VPSUBQ(sign, v, v)
				VMOVDQU(v, at(1+kind, u, 0))
			}
		}
		for u := range count {
			for lane := range lanes {
				where, piece := GP64(), GP64()
				MOVQ(at(0, u, lane), where)
				for kind := range 2 {
					MOVQ(at(1+kind, u, lane), piece)
					ADDQ(piece, Mem{Base: limb, Index: where, Scale: 8, Disp: kind * 8})
				}
			}
		}
		ADDQ(U32(count*width), i)
		ADDQ(U32(count*lanes), done)
		JMP(LabelRef(label))
		Label(label + "_end")
		ADDQ(U32(count*lanes), n)
	}
	loop("batch", batch)
	loop("register", 1)
	Label("end")
	VZEROUPPER()
	Store(done, ReturnIndex(0))
	RET()
}

// extentKernel finds the smallest and the largest exponent of products.
func extentKernel(name string) {
	const width, lanes = 32, 4
	TEXT(name, NOSPLIT, "func(x, y *float64, n int) (low, high int)")
	Pragma("noescape")
	Doc(name+" returns the smallest and the largest sum of the exponent fields of x and y among n",
		"elements, a multiple of four, of which neither is zero; low is more than high if there are none.")
	x := Load(Param("x"), GP64())
	y := Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	none, low, high := YMM(), YMM(), YMM()
	zero(none)
	zero(high)
	VPCMPEQD(low, low, low)
	i := GP64()
	XORQ(i, i)
	Label("register")
	SUBQ(Imm(lanes), n)
	JB(LabelRef("end"))
	var bits, absent [2]reg.VecVirtual
	for k, p := range []reg.Register{x, y} {
		bits[k], absent[k] = YMM(), YMM()
		VMOVDQU(Mem{Base: p, Index: i, Scale: 1}, bits[k])
		VPADDQ(bits[k], bits[k], bits[k]) // without the sign
		VPCMPEQQ(none, bits[k], absent[k])
		VPSRLQ(Imm(53), bits[k], bits[k])
	}
	VPOR(absent[0], absent[1], absent[1])
	e := bits[1]
	VPADDQ(bits[0], e, e)
	VPOR(absent[1], e, absent[0])
	VPANDN(e, absent[1], e)
	VPMINUD(absent[0], low, low)
	VPMAXUD(e, high, high)
	ADDQ(Imm(width), i)
	JMP(LabelRef("register"))
	Label("end")
	for k, v := range []reg.VecVirtual{low, high} {
		fold := VPMINUD
		if k == 1 {
			fold = VPMAXUD
		}
		half, r := XMM(), GP32()
		VEXTRACTI128(Imm(1), v, half)
		fold(half, v.AsX(), v.AsX())
		VPSHUFD(Imm(0x4e), v.AsX(), half)
		fold(half, v.AsX(), v.AsX())
		VMOVD(v.AsX(), r)
		Store(r.As64(), ReturnIndex(k))
	}
	VZEROUPPER()
	RET()
}

// steps calls body for n elements, as many at a time as the sizes of float64 say; i counts them.
func steps(n, i reg.Register, sizes []int, body func(size int)) {
	XORQ(i, i)
	for _, size := range sizes {
		label := map[int]string{32: "four", 16: "two", double: "one"}[size]
		count := U32(size / double)
		Label(label)
		SUBQ(count, n)
		JB(LabelRef(label + "_end"))
		body(size)
		ADDQ(count, i)
		JMP(LabelRef(label))
		Label(label + "_end")
		ADDQ(count, n)
	}
}

// widened loads numbers of size bytes in all, half of that in memory if these are float32.
func widened(m Mem, v vec, size int, float32s bool) {
	switch {
	case !float32s && size == double:
		VMOVSD(m, part(v, 16))
	case !float32s:
		VMOVUPD(m, part(v, size))
	case size == double:
		VXORPD(part(v, 16), part(v, 16), part(v, 16))
		VCVTSS2SD(m, part(v, 16), part(v, 16))
	default:
		VCVTPS2PD(m, part(v, size))
	}
}

func storePart(v vec, m Mem, size int) {
	if size == double {
		VMOVSD(part(v, 16), m)
		return
	}
	VMOVUPD(part(v, size), m)
}

// widenKernel makes float64 of float32, exactly.
func widenKernel(name string) {
	TEXT(name, NOSPLIT, "func(dst *float64, src *float32, n int)")
	Pragma("noescape")
	Doc(name + " sets dst to the n numbers of src.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	env := enter()
	i := GP64()
	steps(n, i, []int{32, double}, func(size int) {
		v := YMM()
		widened(Mem{Base: src, Index: i, Scale: 4}, v, size, true)
		storePart(v, Mem{Base: dst, Index: i, Scale: 8}, size)
	})
	env.leave()
	VZEROUPPER()
	RET()
}

// gatherKernel lays elements side by side. Instructions that gather take longer.
func gatherKernel(name string, float32s bool) {
	element, signature := double, "func(dst, src *float64, stride, n int)"
	if float32s {
		element, signature = double/2, "func(dst, src *float32, stride, n int)"
	}
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " sets dst to n elements of src, stride elements apart.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	stride := Load(Param("stride"), GP64())
	n := Load(Param("n"), GP64())
	SHLQ(Imm(map[int]uint64{4: 2, 8: 3}[element]), stride)
	three, i := GP64(), GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, three)
	steps(n, i, []int{32, double}, func(size int) {
		at := []Mem{{Base: src}, {Base: src, Index: stride, Scale: 1}, {Base: src, Index: stride, Scale: 2}, {Base: src, Index: three, Scale: 1}}
		to := Mem{Base: dst, Index: i, Scale: uint8(element)}
		v, h := YMM(), XMM()
		switch {
		case size == double && float32s:
			VMOVSS(at[0], v.AsX())
			VMOVSS(v.AsX(), to)
		case size == double:
			VMOVSD(at[0], v.AsX())
			VMOVSD(v.AsX(), to)
		case float32s:
			VMOVSS(at[0], v.AsX())
			for k := 1; k < 4; k++ {
				VINSERTPS(Imm(uint64(k)<<4), at[k], v.AsX(), v.AsX())
			}
			VMOVUPS(v.AsX(), to)
		default:
			VMOVSD(at[0], v.AsX())
			VMOVHPD(at[1], v.AsX(), v.AsX())
			VMOVSD(at[2], h)
			VMOVHPD(at[3], h, h)
			VINSERTF128(Imm(1), h, v, v)
			VMOVUPD(v, to)
		}
		if size == double {
			ADDQ(stride, src)
		} else {
			LEAQ(Mem{Base: src, Index: stride, Scale: 4}, src)
		}
	})
	VZEROUPPER()
	RET()
}

// partsKernel takes real and imaginary parts apart. Their order changes, by which no sum does.
func partsKernel(name string, float32s bool) {
	signature, scale := "func(re, im, src *float64, n int)", uint8(double)
	if float32s {
		signature, scale = "func(re, im *float64, src *float32, n int)", double/2
	}
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " sets re and im to the parts of n complex numbers, both in the same order, which is another.")
	re := Load(Param("re"), GP64())
	im := Load(Param("im"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	var env environment
	if float32s {
		env = enter()
	}
	i := GP64()
	steps(n, i, []int{32, double}, func(size int) {
		// A complex number is twice as large as its parts are.
		a, b, r := YMM(), YMM(), YMM()
		from := Mem{Base: src, Index: i, Scale: scale}
		if size == double {
			widened(from, a, 16, float32s)
			VMOVSD(a.AsX(), Mem{Base: re, Index: i, Scale: 8})
			VMOVHPD(a.AsX(), Mem{Base: im, Index: i, Scale: 8})
			ADDQ(Imm(uint64(scale)), src)
			return
		}
		widened(from, a, size, float32s)
		widened(from.Offset(4*int(scale)), b, size, float32s)
		VUNPCKLPD(b, a, r)
		VUNPCKHPD(b, a, b)
		VMOVUPD(r, Mem{Base: re, Index: i, Scale: 8})
		VMOVUPD(b, Mem{Base: im, Index: i, Scale: 8})
		ADDQ(Imm(uint64(4*scale)), src)
	})
	if float32s {
		env.leave()
	}
	VZEROUPPER()
	RET()
}

// turns returns the signs that make conjugates of numbers whose parts have been exchanged: imaginary
// parts, which are at even places then, are negative.
func turns() vec {
	v, g := YMM(), GP64()
	MOVQ(U64(1<<63), g)
	VMOVQ(g, v.AsX())
	VINSERTF128(Imm(1), v.AsX(), v, v)
	return v
}

// turn exchanges the parts of complex numbers, and conjugates.
func turn(v, signs vec, size int) {
	VPERMILPD(Imm(5), part(v, size), part(v, size))
	VXORPD(part(signs, size), part(v, size), part(v, size))
}

// turnKernel makes the factor for the imaginary part of an inner product.
func turnKernel(name string) {
	TEXT(name, NOSPLIT, "func(dst, src *float64, n int)")
	Pragma("noescape")
	Doc(name+" sets dst to the n numbers of src, real and imaginary parts by turns: the imaginary",
		"part, negated, and then the real one. n is even.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	signs, i := turns(), GP64()
	steps(n, i, []int{32, 16}, func(size int) {
		v := YMM()
		widened(Mem{Base: src, Index: i, Scale: 8}, v, size, false)
		turn(v, signs, size)
		storePart(v, Mem{Base: dst, Index: i, Scale: 8}, size)
	})
	VZEROUPPER()
	RET()
}

// productsKernel multiplies float32: 24 bits by 24, which a float64 holds.
func productsKernel(name string) {
	TEXT(name, NOSPLIT, "func(dst *float64, x, y *float32, n int)")
	Pragma("noescape")
	Doc(name + " sets dst to the products of x and y, which are exact.")
	dst := Load(Param("dst"), GP64())
	x := Load(Param("x"), GP64())
	y := Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	env := enter()
	i := GP64()
	steps(n, i, []int{32, double}, func(size int) {
		a, b := YMM(), YMM()
		widened(Mem{Base: x, Index: i, Scale: 4}, a, size, true)
		widened(Mem{Base: y, Index: i, Scale: 4}, b, size, true)
		VMULPD(b, a, a)
		storePart(a, Mem{Base: dst, Index: i, Scale: 8}, size)
	})
	env.leave()
	VZEROUPPER()
	RET()
}

// innerKernel multiplies complex64, of which each part is exact as in productsKernel.
func innerKernel(name string) {
	TEXT(name, NOSPLIT, "func(re, im *float64, x, y *float32, n int)")
	Pragma("noescape")
	Doc(name+" sets re and im to the products, which are exact, whose sums are the real and the imaginary",
		"part of the inner product of x and y: n numbers, real and imaginary parts by turns. n is even.")
	re := Load(Param("re"), GP64())
	im := Load(Param("im"), GP64())
	x := Load(Param("x"), GP64())
	y := Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	env := enter()
	signs, i := turns(), GP64()
	steps(n, i, []int{32, 16}, func(size int) {
		a, b, r := YMM(), YMM(), YMM()
		widened(Mem{Base: x, Index: i, Scale: 4}, a, size, true)
		widened(Mem{Base: y, Index: i, Scale: 4}, b, size, true)
		VMULPD(part(b, size), part(a, size), part(r, size))
		storePart(r, Mem{Base: re, Index: i, Scale: 8}, size)
		turn(a, signs, size)
		VMULPD(part(b, size), part(a, size), part(a, size))
		storePart(a, Mem{Base: im, Index: i, Scale: 8}, size)
	})
	env.leave()
	VZEROUPPER()
	RET()
}

func exact(width int, suffix string) {
	if width == 32 {
		widenKernel("widen" + suffix)
		gatherKernel("gather"+suffix, false)
		gatherKernel("gather32"+suffix, true)
		partsKernel("parts"+suffix, false)
		partsKernel("parts32"+suffix, true)
		turnKernel("turn" + suffix)
		productsKernel("products" + suffix)
		innerKernel("inner" + suffix)
		limbKernel("limbs" + suffix)
		extentKernel("extents" + suffix)
	}
	sumKernel(width, "sum"+suffix)
	dotKernel(width, "dot"+suffix)
	wideKernel(width, sumLevels, false, "wideSum"+suffix)
	wideKernel(width, dotLevels, true, "wideDot"+suffix)
	gridKernel(width, "gridDot"+suffix)
}
