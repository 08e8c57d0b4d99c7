// Package wait holds the primitives of waiting: pauses, release and relaxed stores that
// cost less than a sequentially consistent exchange, yields, and sleeping on memory
// shared between processes.
package wait
