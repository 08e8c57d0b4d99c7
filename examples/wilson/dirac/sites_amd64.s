// Sites of Wilson's operator with registers of 256 bits (AVX2): two spins of a colour
// in each. The operations on every number, and their order, are those of site in
// operator.go: products are rounded before they are added, so that the bits are, too.
//
// A spinor has 192 bytes: of each colour 32 of the first two spins, and 32 of the last
// two. Half of one has 96 bytes, a link 144, the four links of a site 576.
//
// AX received   CX sites left   SI in      R8 next     R11 next of the site
// BX masks      DX links        DI out     R9 sites    R12 of a neighbour: spinor, half
//                                          R10 a site  R13 a link
//
// Y0-Y2 the sum, first two spins of each colour   Y6-Y8  half a spinor
// Y3-Y5 the last two                              Y9-Y11 the same, re and im exchanged

#include "textflag.h"

// PROJECT sets Y6-Y8 to the first two spins of (1 ± γ)ψ, ψ being at R12: the first two
// plus the last two, permuted (ORDER) and with other signs (MASK).
#define PROJECT(ORDER, MASK) \
	VPERMPD $ORDER, 32(R12), Y6; \
	VPERMPD $ORDER, 96(R12), Y7; \
	VPERMPD $ORDER, 160(R12), Y8; \
	VXORPD  MASK(BX), Y6, Y6; \
	VXORPD  MASK(BX), Y7, Y7; \
	VXORPD  MASK(BX), Y8, Y8; \
	VADDPD  (R12), Y6, Y6; \
	VADDPD  64(R12), Y7, Y7; \
	VADDPD  128(R12), Y8, Y8

// EXCHANGE sets Y9-Y11.
#define EXCHANGE \
	VPERMILPD $5, Y6, Y9; \
	VPERMILPD $5, Y7, Y10; \
	VPERMILPD $5, Y8, Y11

// NEGATE changes the signs of Y9-Y11, for the conjugate of a link.
#define NEGATE \
	VXORPD signs<>(SB), Y9, Y9; \
	VXORPD signs<>(SB), Y10, Y10; \
	VXORPD signs<>(SB), Y11, Y11

// DOT sets Y12 to a row times Y6-Y8. The elements of the row are at R13 + A, B and C.
#define DOT(A, B, C) \
	VBROADCASTSD A(R13), Y12; \
	VMULPD       Y6, Y12, Y12; \
	VBROADCASTSD A+8(R13), Y13; \
	VMULPD       Y9, Y13, Y13; \
	VADDSUBPD    Y13, Y12, Y12; \
	VBROADCASTSD B(R13), Y13; \
	VMULPD       Y7, Y13, Y13; \
	VADDPD       Y13, Y12, Y12; \
	VBROADCASTSD B+8(R13), Y13; \
	VMULPD       Y10, Y13, Y13; \
	VADDSUBPD    Y13, Y12, Y12; \
	VBROADCASTSD C(R13), Y13; \
	VMULPD       Y8, Y13, Y13; \
	VADDPD       Y13, Y12, Y12; \
	VBROADCASTSD C+8(R13), Y13; \
	VMULPD       Y11, Y13, Y13; \
	VADDSUBPD    Y13, Y12, Y12

// ADD adds the colour in Y12 to the sum, UP, and what the other two spins are, to LOW.
#define ADD(ORDER, MASK, UP, LOW) \
	VADDPD  Y12, UP, UP; \
	VPERMPD $ORDER, Y12, Y13; \
	VXORPD  MASK(BX), Y13, Y13; \
	VADDPD  Y13, LOW, LOW

// FORWARD adds what comes from the next site along an axis. AT is where its number is in
// next, LINK where the link is among those of the site.
#define FORWARD(AT, LINK, ORDER, PMASK, AMASK, OTHER, MULTIPLY) \
	MOVLQSX AT(R11), R12; \
	TESTQ   R12, R12; \
	JLT     OTHER; \
	LEAQ    (R12)(R12*2), R12; \
	SHLQ    $6, R12; \
	ADDQ    SI, R12; \
	PROJECT(ORDER, PMASK); \
	JMP     MULTIPLY; \
OTHER: \
	NOTQ    R12; \
	LEAQ    (R12)(R12*2), R12; \
	SHLQ    $5, R12; \
	VMOVUPD (AX)(R12*1), Y6; \
	VMOVUPD 32(AX)(R12*1), Y7; \
	VMOVUPD 64(AX)(R12*1), Y8; \
