package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/verbs"
)

// way is a pair of ways that a message can go, and what each took, by size: the first up to
// a crossover, the second above it.
type way struct {
	title    string
	variable string // of the crossover; empty: there is none
	names    [2]string
	includes bool  // the crossover itself is of the first
	higher   bool  // more is better
	sizes    []int // ascending
	figures  [2][]float64
	setting  string // NAME=value that is better than the default; empty: none

	trials [2]trial // that measure it
}

// fit sets the crossover with which the sum of what is lost against the faster way of each
// size is least, if that is by a tenth of one message's time less than with the default.
func (w *way) fit() {
	if w.variable == "" {
		return
	}
	byDefault := channel.DefaultCrossover(w.variable)
	best, least := byDefault, w.loss(byDefault)-worthwhile
	candidates := append([]int{0}, w.sizes...)
	if !w.includes { // all of them
		candidates = append(candidates, 2*w.sizes[len(w.sizes)-1])
	}
	for _, at := range candidates {
		if l := w.loss(at); l < least {
			best, least = at, l
		}
	}
	if best != byDefault {
		w.setting = w.variable + "=" + strconv.Itoa(best)
	}
}

// loss is the sum of the logarithms of what is chosen by a crossover over what is faster.
func (w *way) loss(crossover int) float64 {
	sum := 0.0
	for i, n := range w.sizes {
		chosen, other := w.figures[1][i], w.figures[0][i]
		if n < crossover || w.includes && n == crossover {
			chosen, other = other, chosen
		}
		if w.higher {
			chosen, other = other, chosen
		}
		sum += math.Max(0, math.Log(chosen/other))
	}
	return sum
}

// print shows both ways, size by size.
func (w *way) print(out io.Writer) {
	unit := unitLatency
	if w.higher {
		unit = unitBandwidth
	}
	fmt.Fprintf(out, "\n%s\n", w.title)
	g := newGrid(out, "bytes", w.names[0], w.names[1])
	for i, n := range w.sizes {
		g.row(formatSize(int64(n)), readable(w.figures[0][i], unit), readable(w.figures[1][i], unit))
	}
	_ = g.Flush() // as the rest of out, whose user sees it
	switch {
	case w.variable == "":
	case w.setting == "":
		fmt.Fprintf(out, "%s is best left as it is: %s\n", w.variable, formatSize(int64(channel.DefaultCrossover(w.variable))))
	default:
		fmt.Fprintf(out, "by default %s\n", formatSize(int64(channel.DefaultCrossover(w.variable))))
	}
}

// carriers says whether the way is that of a provider, against tcp.
func (w *way) carriers() bool {
	return w.names[1] == providerTCP && (w.names[0] == providerRoCE || w.names[0] == providerXDP)
}

// against is the sum, over all sizes, of the logarithms of what the first takes over what the
// second does, where less is better.
func (w *way) against() (sum float64) {
	for i := range w.sizes {
		sum += math.Log(w.figures[0][i] / w.figures[1][i])
	}
	return sum
}

// preferred is the setting of the order of providers, where that which is used without one
// (RDMA devices, then tcp) is not the fastest: those that were faster than tcp come before it,
// the fastest first, by as much over all sizes as what else is changed must be better. One
// that not all ranks have cannot be named.
func preferred(ways []way, has func(provider string) bool) []string {
	faster := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !w.carriers() || w.against() > -worthwhile })
	if len(faster) == 0 {
		return nil
	}
	slices.SortStableFunc(faster, func(a, b way) int { return cmp.Compare(a.against(), b.against()) })
	order := []string{providerSHM, providerIBV}
	for _, w := range faster {
		order = append(order, w.names[0])
	}
	order = slices.DeleteFunc(append(order, providerTCP), func(provider string) bool { return !has(provider) })
	return []string{channel.EnvTransport + "=" + strings.Join(order, ",")}
}

// messages measures the ways of messages between two ranks, and adds what is better set
// otherwise to the report's settings.
func (t *tuner) messages(ctx context.Context, report *Report) []way {
	lacks := map[string]string{}
	for _, provider := range []string{providerSHM, providerIBV, providerRoCE, providerXDP, providerTCP} {
		lacks[provider] = t.lacks(ctx, provider)
	}
	list := t.ways(lacks, report)
	var ways []way
	for _, w := range list {
		var merged [][]Result
		err := try(func() { merged = t.measure(ctx, w.trials[:]) })
		if err != nil && w.carriers() && ctx.Err() == nil {
			// The device is there, which is not to say that it reaches the other host.
			report.Missing = append(report.Missing, w.names[0]+": "+err.Error())
			continue
		}
		must(err)
		if t.Rank() != 0 {
			continue
		}
		for k, rs := range merged {
			for _, r := range rs {
				if k == 0 {
					w.sizes = append(w.sizes, int(cmp.Or(r.Block, r.Bytes)))
				}
				w.figures[k] = append(w.figures[k], r.P50)
				r.Algorithm = w.names[k]
				report.Results = append(report.Results, r)
			}
		}
		w.fit()
		if w.setting != "" {
			report.Settings = append(report.Settings, w.setting)
		}
		ways = append(ways, w)
	}
	report.Settings = append(report.Settings, preferred(ways, func(provider string) bool { return lacks[provider] == "" })...)
	return ways
}

