// Package reduce holds the elementwise reductions of the collectives: dst[i] =
// a[i] op b[i] over vectors of numbers in raw memory.
//
// # Same bits everywhere
//
// The result for an element depends on the operands of that element alone: not on
// where it lies in the vector, on its address, on which of dst, a and b are the
// same memory, or on the CPU. What SIMD computes is what the plain Go loops
// compute, bit for bit. A product is rounded before it is added to anything, never
// fused. Two things are excepted. Which NaN comes out (sign and payload) when one
// does is the CPU's affair; that one comes out is not. And all this takes the
// floating-point environment that Go programs have: round to nearest even,
// subnormals kept.
//
// # Semantics
//
//   - Sum and Product of integers wrap (Go specification, "Integer overflow").
//   - The complex product is (ac - bd) + (ad + bc)i with each operation rounded to
//     the element's own precision; infinities and NaNs are whatever that gives:
//     (Inf + 0i)(1 + 0i) is Inf + NaN i, without the recovery of C's Annex G. Go's
//     own complex64 product is computed in float64 and differs.
//   - Min and Max are Go's builtin min and max: NaN if an operand is NaN; -0 < +0.
//   - MinLoc and MaxLoc (MPI 4.1, section 6.9.4): the value is that of Min and Max,
//     the index that of the operand whose value it is; where the values are equal
//     (-0 equals +0, and a NaN equals a NaN) the lower of the two indexes. A NaN
//     goes before every number, so that what results is a NaN with the lowest index
//     of one. Both are associative and commutative.
//
// Sum and Product of floating-point and complex numbers are commutative but not
// associative: the order in which sources are combined is part of the result, and
// [Fold] keeps it.
//
// # Memory
//
// No alignment is asked for on amd64 and arm64, whose loads and stores take any
// address; elsewhere elements are aligned as Go aligns their type. Memory need not
// be Go's. Nothing here allocates, locks or calls the kernel, but [Lookup] and
// [LookupFold], which are for the time of declaring.
//
// # SIMD
//
// On amd64 with AVX2, found at run time, every operation but MinLoc and MaxLoc has a
// kernel in assembly, and with AVX-512 of Ice Lake, Zen 4 or later one of that. The
// folder gen has the generator. All else, and every other architecture, runs the
// plain Go loops.
//
// Results are stored through the caches. Stores past them (VMOVNTDQ) sum two vectors
// of 8 MiB into a third 1.2 times as fast, four and eight no faster; but in a
// collective another rank reads the result next, and would then wait for memory.
package reduce
