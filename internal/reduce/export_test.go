package reduce

// Functions of one set of kernels, whatever this CPU would run.
type Functions struct {
	Name   string
	Lookup func(o Op, t Type) (Func, bool)
	Fold   func(o Op, t Type) (FoldFunc, bool)
}

// Sets are all sets of kernels that this CPU can run, beside the portable loops.
func Sets() []Functions {
	var all []Functions
	for name, set := range runnable() {
		all = append(all, functions(name, set))
	}
	return all
}

// Portable are the plain Go loops.
func Portable() Functions { return functions("portable", nil) }

func functions(name string, set *kernels) Functions {
	return Functions{
		Name:   name,
		Lookup: func(o Op, t Type) (Func, bool) { return lookup(set, o, t) },
		Fold:   func(o Op, t Type) (FoldFunc, bool) { return lookupFold(set, o, t) },
	}
}

const (
	FoldBlock = foldBlock
	Stretch   = stretch
	Types     = types
	Ops       = ops
)
