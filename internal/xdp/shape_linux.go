package xdp

import "fmt"

// Shape is the layout of a port's memory:
//
//	frames to receive into: Seats × Ring | to send from: Ring for each seat | control
//
// Control holds the locks of the fill ring and of the completion ring, each in a cache line,
// and a word for each frame to send from that says whether the kernel has it.
type Shape struct {
	Chunk int  // bytes of a frame: 2048 or 4096
	Seats int  // a power of two
	Ring  int  // descriptors of a seat's ring, a power of two
	Multi bool // packets longer than a frame take several
}

// Bounds of a shape.
const (
	maxSeats = 256
	maxRing  = 4096
	line     = 64 // bytes
)

func (s Shape) check() error {
	power := func(n, most int) bool { return n > 0 && n <= most && n&(n-1) == 0 }
	if s.Chunk != 2048 && s.Chunk != 4096 || !power(s.Seats, maxSeats) || !power(s.Ring, maxRing) {
		return fmt.Errorf("unsupported layout: %d seats with rings of %d and frames of %d bytes", s.Seats, s.Ring, s.Chunk)
	}
	return nil
}

func (s Shape) frames() int    { return s.Seats * s.Ring } // to receive into, and as many to send from
func (s Shape) sendBase() int  { return s.frames() * s.Chunk }
func (s Shape) umemBytes() int { return 2 * s.frames() * s.Chunk }
func (s Shape) bytes() int     { return s.umemBytes() + (2*line+4*s.frames()+4095)&^4095 }

// headroom is the room that the kernel leaves free before a received packet
// (XDP_PACKET_HEADROOM).
const headroom = 256

// MaxPacket is the longest packet in bytes, from the Ethernet header on.
func (s Shape) MaxPacket() int {
	if s.Multi {
		return 4 * s.Chunk
	}
	return s.Chunk - headroom
}
