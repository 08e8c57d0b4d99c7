// Package exact sums float64 values, and products of two, without an error: what is
// rounded is the result, once. It is the correctly rounded sum, and the same bits
// whatever the order of the terms, their division among goroutines or ranks, and the
// way the parts are merged.
//
// [Sum] and [Dot] are for one slice, or two. An [Accumulator] takes terms one by one
// and by slices, merges with others ([Accumulator.Merge]), and gives its
// sum with [Accumulator.Round], whose comment says what becomes of NaN, infinities and
// -0. Between processes it travels as [Accumulator.Words], 139 int64 that merge by
// addition, so that a reduction which adds int64 reduces sums; or as bytes,
// [Accumulator.AppendBinary], for files.
//
// # How
//
// An accumulator is a superaccumulator (U. Kulisch, Computer Arithmetic and Validity,
// 2nd ed. 2013, chapter 8): a fixed-point number as wide as the whole range of
// exponents. It is in limbs of 32 bits kept in int64, so that carries are put off for
// 2047 additions, and long slices go through a table with a sum for each sign and
// exponent first (R. M. Neal, Fast exact summation using small and large
// superaccumulators, 2015, arXiv:1505.05571). Other than there it covers the products,
// from 2^-2148 to 2^2048, and their table has sums of 128 bits.
//
// All arithmetic is on integers. No floating-point operation is executed, thus none
// that a compiler may fuse or a rounding mode change: every architecture has the
// same bits.
//
// # What it costs
//
// One core of an AMD EPYC (family 26), Go 1.26, terms per slice 1 Mi, 4,096 and 256;
// GB/s of terms read, decimal:
//
//	AddSlice                          1 Mi   4096    256
//	  all of one sign and exponent     4.1    3.7    3.6
//	  uniform in [0, 1)                7.7    7.5    5.7
//	  normal distribution              9.8    9.1    5.5
//	  normal, times 2^-100 to 2^99    12.2    5.8    1.3
//	  all finite float64              11.8    1.6    1.2
//	s += x[i] in a loop               16.3
//
//	AddProducts                       1 Mi   4096    256
//	  all of one sign and exponent     7.1    6.9    5.9
//	  uniform in [0, 1)                6.7    6.6    5.4
//	  normal distribution              6.7    6.5    4.3
//	  normal, times 2^-100 to 2^99     6.8    5.4    2.2
//	  all finite float64               6.3    2.6    0.9
//	s += x[i]*y[i] in a loop          31.3
//
//	Add          3.1 ns     Merge     40 ns     Words      76 ns
//	AddProduct   7.3 ns     Round     82 ns     SetWords  148 ns
//
// So a long sum takes 1.3 to 4 times as long as a loop that rounds, and an inner
// product 4.4 to 5 times, when the terms are in the cache. They are measured with
//
//	go test -run '^$' -bench . ./exact
//
// docs/exact.md has what that means for a reduction over ranks.
package exact