MULTIPLY: \
	LEAQ    (R10)(R10*8), R13; \
	SHLQ    $6, R13; \
	LEAQ    LINK(DX)(R13*1), R13; \
	EXCHANGE; \
	DOT(0, 16, 32); \
	ADD(ORDER, AMASK, Y0, Y3); \
	DOT(48, 64, 80); \
	ADD(ORDER, AMASK, Y1, Y4); \
	DOT(96, 112, 128); \
	ADD(ORDER, AMASK, Y2, Y5)

// BACKWARD adds what comes from the site before: with the adjoint of its link, or
// multiplied already by the node that has it.
#define BACKWARD(AT, LINK, ORDER, PMASK, AMASK, OTHER, DONE) \
	MOVLQSX AT(R11), R12; \
	TESTQ   R12, R12; \
	JLT     OTHER; \
	LEAQ    (R12)(R12*8), R13; \
	SHLQ    $6, R13; \
	LEAQ    LINK(DX)(R13*1), R13; \
	LEAQ    (R12)(R12*2), R12; \
	SHLQ    $6, R12; \
	ADDQ    SI, R12; \
	PROJECT(ORDER, PMASK); \
	EXCHANGE; \
	NEGATE; \
	DOT(0, 48, 96); \
	ADD(ORDER, AMASK, Y0, Y3); \
	DOT(16, 64, 112); \
	ADD(ORDER, AMASK, Y1, Y4); \
	DOT(32, 80, 128); \
	ADD(ORDER, AMASK, Y2, Y5); \
	JMP     DONE; \
OTHER: \
	NOTQ    R12; \
	LEAQ    (R12)(R12*2), R12; \
	SHLQ    $5, R12; \
	VMOVUPD (AX)(R12*1), Y12; \
	ADD(ORDER, AMASK, Y0, Y3); \
	VMOVUPD 32(AX)(R12*1), Y12; \
	ADD(ORDER, AMASK, Y1, Y4); \
	VMOVUPD 64(AX)(R12*1), Y12; \
	ADD(ORDER, AMASK, Y2, Y5); \
DONE:

// STORE sets a register of out to that of in, less κ, Y15, times the sum.
#define STORE(AT, SUM) \
	VMULPD  Y15, SUM, SUM; \
	VMOVUPD AT(SI)(R12*1), Y12; \
	VSUBPD  SUM, Y12, Y12; \
	VMOVUPD Y12, AT(DI)(R12*1)

// AHEAD is how many sites before their turn memory is fetched: numbers of sites that follow each
// other in the list mostly do, and so do their neighbours; measured.
#define AHEAD 5

// LINE fetches a line of the cache.
#define LINE(AT, BASE) PREFETCHT0 AT(BASE)

// FETCHSPINOR fetches what FORWARD and BACKWARD will read along an axis, AHEAD sites later. Where
// the neighbours are of other nodes, it is other memory, or none, which does no harm.
#define FETCHSPINOR(AT) \
	MOVLQSX AT(R11), R12; \
	LEAQ    (R12)(R12*8), R13; \
	LEAQ    (R12)(R12*2), R12; \
	SHLQ    $6, R12; \
	ADDQ    SI, R12; \
	LINE(192*AHEAD, R12); \
	LINE(192*AHEAD+64, R12); \
	LINE(192*AHEAD+128, R12)

// FETCHLINK fetches a link of the site of FETCHSPINOR.
#define FETCHLINK(LINK) \
	SHLQ $6, R13; \
	ADDQ DX, R13; \
	LINE(576*AHEAD+LINK, R13); \
	LINE(576*AHEAD+LINK+64, R13); \
	LINE(576*AHEAD+LINK+128, R13)

// FETCHLINKS fetches all links of a site.
#define FETCHLINKS \
	LEAQ (R10)(R10*8), R13; \
	SHLQ $6, R13; \
	ADDQ DX, R13; \
	LINE(576*AHEAD, R13); \
	LINE(576*AHEAD+64, R13); \
	LINE(576*AHEAD+128, R13); \
	LINE(576*AHEAD+192, R13); \
	LINE(576*AHEAD+256, R13); \
	LINE(576*AHEAD+320, R13); \
	LINE(576*AHEAD+384, R13); \
	LINE(576*AHEAD+448, R13); \
	LINE(576*AHEAD+512, R13)

// Permutations of re, im of two spins: what follows γ along each axis.
#define ORDERX 0x1b
#define ORDERY 0x4e
#define ORDERZ 0xb1
#define ORDERT 0xe4

// func sitesAVX2(out, in *su3.Spinor, links *su3.Matrix, next *[8]int32, received *su3.Half, sites *int32, n int, kappa float64, masks *masks)
TEXT ·sitesAVX2(SB), NOSPLIT, $0-72
	MOVQ         out+0(FP), DI
	MOVQ         in+8(FP), SI
	MOVQ         links+16(FP), DX
	MOVQ         next+24(FP), R8
	MOVQ         received+32(FP), AX
	MOVQ         sites+40(FP), R9
	MOVQ         n+48(FP), CX
	VBROADCASTSD kappa+56(FP), Y15
	MOVQ         masks+64(FP), BX
	TESTQ        CX, CX
	JLE          end

