package roce

// Packet sequence numbers have 24 bits on the wire. Here they are counted in 32,
// so that they can be compared as numbers modulo 2^32 are; the lower 24 are the
// wire's.

const psnMask = 1<<24 - 1

// extend returns the number nearest to near that is psn on the wire.
func extend(psn, near uint32) uint32 {
	return near + uint32(int32((psn-near)<<8)>>8)
}

// before says that a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }
