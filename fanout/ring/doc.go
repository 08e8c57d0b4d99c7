// Package ring reads and writes the ring items of NSCLDAQ, the data-acquisition system of a
// nuclear-physics laboratory, versions 11 and 12 (its DataFormat.h), and the chunks in
// which they are sent to workers.
//
//	r := ring.NewReader(file, limit)
//	raw, err := r.Next(&item)                        // io.EOF after the last
//	w := ring.NewWriter(file, ring.V12)
//	err = w.Write(&item)                             // then w.Flush
//	for e, err := range ring.Entries(chunk, limit) { // the items of a chunk, with their timestamps
//
// An event file is a sequence of ring items, nothing else. A ring item is little-endian:
//
//	 0  size of the item, this field included     32 bits
//	 4  type                                       32 bits
//	 8  size of the body header, this field included  32 bits
//	    0 (version 11) or 4 (version 12): no body header, the body begins at 12
//	12  timestamp                                  64 bits
//	20  source id                                  32 bits
//	24  barrier type                               32 bits
//	28  extension of the body header, up to its size
//	    body, up to the size of the item
//
// A chunk has for each of its items a 64-bit timestamp, little-endian, and the unchanged item.
// [Clock] gives the timestamps.
//
// Bytes that cannot be a ring item are a [*DamageError] with their offset. Nothing is skipped:
// after a damaged item it is unknown where the next one begins. A file of version 10, or in the
// other byte order, is a [*FormatError]; see [CheckFormat].
//
// The functions are safe for concurrent use on different memory; a [Reader], a [Writer]
// and a [Clock] belong to one goroutine at a time.
package ring
