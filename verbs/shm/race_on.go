//go:build linux && race

package shm

import "sync/atomic"

var raceWord atomic.Uint64

// raceSync orders, for the race detector, what the words in shared memory order
// in truth: it does not see those. It stands before each store and behind each
// load of such a word, and makes the users of both ends in one process, who may
// rely on that order, look as orderly as they are.
func raceSync() { raceWord.Add(1) }
