package roce

// Packet sequence numbers have 24 bits on the wire. Here they are extended to 32 bits, of which the
// lower 24 are the wire's, so that they compare like numbers modulo 2^32.

const psnMask = 1<<24 - 1

// extend returns the number nearest to near whose wire form is psn.
func extend(psn, near uint32) uint32 {
	return near + uint32(int32((psn-near)<<8)>>8)
}

// before reports whether a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }
