// Package wait holds the primitives of waiting: pauses, ordered stores that
// cost less than a sequentially consistent exchange, yields, and sleeping in
// memory that several processes share.
package wait
