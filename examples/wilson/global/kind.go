package global

// Kind says how sums over sites and nodes are rounded.
type Kind int

const (
	// Exact: once. The sum is the float64 nearest to that of all terms, which has the
	// same bits on every grid.
	Exact Kind = iota
	// Sites: the terms of a site are added in their order and rounded, sites exactly.
	// The bits are the same on every grid, too.
	Sites
	// Plain: at each addition. Each node adds up its sites, and the results are added in
	// the order that the library chooses.
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
