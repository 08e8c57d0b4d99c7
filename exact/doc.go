// Package exact sums float64 values, and products of two, without intermediate rounding: only the
// result is rounded, once.
//
//	sum := exact.Sum(x) // of a slice
//	dot := exact.Dot(x, y)
//	var a exact.Accumulator
//	a.AddSlice(x)      // in any order, on any rank
//	a.Merge(&b)
//	sum = a.Round()
//
// The result is the correctly rounded sum, with the same bits whatever the order of the terms, their
// division among goroutines or ranks, and the way in which the parts are merged. That holds for all sums
// of up to 2^88 terms; the comment of [Accumulator.Merge] describes what is beyond.
//
// [Sum] and [Dot] work on whole slices. An [Accumulator] takes terms one by one or in slices,
// merges with other accumulators ([Accumulator.Merge]), and returns its sum from
// [Accumulator.Round], whose comment describes the treatment of NaN, infinities and -0. Between
// processes an accumulator travels as [Accumulator.Words], 139 int64 that merge by addition, so a
// reduction that adds int64 values merges sums; or as part of them, [Accumulator.NarrowWords]. Between ranks,
// SumExact of package channel, and that of qmp, do all that. For files there is a byte encoding,
// [Accumulator.AppendBinary].
//
// [AddStrided] and [AddProductsStrided] take elements with a stride, and float32; [AddComplex] and
// [AddInner] take complex numbers into a [Complex], of which SumExact takes &c.Re and &c.Im. The inner product
// of a slice and itself is the square of its norm. The caller copies nothing. No function changes or
// keeps a slice of terms, so that several goroutines may add the same one, and x may overlap y. What
// panics because of its arguments has added nothing.
//
// # Algorithm
//
// An accumulator is a superaccumulator (U. Kulisch, Computer Arithmetic and Validity, 2nd ed. 2013,
// chapter 8): a fixed-point number as wide as the whole range of exponents. Its limbs of 32 bits
// are kept in int64, so that carries can be deferred for 2047 additions. What no kernel takes of a long slice
// goes through a table with one sum for each sign and exponent (R. M. Neal, Fast exact summation using
// small and large superaccumulators, 2015, arXiv:1505.05571). Unlike Neal's, the accumulator also
// covers products, from 2^-2148 to 2^2048, whose table has sums of 128 bits.
//
// On amd64 with AVX2 and FMA, slices go through kernels in assembly first, which sum as
// floating-point numbers what can be summed so without any rounding. A sum cuts each term into
// two halves of its mantissa, and adds up either half with room for the carries. An inner product
// takes each product as its rounded value and the error of that, which FMA gives (T. Ogita, S. M. Rump
// and S. Oishi, Accurate sum and dot product, SIAM J. Sci. Comput. 26(6), 2005), and has running sums
// at fixed places for both (S. M. Rump, T. Ogita and S. Oishi, Accurate floating-point summation
// part I, SIAM J. Sci. Comput. 31(1), 2008). The exception flags of the CPU say after each block of
// terms whether anything was rounded, underflowed, or was not a number; if so, the block goes to running
// sums of several levels, for which its exponents may differ more, and if these have no room either, to
// the integers. The kernels have a floating-point environment of their own, and leave the
// caller's as it is.
//
// All else is arithmetic on integers: no result of a floating-point operation that a compiler might fuse
// or a rounding mode might change is part of a sum. Every architecture, and every kernel, computes the
// same bits.
//
// # Cost
//
// With kernels, a long sum takes 1.1 to 2.9 times as long as a loop of SIMD instructions that rounds, and
// an inner product 1.4 to 2.8 times; 7 to 63 times if the exponents of the terms differ widely.
// docs/exact.md has the figures, and says what they mean for a reduction over ranks.
package exact
