package coll

import (
	"slices"
	"strconv"
)

// Algorithm is a way to perform a collective.
type Algorithm uint8

// The algorithms. [Algorithms] lists those of each kind.
const (
	// Auto leaves the choice to [Settings.Choose].
	Auto Algorithm = iota
	// Linear: the root, or every member, exchanges with each other member in turn.
	Linear
	// Binomial is a tree of depth log2 of the members; its subtrees consist of
	// consecutive members, and the largest is served first.
	Binomial
	// RecursiveDoubling exchanges with members at distance 1, 2, 4, ...
	RecursiveDoubling
	// RecursiveHalving exchanges halves, quarters, ... of a vector, and reduces
	// what it gets.
	RecursiveHalving
	// Rabenseifner is recursive halving, then gathering the parts.
	// Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004.
	Rabenseifner
	// Ring passes blocks to the next member, which reduces them on the way.
	Ring
	// Pipeline passes segments along a chain of all members.
	Pipeline
	// ScatterAllgather scatters a vector over a binomial tree, and gathers the parts
	// by recursive doubling or round a ring. Van de Geijn; Thakur, Rabenseifner and Gropp, 2005.
	ScatterAllgather
	// Dissemination signals to members at distance 1, 2, 4, ... round a ring.
	// Hensgen, Finkel and Manber, 1988.
	Dissemination
	// Pairwise exchanges with members at distance 1, 2, 3, ..., one at a time.
	Pairwise
	// Bruck sends many blocks in one message, to members at distance 1, 2, 4, ...
	// Bruck et al., Efficient Algorithms for All-to-All Communications, 1997.
	Bruck

	algorithms = int(Bruck) + 1
)

var algorithmNames = [algorithms]string{
	"auto", "linear", "binomial", "recursive-doubling", "recursive-halving", "rabenseifner", "ring",
	"pipeline", "scatter-allgather", "dissemination", "pairwise", "bruck",
}

// String returns the name as the settings spell it: "recursive-doubling".
func (a Algorithm) String() string {
	if int(a) < algorithms {
		return algorithmNames[a]
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

// ParseAlgorithm is the inverse of [Algorithm.String].
func ParseAlgorithm(name string) (Algorithm, bool) {
	i := slices.Index(algorithmNames[:], name)
	return Algorithm(max(i, 0)), i >= 0
}

var algorithmsOf = [kinds][]Algorithm{
	Barrier:       {Linear, Binomial, Dissemination},
	Broadcast:     {Linear, Binomial, ScatterAllgather, Pipeline},
	Reduce:        {Linear, Binomial, Rabenseifner, Pipeline},
	Allreduce:     {Linear, Binomial, RecursiveDoubling, Rabenseifner, Ring, Pipeline},
	ReduceScatter: {Linear, RecursiveHalving, Pairwise, Ring},
	Scan:          {Linear, RecursiveDoubling, Pipeline},
	Exscan:        {Linear, RecursiveDoubling, Pipeline},
	Gather:        {Linear, Binomial},
	Scatter:       {Linear, Binomial},
	Allgather:     {Linear, RecursiveDoubling, Bruck, Ring},
	Alltoall:      {Linear, Pairwise, Bruck},
}

// Algorithms returns all algorithms that [Build] supports for the kind. A shape may allow
// fewer.
func Algorithms(k Kind) []Algorithm {
	if int(k) >= kinds {
		return nil
	}
	return slices.Clone(algorithmsOf[k])
}
