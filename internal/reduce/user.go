package reduce

import "fmt"

// User is a reduction that the program brings.
type User struct {
	// Size of an element in bytes, at least 1.
	Size int
	// Commutative says that a op b is b op a, so that a collective may combine
	// sources in another order than that of the ranks. [User.Fold] never does.
	Commutative bool
	// Combine computes dst = a op b over one or more elements, all three of one
	// length, by the rules of [Func]: dst may be a or b. It must be associative, may
	// be called from several goroutines at once, must give the same result for the
	// same operands however many elements it is given at once, and keeps none of the
	// three.
	Combine Func
}

// Apply computes dst = a op b. It panics unless the three are of one length, a
// multiple of Size.
func (u User) Apply(dst, a, b []byte) {
	u.checkSize()
	check(dst, a, b, u.Size)
	if len(dst) > 0 {
		u.Combine(dst, a, b)
	}
}

// Fold computes dst = srcs[0] op srcs[1] op ... from left to right, as [Fold] does,
// in blocks of whole elements. An element of more than 8 KiB allocates if dst is one
// of srcs from the third on.
func (u User) Fold(dst []byte, srcs [][]byte) {
	u.checkSize()
	checkSources(dst, srcs, u.Size)
	fold(u.Combine, max(foldBlock/u.Size, 1)*u.Size, dst, srcs)
}

func (u User) checkSize() {
	if u.Size < 1 {
		panic(fmt.Sprintf("reduce: a user's element of %d bytes", u.Size))
	}
}
