package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// operator is what one kernel does to each element.
type operator struct {
	name, doc string
	element   int // bytes

	// prepare sets up the constant register that combine needs, if it needs one.
	prepare func(width int) vec
	// combine sets x to x op y in registers of size bytes, or in the low part of
	// one of 16. It may overwrite y.
	combine func(x, y, constant vec, size int)
}

type instruction func(...Op)

// three is an instruction that has one form only.
func three(op func(a, b, c Op)) instruction {
	return func(ops ...Op) { op(ops[0], ops[1], ops[2]) }
}

func operators() []operator {
	return []operator{
		plain("addF32", "the sum", 4, VADDPS),
		plain("addF64", "the sum", 8, VADDPD),
		plain("addI32", "the sum", 4, VPADDD),
		plain("addI64", "the sum", 8, VPADDQ),
		plain("mulF32", "the product", 4, VMULPS),
		plain("mulF64", "the product", 8, VMULPD),
		plain("mulI32", "the product", 4, VPMULLD),
		{"mulI64", "the product", 8, none, mulI64},
		{"mulC64", "the complex product", 8, evenSigns(31, false), mulComplex(VMOVSLDUP, VMOVSHDUP, swapF32, VMULPS, three(VADDSUBPS), VADDPS)},
		{"mulC128", "the complex product", 16, evenSigns(63, true), mulComplex(VMOVDDUP, highF64, swapF64, VMULPD, three(VADDSUBPD), VADDPD)},
		{"minF32", "the minimum", 4, none, floatMin(VMINPS)},
		{"minF64", "the minimum", 8, none, floatMin(VMINPD)},
		{"maxF32", "the maximum", 4, signs(VPSLLD, 31), floatMax(VMINPS)},
		{"maxF64", "the maximum", 8, signs(VPSLLQ, 63), floatMax(VMINPD)},
		plain("minI32", "the minimum", 4, VPMINSD),
		plain("maxI32", "the maximum", 4, VPMAXSD),
		plain("minU32", "the minimum", 4, VPMINUD),
		plain("maxU32", "the maximum", 4, VPMAXUD),
		{"minI64", "the minimum", 8, none, selectI64(VPMINSQ, true, false)},
		{"maxI64", "the maximum", 8, none, selectI64(VPMAXSQ, false, false)},
		{"minU64", "the minimum", 8, signs(VPSLLQ, 63), selectI64(VPMINUQ, true, true)},
		{"maxU64", "the maximum", 8, signs(VPSLLQ, 63), selectI64(VPMAXUQ, false, true)},
		{"andBits", "the bitwise and", 4, none, bitwise(three(VPAND), VPANDQ)},
		{"orBits", "the bitwise or", 4, none, bitwise(three(VPOR), VPORQ)},
		{"xorBits", "the bitwise exclusive or", 4, none, bitwise(three(VPXOR), VPXORQ)},
	}
}

func none(int) vec { return nil }

// plain is an operator that is one instruction.
func plain(name, doc string, element int, op instruction) operator {
	return operator{name, doc, element, none, func(x, y, _ vec, _ int) { op(y, x, x) }}
}

// bitwise chooses between the instruction of AVX2 and that of AVX-512.
func bitwise(op, wide instruction) func(x, y, _ vec, size int) {
	return func(x, y, _ vec, size int) {
		if size == 64 {
			wide(part(y, size), x, x)
		} else {
			op(part(y, size), x, x)
		}
	}
}

// signs makes the constant that has the sign bit of each element set.
func signs(shift instruction, count uint64) func(width int) vec {
	return func(width int) vec {
		v := register(width)
		if width == 64 {
			VPTERNLOGD(Imm(0xff), v, v, v)
		} else {
			VPCMPEQD(v, v, v)
		}
		shift(Imm(count), v, v)
		return v
	}
}

var (
	or  = bitwise(three(VPOR), VPORQ)
	xor = bitwise(three(VPXOR), VPXORQ)
)

// floatMin is Go's builtin min, by the steps of its compiler on amd64. VMIN gives
// its second operand if an operand is a NaN, or both are zero: with the operands one
// way and then the other, the bitwise or has the sign of -0, and is a NaN if either
// operand was.
func floatMin(op instruction) func(x, y, _ vec, size int) {
	return func(x, y, _ vec, size int) {
		op(y, x, y)
		op(x, y, x)
		or(x, y, nil, size)
	}
}

// floatMax is -min(-x, -y), as the compiler of Go has it.
func floatMax(op instruction) func(x, y, sign vec, size int) {
	return func(x, y, sign vec, size int) {
		xor(x, sign, nil, size)
		xor(y, sign, nil, size)
		floatMin(op)(x, y, nil, size)
		xor(x, sign, nil, size)
	}
}

// mulI64 multiplies without AVX-512 by the schoolbook: the product of the high
// halves is beyond the 64 bits that remain.
func mulI64(x, y, _ vec, size int) {
	if size == 64 {
		VPMULLQ(y, x, x)
		return
	}
	high, cross := register(size), register(size)
	VPSRLQ(Imm(32), x, high)
	VPMULUDQ(y, high, high)
	VPSRLQ(Imm(32), y, cross)
	VPMULUDQ(x, cross, cross)
	VPADDQ(cross, high, high)
	VPSLLQ(Imm(32), high, high)
	VPMULUDQ(y, x, x)
	VPADDQ(high, x, x)
}

// selectI64 is the minimum or the maximum of 64-bit integers, for which AVX2 has no
// instruction, but a signed comparison.
func selectI64(wide instruction, minimum, unsigned bool) func(x, y, sign vec, size int) {
	return func(x, y, sign vec, size int) {
		if size == 64 {
			wide(y, x, x)
			return
		}
		p, q, take := x, y, register(size)
		if unsigned {
			p, q = register(size), register(size)
			VPXOR(part(sign, size), x, p)
			VPXOR(part(sign, size), y, q)
		}
		if minimum {
			VPCMPGTQ(q, p, take)
		} else {
			VPCMPGTQ(p, q, take)
		}
		VBLENDVPD(take, y, x, x)
	}
}

// mulComplex multiplies by the plain formula, each product rounded: the real parts
// of x times y, the imaginary ones times y with its parts swapped, and these
// subtracted from those, or added. AVX-512 has no instruction for the last step; the
// sum with the negative is the same.
func mulComplex(realParts, imagParts, swap, mul, addSub, add instruction) func(x, y, sign vec, size int) {
	return func(x, y, sign vec, size int) {
		im := register(size)
		imagParts(x, im)
		realParts(x, x)
		mul(y, x, x)
		swap(y, y)
		mul(y, im, im)
		if size == 64 {
			xor(im, sign, nil, size)
			add(im, x, x)
		} else {
			addSub(im, x, x)
		}
	}
}

func swapF32(op ...Op) { VPERMILPS(Imm(0b10_11_00_01), op[0], op[1]) }
func swapF64(op ...Op) { VPERMILPD(Imm(0b01_01_01_01), op[0], op[1]) }
func highF64(op ...Op) { VPERMILPD(Imm(0xff), op[0], op[1]) }

// evenSigns makes the constant that has the sign bit of each real part set, which
// only AVX-512 needs.
func evenSigns(bit uint64, pairs bool) func(width int) vec {
	return func(width int) vec {
		if width < 64 {
			return nil
		}
		v := register(width)
		VPTERNLOGD(Imm(0xff), v, v, v)
		VPSRLQ(Imm(63), v, v)
		VPSLLQ(Imm(bit), v, v)
		if pairs {
			VPSRLDQ(Imm(8), v, v)
		}
		return v
	}
}
