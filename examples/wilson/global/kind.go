package global

// Kind says how sums over sites and nodes are rounded.
type Kind int

const (
	// Exact: rounded once. The result is the float64 nearest to the sum of all terms, with the
	// same bits on every grid.
	Exact Kind = iota
	// Sites: the terms of a site are added in order and rounded; sites are added exactly. The
	// bits are also the same on every grid.
	Sites
	// Plain: rounded at each addition. Each node adds up its sites, and the library adds the
	// results in an order that it chooses.
	Plain
)

// Kinds are all kinds, by their names.
var Kinds = map[string]Kind{"exact": Exact, "sites": Sites, "plain": Plain}

// String returns the name.
func (k Kind) String() string {
	for name, l := range Kinds {
		if l == k {
			return name
		}
	}
	return "unknown"
}
