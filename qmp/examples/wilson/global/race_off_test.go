//go:build !race

package global_test

const raceEnabled = false
