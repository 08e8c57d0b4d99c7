package verbstest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// pattern fills b with bytes that follow from seed and from where they are, so
// that a byte in the wrong place is a wrong byte.
func pattern(b []byte, seed uint64) {
	state := mix(seed)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, mix(state))
		state++
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], mix(state))
	copy(b, last[:])
}

// patterned returns n bytes of pattern.
func patterned(n int, seed uint64) []byte {
	b := make([]byte, n)
	pattern(b, seed)
	return b
}

// mix is the output function of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, OOPSLA 2014).
func mix(z uint64) uint64 {
	z *= 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// seeded returns a generator of its own for what, so that one test's draws do
// not depend on which others ran.
func seeded(seed uint64, what string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range []byte(what) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h))
}

// difference describes where two equally long slices differ, "" if nowhere.
func difference(want, got []byte) string {
	first, last, n := -1, -1, 0
	for i := range want {
		if want[i] != got[i] {
			if first < 0 {
				first = i
			}
			last = i
			n++
		}
	}
	if n == 0 {
		return ""
	}
	end := min(first+16, len(want))
	return fmt.Sprintf("%d of %d bytes are wrong, the first at %d, the last at %d: want %x…, got %x…",
		n, len(want), first, last, want[first:end], got[first:end])
}
