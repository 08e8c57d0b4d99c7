//go:build !race

package need

// Race reports whether the race detector watches this program.
const Race = false
