package main

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"time"
)

// distribution keeps all samples of one measurement in a histogram of three significant
// figures, and their extremes and mean exactly. The histogram is an HdrHistogram: values of a
// bucket are told apart by their first subBits bits, the first of which is always set but in
// the first bucket.
type distribution struct {
	counts []int64
	min    float64
	max    float64
	sum    float64
	n      int64
}

// Samples are recorded in thousandths of their unit (ps, kB/s, messages per
// 1000 s), up to 10^12 units: 17 minutes, or more than any bandwidth.
const (
	perUnit  = 1000
	maxValue = 1e12

	subBits = 11 // 2^11 is the least power of two above 2×10^3
	halfSub = 1 << (subBits - 1)
)

func newDistribution() *distribution {
	return &distribution{counts: make([]int64, slot(maxValue*perUnit)+1), min: math.Inf(1), max: math.Inf(-1)}
}

// slot is where a value counts.
func slot(v int64) int {
	shift := max(bits.Len64(uint64(v))-subBits, 0)
	return shift*halfSub + int(v>>shift)
}

// highest is the largest value that counts in a slot.
func highest(slot int) int64 {
	shift := max(slot/halfSub-1, 0)
	return int64(slot-shift*halfSub+1)<<shift - 1
}

func (d *distribution) add(v float64) {
	d.min = math.Min(d.min, v)
	d.max = math.Max(d.max, v)
	d.sum += v
	d.n++
	// What is beyond the histogram, or below its resolution, counts at its edge.
	d.counts[slot(int64(math.Min(math.Max(v, 0), maxValue)*perUnit))]++
}

// merge adds the samples of e.
func (d *distribution) merge(e *distribution) {
	d.min = math.Min(d.min, e.min)
	d.max = math.Max(d.max, e.max)
	d.sum += e.sum
	d.n += e.n
	for i, n := range e.counts {
		d.counts[i] += n
	}
}

func (d *distribution) quantile(percent float64) float64 {
	left := max(int64(percent/100*float64(d.n)+0.5), 1)
	i := 0
	for ; i < len(d.counts)-1; i++ {
		if left -= d.counts[i]; left <= 0 {
			break
		}
	}
	return math.Min(math.Max(float64(highest(i))/perUnit, d.min), d.max) // a slot is wider than a value
}

// fill writes the distribution into r.
func (d *distribution) fill(r *Result) {
	r.Samples = d.n
	if d.n == 0 {
		return
	}
	r.Min, r.Max, r.Mean = d.min, d.max, d.sum/float64(d.n)
	r.P50, r.P99, r.P999 = d.quantile(50), d.quantile(99), d.quantile(99.9)
}

// encode is the histogram as [Result].Histogram has it: counts as variable-length numbers,
// zigzag, runs of zeros as their negative length; compressed, in base64. What reads
// HdrHistogram's logs reads it.
func (d *distribution) encode() string {
	const v2, compressed = 0x1c849313, 0x1c849314
	last := len(d.counts)
	for last > 1 && d.counts[last-1] == 0 {
		last--
	}
	var counts []byte
	zeros := int64(0)
	for _, n := range d.counts[:last] {
		if n == 0 {
			zeros++
			continue
		}
		if zeros > 0 {
			counts = binary.AppendVarint(counts, -zeros)
			zeros = 0
		}
		counts = binary.AppendVarint(counts, n)
	}
	header := []any{uint32(v2), uint32(len(counts)), uint32(0), uint32(3), uint64(1), uint64(maxValue * perUnit), float64(1)}
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	for _, v := range append(header, counts) {
		_ = binary.Write(z, binary.BigEndian, v) // into memory
	}
	_ = z.Close()
	b := binary.BigEndian.AppendUint32(nil, compressed)
	b = binary.BigEndian.AppendUint32(b, uint32(packed.Len()))
	return base64.StdEncoding.EncodeToString(append(b, packed.Bytes()...))
}

// median of vs, which it sorts; the mean of the middle two of an even number.
func median(vs []float64) float64 {
	slices.Sort(vs)
	n := len(vs)
	if n == 0 {
		return 0
	}
	return (vs[(n-1)/2] + vs[n/2]) / 2
}

// spread is the range of vs as a fraction of their median.
func spread(vs []float64) float64 {
	if len(vs) < 2 {
		return 0
	}
	m := median(vs)
	if m == 0 {
		return 0
	}
	return (vs[len(vs)-1] - vs[0]) / m
}

var start = time.Now()

// nanos reads the monotonic clock; time.Since is about half of time.Now.
func nanos() int64 { return int64(time.Since(start)) }

// timerCost is what one call of nanos costs, in ns: the least of several means.
func timerCost() float64 {
	const calls = 1000
	least := math.Inf(1)
	for range 20 {
		t := nanos()
		for range calls {
			nanos()
		}
		least = math.Min(least, float64(nanos()-t)/calls)
	}
	return least
}
