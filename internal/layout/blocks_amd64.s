//go:build !race

#include "textflag.h"

// func copyBlocks(dst, src unsafe.Pointer, size, count, dstStep, srcStep int)
//
// Each block is copied 64 bytes at a time, then 16, and the last 16 bytes, which
// may overlap what was copied before, so that no branch depends on more than the
// size. The source is fetched eight blocks ahead: hardware does not look beyond a
// page for a stride.
TEXT ·copyBlocks(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ size+16(FP), DX
	MOVQ count+24(FP), CX
	MOVQ dstStep+32(FP), R8
	MOVQ srcStep+40(FP), R9
	LEAQ (R9*8), R10
	LEAQ -64(DX), R12     // the last offset of 64 bytes
	LEAQ -16(DX), R13     // and of 16
block:
	LEAQ (SI)(R10*1), R11
	XORQ AX, AX
	CMPQ AX, R12
	JGT  sixteens
lines:
	PREFETCHT0 (R11)(AX*1)
	MOVUPS (SI)(AX*1), X0
	MOVUPS 16(SI)(AX*1), X1
	MOVUPS 32(SI)(AX*1), X2
	MOVUPS 48(SI)(AX*1), X3
	MOVUPS X0, (DI)(AX*1)
	MOVUPS X1, 16(DI)(AX*1)
	MOVUPS X2, 32(DI)(AX*1)
	MOVUPS X3, 48(DI)(AX*1)
	ADDQ $64, AX
	CMPQ AX, R12
	JLE  lines
	CMPQ AX, DX
	JEQ  next
sixteens:
	PREFETCHT0 (R11)(AX*1)
	CMPQ AX, R13
	JGE  last
sixteen:
	MOVUPS (SI)(AX*1), X0
	MOVUPS X0, (DI)(AX*1)
	ADDQ $16, AX
	CMPQ AX, R13
	JLT  sixteen
last:
	MOVUPS (SI)(R13*1), X0
	MOVUPS X0, (DI)(R13*1)
next:
	ADDQ R8, DI
	ADDQ R9, SI
	DECQ CX
	JNZ  block
	RET

// func copyString(dst, src unsafe.Pointer, n int)
//
// The string instruction stores whole cache lines without fetching what is in them.
TEXT ·copyString(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET

// func storePast(dst, src unsafe.Pointer, n int)
//
// Such stores are not ordered: the fence keeps them before the one that says that they are done.
TEXT ·storePast(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
pastLine:
	MOVUPS (SI), X0
	MOVUPS 16(SI), X1
	MOVUPS 32(SI), X2
	MOVUPS 48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JNZ  pastLine
	SFENCE
	RET

// func cpuid(leaf uint32) leaf
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL AX, ret_eax+8(FP)
	MOVL BX, ret_ebx+12(FP)
	MOVL CX, ret_ecx+16(FP)
	MOVL DX, ret_edx+20(FP)
	RET
