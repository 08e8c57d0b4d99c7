package main

import (
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// distribution keeps all samples of one measurement in a histogram of three significant
// figures, and their extremes and mean exactly.
type distribution struct {
	histogram     *hdrhistogram.Histogram
	min, max, sum float64
	n             int64
}

// Samples are recorded in thousandths of their unit (ps, kB/s, messages per
// 1000 s), up to 10^12 units: 17 minutes, or more than any bandwidth.
const (
	perUnit  = 1000
	maxValue = 1e12
)

func newDistribution() *distribution {
	return &distribution{histogram: hdrhistogram.New(1, maxValue*perUnit, 3), min: math.Inf(1), max: math.Inf(-1)}
}

func (d *distribution) add(v float64) {
	d.min = math.Min(d.min, v)
	d.max = math.Max(d.max, v)
	d.sum += v
	d.n++
	// Samples beyond the histogram, or below its resolution, count at its edge.
	must(d.histogram.RecordValue(int64(math.Min(math.Max(v, 0), maxValue) * perUnit)))
}

func (d *distribution) merge(e *distribution) {
	d.min = math.Min(d.min, e.min)
	d.max = math.Max(d.max, e.max)
	d.sum += e.sum
	d.n += e.n
	d.histogram.Merge(e.histogram)
}

func (d *distribution) quantile(percent float64) float64 {
	return math.Min(math.Max(float64(d.histogram.ValueAtQuantile(percent))/perUnit, d.min), d.max) // a slot is wider than a value
}

func (d *distribution) fill(r *Result) {
	r.Samples = d.n
	if d.n == 0 {
		return
	}
	r.Min, r.Max, r.Mean = d.min, d.max, d.sum/float64(d.n)
	r.P50, r.P99, r.P999 = d.quantile(50), d.quantile(99), d.quantile(99.9)
}

// encode returns the histogram in the encoding of [Result].Histogram.
func (d *distribution) encode() string {
	return string(must1(d.histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)))
}

// median sorts vs, and returns its median; of an even number the mean of the middle two.
func median(vs []float64) float64 {
	slices.Sort(vs)
	n := len(vs)
	if n == 0 {
		return 0
	}
	return (vs[(n-1)/2] + vs[n/2]) / 2
}

// spread returns the range of vs as a fraction of their median.
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

// timerCost returns the cost of one call of nanos, in ns: the least of several means.
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
