//go:build race

package qmp

const raceEnabled = true
