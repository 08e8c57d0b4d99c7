//go:build !race

package impi

const raceEnabled = false
