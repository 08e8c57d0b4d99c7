//go:build !race

package verbstest

// raceEnabled: the race detector makes everything slow, and allocates.
const raceEnabled = false
