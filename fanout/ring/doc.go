// Package ring is the ring items of NSCLDAQ, the data-acquisition system of a
// nuclear-physics laboratory, versions 11 and 12 (its DataFormat.h), and the chunks in
// which they are fanned out to workers. An event file is ring items and nothing else.
//
// A ring item is little-endian:
//
//	 0  size of the item, this field included     32 bits
//	 4  type                                       32 bits
//	 8  size of the body header, this field included  32 bits
//	    0 (version 11) or 4 (version 12): there is none, the body begins at 12
//	12  timestamp                                  64 bits
//	20  source id                                  32 bits
//	24  barrier type                               32 bits
//	28  extension of the body header, up to its size
//	    body, up to the size of the item
//
// A chunk is, for each of its items, a 64-bit timestamp, little-endian, and the item as
// it is; see [Clock] for which timestamp.
//
// What cannot be a ring item is a [*DamageError] that says at which byte. Nothing is
// skipped: behind a damaged item there is no telling where the next one begins. A file of
// version 10, or in the other byte order, is a [*FormatError]; see [CheckFormat].
//
// The functions are safe for concurrent use on different memory; a [Reader], a [Writer]
// and a [Clock] belong to one goroutine at a time.
package ring
