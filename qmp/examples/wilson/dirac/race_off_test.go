//go:build !race

package dirac_test

const raceEnabled = false
