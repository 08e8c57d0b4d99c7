//go:build linux && race

package shm

import "sync/atomic"

var raceWord atomic.Uint64

// raceSync tells the race detector about the order that words in shared memory establish,
// which it cannot see. Called before each store and after each load of such a word, it makes
// code that uses both ends in one process, and relies on that order, look as race-free as it
// is.
func raceSync() { raceWord.Add(1) }