site:
	MOVLQSX (R9), R10
	MOVQ    R10, R11
	SHLQ    $5, R11
	ADDQ    R8, R11
	VXORPD  Y0, Y0, Y0
	VXORPD  Y1, Y1, Y1
	VXORPD  Y2, Y2, Y2
	VXORPD  Y3, Y3, Y3
	VXORPD  Y4, Y4, Y4
	VXORPD  Y5, Y5, Y5
	FETCHLINKS
	FETCHSPINOR(12)
	FETCHSPINOR(28)
	FETCHLINK(432)
	FORWARD(0, 0, ORDERX, 0, 32, otherFX, multiplyX)
	BACKWARD(16, 0, ORDERX, 64, 96, otherBX, doneX)
	FORWARD(4, 144, ORDERY, 128, 160, otherFY, multiplyY)
	BACKWARD(20, 144, ORDERY, 192, 224, otherBY, doneY)
	FORWARD(8, 288, ORDERZ, 256, 288, otherFZ, multiplyZ)
	BACKWARD(24, 288, ORDERZ, 320, 352, otherBZ, doneZ)
	FORWARD(12, 432, ORDERT, 384, 416, otherFT, multiplyT)
	BACKWARD(28, 432, ORDERT, 448, 480, otherBT, doneT)
	LEAQ    (R10)(R10*2), R12
	SHLQ    $6, R12
	STORE(0, Y0)
	STORE(32, Y3)
	STORE(64, Y1)
	STORE(96, Y4)
	STORE(128, Y2)
	STORE(160, Y5)
	ADDQ    $4, R9
	DECQ    CX
	JNZ     site

end:
	VZEROUPPER
	RET

// PACK computes what neighbours need of the sites of a list, along an axis: (1 ± γ)ψ, times the adjoint of the
// link unless there are none.
#define PACK(ORDER, SITE, STORE, NEXT) \
SITE: \
	MOVLQSX (R9), R10; \
	LEAQ    (R10)(R10*2), R12; \
	SHLQ    $6, R12; \
	ADDQ    SI, R12; \
	PROJECT(ORDER, 0); \
	TESTQ   DX, DX; \
	JZ      STORE; \
	LEAQ    (R10)(R10*8), R13; \
	SHLQ    $6, R13; \
	ADDQ    DX, R13; \
	LINE(576*AHEAD, R13); \
	LINE(576*AHEAD+64, R13); \
	LINE(576*AHEAD+128, R13); \
	EXCHANGE; \
	NEGATE; \
	DOT(0, 48, 96); \
	VMOVUPD Y12, (DI); \
	DOT(16, 64, 112); \
	VMOVUPD Y12, 32(DI); \
	DOT(32, 80, 128); \
	VMOVUPD Y12, 64(DI); \
	JMP     NEXT; \
STORE: \
	VMOVUPD Y6, (DI); \
	VMOVUPD Y7, 32(DI); \
	VMOVUPD Y8, 64(DI); \
NEXT: \
	ADDQ    $96, DI; \
	ADDQ    $4, R9; \
	DECQ    CX; \
	JNZ     SITE

// func packAVX2(to *su3.Half, in *su3.Spinor, links *su3.Matrix, sites *int32, n, axis int, mask *[4]uint64)
TEXT ·packAVX2(SB), NOSPLIT, $0-56
	MOVQ  to+0(FP), DI
	MOVQ  in+8(FP), SI
	MOVQ  links+16(FP), DX
	MOVQ  sites+24(FP), R9
	MOVQ  n+32(FP), CX
	MOVQ  axis+40(FP), AX
	MOVQ  mask+48(FP), BX
	TESTQ CX, CX
	JLE   end
	CMPQ  AX, $1
	JLT   siteX
	JEQ   siteY
	CMPQ  AX, $2
	JEQ   siteZ
	PACK(ORDERT, siteT, storeT, nextT)
	JMP   end
	PACK(ORDERZ, siteZ, storeZ, nextZ)
	JMP   end
	PACK(ORDERY, siteY, storeY, nextY)
	JMP   end
	PACK(ORDERX, siteX, storeX, nextX)

end:
	VZEROUPPER
	RET

DATA signs<>+0(SB)/8, $0x8000000000000000
DATA signs<>+8(SB)/8, $0x8000000000000000
DATA signs<>+16(SB)/8, $0x8000000000000000
DATA signs<>+24(SB)/8, $0x8000000000000000
GLOBL signs<>(SB), RODATA|NOPTR, $32
