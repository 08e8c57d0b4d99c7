//go:build race

package impi

const raceEnabled = true
