package coll

import "strconv"

// Kind is the kind of a collective. Variants with counts by member (MPI's v-variants) have the
// same kind.
type Kind uint8

// The kinds of collectives, named as in MPI.
const (
	Barrier Kind = iota
	Broadcast
	Reduce
	Allreduce
	ReduceScatter
	Scan
	Exscan
	Gather
	Scatter
	Allgather
	Alltoall

	kinds = int(Alltoall) + 1
)

var kindNames = [kinds]string{
	"barrier", "bcast", "reduce", "allreduce", "reduce-scatter", "scan", "exscan",
	"gather", "scatter", "allgather", "alltoall",
}

// String returns the name as the settings spell it: "bcast", "reduce-scatter".
func (k Kind) String() string {
	if int(k) < kinds {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// ParseKind is the inverse of [Kind.String].
func ParseKind(name string) (Kind, bool) {
	for k, n := range kindNames {
		if n == name {
			return Kind(k), true
		}
	}
	return 0, false
}

// Reduces says whether the kind combines values.
func (k Kind) Reduces() bool { return k >= Reduce && k <= Exscan }

// Rooted says whether one member, the root, has another role than the others.
func (k Kind) Rooted() bool { return k == Broadcast || k == Reduce || k == Gather || k == Scatter }
