package su3

import "testing"

// 132 operations in each.
func BenchmarkHalf(b *testing.B) {
	u, h, r := Identity, Half{{1, 2}, {3, 4}, {5, 6}}, Half{}
	b.Run("Mul", func(b *testing.B) {
		for b.Loop() {
			r.Mul(&u, &h)
		}
	})
	b.Run("AdjointMul", func(b *testing.B) {
		for b.Loop() {
			r.AdjointMul(&u, &h)
		}
	})
	var p, q Spinor
	b.Run("ProjectMinus", func(b *testing.B) {
		for b.Loop() {
			h.ProjectMinus(&p, 0)
		}
	})
	b.Run("AddMinus", func(b *testing.B) {
		for b.Loop() {
			q.AddMinus(&h, 0)
		}
	})
}
