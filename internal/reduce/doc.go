// Package reduce holds the elementwise reductions of the collectives: dst[i] = a[i] op
// b[i] over vectors of numbers in raw memory.
//
// # Reproducible bits
//
// The result for an element depends only on the operands of that element, not on its
// place in the vector, its address, which of dst, a and b are the same memory, or the
// CPU. SIMD kernels compute the same bits as the plain Go loops. A product is rounded
// before it is added to anything, never fused. There are two exceptions. The CPU
// decides which NaN (sign and payload) results, but not whether the result is a NaN.
// And all this assumes the floating-point environment of Go programs: round to nearest
// even, subnormals kept.
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
//     the index that of the operand with this value. If the values are equal (-0
//     equals +0, and a NaN equals a NaN), the lower index wins. A NaN precedes every
//     number, so the result is a NaN with the lowest index of one. Both are
//     associative and commutative.
//
// Sum and Product of floating-point and complex numbers are commutative but not
// associative: the order in which sources are combined is part of the result, and
// [Fold] keeps it.
//
// # Memory
//
// Memory needs no alignment on amd64 and arm64, whose loads and stores accept any
// address; elsewhere elements must be aligned as Go aligns their type. The memory need
// not be allocated by Go. Nothing here allocates, locks or calls the kernel, except
// [Lookup] and [LookupFold], which are meant to be called when an operation is
// declared.
//
// # SIMD
//
// On amd64 with AVX2, detected at run time, every operation except MinLoc and MaxLoc
// has an assembly kernel, and another for AVX-512 on Ice Lake, Zen 4 or later. The
// folder gen has the generator. Everything else, and every other architecture, runs the
// plain Go loops.
//
// Results are stored through the caches. Non-temporal stores (VMOVNTDQ) sum two vectors
// of 8 MiB into a third 1.2 times as fast, but four and eight no faster; and in a
// collective another rank reads the result next, and would then wait for memory.
package reduce
