package reduce

import "fmt"

// User is a reduction that the program defines.
type User struct {
	// Size of an element in bytes, at least 1.
	Size int
	// Commutative says that a op b equals b op a, so that a collective may combine sources
	// in another order than rank order. [User.Fold] never does.
	Commutative bool
	// Combine computes dst = a op b over one or more elements, by the rules of [Func]: all
	// three have one length, and dst may be a or b. It must be associative, and the result
	// for an element must not depend on how many elements are passed at once. It may be
	// called concurrently, and must not retain the slices.
	Combine Func
}

// Apply computes dst = a op b. It panics unless all three have the same length, a multiple of Size.
func (u User) Apply(dst, a, b []byte) {
	u.checkSize()
	check(dst, a, b, u.Size)
	if len(dst) > 0 {
		u.Combine(dst, a, b)
	}
}

// Fold computes dst = srcs[0] op srcs[1] op ... from left to right, as [Fold] does, in blocks of
// whole elements. It allocates if elements have more than 8 KiB and dst is one of the sources
// from the third on.
func (u User) Fold(dst []byte, srcs [][]byte) {
	u.checkSize()
	checkSources(dst, srcs, u.Size)
	fold(u.Combine, max(foldBlock/u.Size, 1)*u.Size, dst, srcs)
}

func (u User) checkSize() {
	if u.Size < 1 {
		panic(fmt.Sprintf("reduce: the size of a user's element is %d bytes", u.Size))
	}
}
