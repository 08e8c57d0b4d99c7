package reduce

// Op is a predefined operation on two elements (MPI 4.1, section 6.9.2).
type Op uint8

// The operations, and the types over which they are defined. The package comment defines their
// semantics.
const (
	Sum     Op = iota // all types but Float64Int64
	Product           // all types but Float64Int64
	Min               // integers and floating-point numbers
	Max               // integers and floating-point numbers
	And               // integers, bitwise
	Or                // integers, bitwise
	Xor               // integers, bitwise
	MinLoc            // Float64Int64
	MaxLoc            // Float64Int64

	ops = iota
)

var opNames = [ops]string{"sum", "product", "min", "max", "and", "or", "xor", "minloc", "maxloc"}

// String returns the operation's name.
func (o Op) String() string {
	if o >= ops {
		return "unknown operation"
	}
	return opNames[o]
}

// Defined says whether o is defined over elements of type t.
func Defined(o Op, t Type) bool {
	return o < ops && t.Valid() && portable[o][t] != nil
}
