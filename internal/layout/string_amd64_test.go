//go:build linux && !race

package layout

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCopyLong: the string instruction copies what the builtin copy does, of any length and
// alignment, also between slices of different lengths and within one.
func TestCopyLong(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	memory := make([]byte, 3*stringMax)
	fill(r, memory)
	for range 300 {
		n := r.IntN([]int{2 * stringMin, 64 << 10, stringMax + 100}[r.IntN(3)])
		d, s := r.IntN(len(memory)-n), r.IntN(len(memory)-n)
		if r.IntN(2) == 0 { // they overlap, mostly
			s = max(0, min(d+r.IntN(400)-200, len(memory)-n))
		}
		more := r.IntN(len(memory) - n - max(d, s) + 1)
		dst, src := memory[d:d+n], memory[s:s+n+more]
		if r.IntN(2) == 0 {
			dst, src = memory[d:d+n+more], memory[s:s+n]
		}
		want := bytes.Clone(memory)
		copy(want[d:d+n], want[s:s+n])
		require.Equal(t, n, copyLong(dst, src))
		require.True(t, bytes.Equal(want, memory), "%d bytes from %d to %d", n, s, d)
	}
}

// TestPaysOn: of CPUID's answers of known CPUs, only those of family 26 of AMD say that the string
// instruction pays.
func TestPaysOn(t *testing.T) {
	amd := leaf{0x10, 0x68747541, 0x444d4163, 0x69746e65}
	intel := leaf{0x20, 0x756e6547, 0x6c65746e, 0x49656e69}
	for _, c := range []struct {
		name            string
		vendor, version leaf
		want            bool
	}{
		{"EPYC 9005", amd, leaf{eax: 0xb00f21}, true},
		{"EPYC 9004", amd, leaf{eax: 0xa10f11}, false},
		{"EPYC 7001", amd, leaf{eax: 0x800f12}, false},
		{"Xeon, Sapphire Rapids", intel, leaf{eax: 0x806f8}, false},
		{"of another maker, with AMD's number", intel, leaf{eax: 0xb00f21}, false},
	} {
		require.Equal(t, c.want, paysOn(c.vendor, c.version), c.name)
	}
}

var ways = []struct {
	name string
	copy func(dst, src []byte) int
}{
	{"copy", func(dst, src []byte) int { return copy(dst, src) }},
	{"string", copyLong},
}

// BenchmarkCopy is the builtin copy and that by the string instruction: within the caches, to
// memory that is in none, and between such.
func BenchmarkCopy(b *testing.B) {
	const far = 128 << 20
	src, dst := make([]byte, far), make([]byte, far)
	fill(rand.New(rand.NewPCG(1, 2)), src[:1<<20])
	copy(dst, src)
	for _, place := range []struct {
		name     string
		src, dst bool // move on
	}{{"cached", false, false}, {"cold dst", false, true}, {"cold", true, true}} {
		for size := 4 << 10; size <= 8<<20; size *= 2 {
			for _, w := range ways {
				b.Run(fmt.Sprintf("%s/%d/%s", place.name, size, w.name), func(b *testing.B) {
					b.SetBytes(int64(size))
					for s, d := 0, 0; b.Loop(); {
						w.copy(dst[d:d+size], src[s:s+size])
						if s += size + 4<<10; !place.src || s+size > far {
							s = 0
						}
						if d += size + 4<<10; !place.dst || d+size > far {
							d = 0
						}
					}
				})
			}
		}
	}
}

// BenchmarkHandOver copies four pieces from memory that CPU 0 has written to shared memory, and
// from there to other memory on CPU 1. One thread does both in turn, so that nothing else that runs
// on the CPUs is in the figures, which are those of the first decile.
func BenchmarkHandOver(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old unix.CPUSet
	require.NoError(b, unix.SchedGetaffinity(0, &old))
	defer func() { require.NoError(b, unix.SchedSetaffinity(0, &old)) }()
	on := func(cpu int) {
		var set unix.CPUSet
		set.Set(cpu)
		require.NoError(b, unix.SchedSetaffinity(0, &set))
	}
	for size := 2 << 10; size <= 256<<10; size *= 2 {
		const pieces = 4
		src, ring, dst := make([]byte, pieces*size), make([]byte, pieces*size), make([]byte, pieces*size)
		for _, w := range ways {
			b.Run(fmt.Sprintf("%d/%s", size, w.name), func(b *testing.B) {
				var in, out []time.Duration
				timed := func(dst, src []byte) time.Duration {
					t := time.Now()
					for at := 0; at < len(src); at += size {
						w.copy(dst[at:at+size], src[at:at+size])
					}
					return time.Since(t)
				}
				for b.Loop() {
					on(0)
					for i := range src {
						src[i]++
					}
					in = append(in, timed(ring, src))
					on(1)
					out = append(out, timed(dst, ring))
				}
				for i, list := range [][]time.Duration{in, out} {
					slices.Sort(list)
					b.ReportMetric(float64(len(src))/float64(list[len(list)/10]), []string{"GB/s-in", "GB/s-out"}[i])
				}
			})
		}
	}
}
