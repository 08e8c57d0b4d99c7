// Command gen writes the assembly of packages reduce and exact. It is a module of its
// own, so that the generator is no dependency of the library; "go generate" in
// internal/reduce and in exact runs it.
package main

import (
	"flag"

	"github.com/mmcloughlin/avo/build"
)

func main() {
	width := flag.Int("width", 32, "bytes of a register: 32 (AVX2) or 64 (AVX-512)")
	kernels := flag.String("kernels", "reduce", "of which package: reduce, exact or rounding")
	flag.Parse()
	build.ConstraintExpr("amd64")
	suffix := map[int]string{32: "AVX2", 64: "AVX512"}[*width]
	switch *kernels {
	case "exact":
		exact(*width, suffix)
	case "rounding":
		rounding(*width, suffix)
	default:
		for _, o := range operators() {
			binary(o, *width, o.name+suffix)
			fold(o, *width, o.name+"Fold"+suffix)
		}
	}
	build.Generate()
}