// The sizes of messages, and of their blocks, that are tuned.
const (
	tunedEager  = "1k,2k,4k,8k,16k,32k,64k"
	tunedBlocks = "256,512,1k,2k,4k,8k,16k,32k"
	tunedReads  = "1k,2k,4k,8k,16k,32k,64k,128k"
	tunedLong   = "512k" // message of blocks
	tunedCopies = "8k,64k,1M"
	tunedLat    = "8,4k,64k"

	above = "=1073741824" // all blocks
)

// ways are those of the parts that are asked for.
func (t *tuner) ways(lacks map[string]string, report *Report) (list []way) {
	members := []int{0, max(1, slices.IndexFunc(t.hosts, func(host int) bool { return host != t.hosts[0] }))}
	trialOf := func(layer, name string, given map[string]string, settings ...string) trial {
		given["time"] = t.o.time.String()
		return trial{members: members, settings: settings, works: []work{newWork(findPattern(layer, name), given)}}
	}
	pingpong := func(provider, sizes string, settings ...string) trial {
		return trialOf(layerChannel, patternLat, map[string]string{"provider": provider, "sizes": sizes, "batch": "0"}, settings...)
	}
	blocks := func(sizes string, late bool, settings ...string) trial {
		given := map[string]string{"provider": t.o.provider, "sizes": tunedLong, "batch": "0", "blocks": sizes}
		if late {
			given["packed"], given["late"] = "true", "true"
		}
		return trialOf(layerChannel, patternLat, given, settings...)
	}
	eager, pack, read := channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP
	if t.o.provider == providerIBV {
		eager, pack, read = channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA
	}
	_, shmErr := verbs.Find(providerSHM)
	for _, part := range t.o.parts {
		switch part {
		case tuneEager:
			list = append(list, way{title: t.o.provider + " messages, half a round trip: copied at both ends, or straight after asking", variable: eager, names: [2]string{"copied", "straight"}, includes: true,
				trials: [2]trial{pingpong(t.o.provider, tunedEager, eager+"=65536"), pingpong(t.o.provider, tunedEager, eager+"=0")}})
		case tunePack:
			list = append(list, way{title: t.o.provider + " messages of " + tunedLong + " in blocks, half a round trip: packed into one piece, or gathered and scattered", variable: pack, names: [2]string{"packed", "blocks"},
				trials: [2]trial{blocks(tunedBlocks, false, pack+above), blocks(tunedBlocks, false, pack+"=0")}})
		case tuneRead:
			list = append(list, way{title: t.o.provider + " messages of " + tunedLong + " in blocks, to a receiver that is second and has one piece, half a round trip: gathered and written by the sender, or fetched by the receiver", variable: read, names: [2]string{"written", "fetched"},
				trials: [2]trial{blocks(tunedReads, true, pack+"=0", read+above), blocks(tunedReads, true, pack+"=0", read+"=0")}})
		case tuneCopy:
			beside := 1 + slices.Index(t.hosts[1:], t.hosts[0])
			if beside == 0 || shmErr != nil {
				report.Missing = append(report.Missing, providerSHM+": no other rank shares memory with rank 0")
				continue
			}
			w := way{title: "memory of the heap within this host: through a pipe of shared memory (channels), or read out of the process (verbs)", names: [2]string{"pipe", "read"}, higher: true}
			for i, layer := range []string{layerChannel, layerVerbs} {
				w.trials[i] = trialOf(layer, patternBW, map[string]string{"provider": providerSHM, "memory": memoryHeap, "sizes": tunedCopies})
				w.trials[i].members = []int{0, beside}
			}
			list = append(list, w)
		case tuneProvider:
			for _, name := range []string{providerRoCE, providerXDP} {
				switch {
				case name == providerXDP && !t.apart(): // it reaches other hosts only
				case lacks[name] != "":
					report.Missing = append(report.Missing, lacks[name])
				default:
					list = append(list, way{title: "half a round trip, by provider", names: [2]string{name, providerTCP},
						trials: [2]trial{pingpong(name, tunedLat), pingpong(providerTCP, tunedLat)}})
				}
			}
		}
	}
	return list
}
