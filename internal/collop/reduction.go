package collop

import (
	"fmt"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/reduce"
)

// Reduction says how elements are combined. [RuleOf] shows what it says.
type Reduction struct{ rule *Rule }

// RuleOf returns what a reduction says; nil for the zero Reduction.
func RuleOf(r Reduction) *Rule { return r.rule }

// Rule is what a reduction says. It does not change.
type Rule struct {
	Op      uint8 // number in signatures
	Type    uint8
	Elem    int
	Ordered bool
	Combine reduce.Func
	Fold    reduce.FoldFunc // nil: Combine does
	Err     error
}

// Moved is the rule of what is only moved.
var Moved = new(Rule)

// UserOp is the number of a function of the program in signatures.
const UserOp = 255

// Names are the words for the numbers in signatures.
var Names = coll.Names{
	Operation: func(n uint8) string {
		switch n {
		case 0:
			return "none"
		case UserOp:
			return "function of the program"
		}
		return reduce.Op(n - 1).String()
	},
	Type: func(n uint8) string {
		if n == 0 {
			return "bytes"
		}
		return reduce.Type(n - 1).String()
	},
}

// rules are the predefined ones, so that none is made for a call.
var rules = func() (all [reduce.MaxLoc + 1][reduce.Float64Int64 + 1]*Rule) {
	for op := range all {
		for t := range all[op] {
			all[op][t] = newRule(reduce.Op(op), reduce.Type(t))
		}
	}
	return all
}()

func newRule(op reduce.Op, t reduce.Type) *Rule {
	r := &Rule{Op: uint8(op) + 1, Type: uint8(t) + 1, Elem: t.Size()}
	var ok bool
	if r.Combine, ok = reduce.Lookup(op, t); !ok {
		r.Err = fmt.Errorf("%w: %v is not defined over %v; for MinLoc and MaxLoc use AllreduceBytes with PairsOf", ErrInvalid, op, t)
		return r
	}
	r.Fold, _ = reduce.LookupFold(op, t)
	return r
}

// Predefined is an operation of package reduce over elements of a type.
func Predefined(op reduce.Op, t reduce.Type) Reduction {
	if int(op) >= len(rules) {
		return Reduction{newRule(op, t)}
	}
	return Reduction{rules[op][t]}
}

// User is a function of the program's over elements of size bytes.
func User(size int, commutative bool, combine func(dst, a, b []byte)) Reduction {
	r := &Rule{Op: UserOp, Elem: size, Ordered: !commutative, Combine: combine}
	if size < 1 || combine == nil {
		r.Err = fmt.Errorf("%w: function over elements of %d bytes", ErrInvalid, size)
	}
	return Reduction{r}
}
