package main

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/channel"
)

// Providers of Ethernet in user space, which are only used where somebody asks for them: over
// a socket, and past it.
const (
	providerRoCE = "roce"
	providerXDP  = "xdp"
)

// carriersBeside are those that are measured beside tcp: xdp reaches other hosts only.
func carriersBeside(apart bool) []string {
	if apart {
		return []string{providerRoCE, providerXDP}
	}
	return []string{providerRoCE}
}

// carriers says whether the way is that of a provider, against tcp.
func (w *way) carriers() bool {
	return w.names[1] == carrierTCP && slices.Contains(carriersBeside(true), w.names[0])
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
	order = slices.DeleteFunc(append(order, carrierTCP), func(provider string) bool { return !has(provider) })
	return []string{channel.EnvTransport + "=" + strings.Join(order, ",")}
}
