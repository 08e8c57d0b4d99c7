package channel

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/parts"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// A ring is what the two ends of a stream share if they access each other's memory by load and
// store: the state of the k-th send and the k-th receive. It lies in the sender's memory, so that
// sending can begin before the receiver knows of the stream.
//
// Every word carries the number k that it belongs to, so nothing is ever cleared and no index is
// shared: slot k%ringSlots says "k is here", ack k%ringSlots says "k has been taken".

const (
	ringSlots = 64
	slotData  = 56
	inlineMax = slotData + 128 // the largest message in a slot and its further lines
	ringData  = parts.Len

	// eagerMax is the largest message that goes through the ring if its receiver is not
	// waiting yet: copied twice, but complete without the receiver. At 4 KiB a sender
	// completes twice as many messages as by a rendezvous, and heap memory is 7 % faster
	// than through the pipe; a receiver that arrives later takes 290 ns for one instead of
	// 185 (BenchmarkUnexpected); the two are equal at 1.5 KiB.
	eagerMax = 4 << 10

	// gateMin is the length above which a receive opens its gate. A sender that finds it
	// open copies straight into the receiver's memory: 95 ns instead of 145 for 512 bytes,
	// 131 instead of 300 for 4 KiB (BenchmarkPingPong). Checking a closed gate takes 9 ns
	// of the 120 ns of an unexpected message (BenchmarkUnexpected).
	gateMin = inlineMax

	ringMagic   = 0x53_4c_52_47 // "SLRG"
	ringVersion = 7
)

// ring is laid out for the cache: what one side writes and what the other side
// writes never share a line.
type ring struct {
	magic, version, slotCount, dataSize uint32
	_                                   [112]byte
	starving                            uint32 // sender: sends are waiting for slots
	_                                   [124]byte
	faults                              uint32 // receiver: number of messages whose length was wrong
	_                                   [124]byte
	filled                              uint64 // sender: bytes of the pipe since the beginning
	_                                   [120]byte
	emptied                             uint64 // receiver: of these
	unpacked                            uint64 // receiver: k<<32 | ns that it has taken, of the last message that was timed
	_                                   [112]byte

	slots   [ringSlots]slot                       // sender
	acks    [ringSlots]uint64                     // receiver: k of what has been taken
	lengths [ringSlots]uint64                     // receiver: of the receive, if that of the message was wrong
	gates   [ringSlots]gate                       // receiver: waiting receives
	matches [ringSlots]match                      // both, by compare-and-swap
	more    [ringSlots][inlineMax - slotData]byte // sender: what a slot has no room for
	data    [ringData]byte                        // sender
}

const ringSize = int(unsafe.Sizeof(ring{}))

// slot is one cache line: a small message with its flag, the beginning of one that has further lines of its own, or
// the location of a larger one. Half a round trip of 64 and 128 bytes took 171 and 181 ns through the data of the
// ring, of which the receiver learns the place from the slot, and takes 123 and 140.
type slot struct {
	data [slotData]byte
	word uint64 // k<<16 | kind<<8 | inline length, or of slotPacked 1 if it is timed; stored last
}

// Kinds of slots.
const (
	slotInline     = 1 + iota // the message is in the slot
	slotEager                 // offset, length: in the ring's data
	slotRendezvous            // where, length: in the sender's memory
	slotDirect                // length: the sender is copying it into the waiting receive
	slotMoved                 // length: the sender has copied it into the waiting receive
	slotPacked                // its place in the bytes of the pipe, length: in the pipe
)

// gate says that a receive waits, and with which layout. A sender may still be reading it when
// the receive is complete and the next one opens the gate: what it reads then is harmless, as all
// chunks of its k are claimed.
type gate struct {
	word   uint64 // k; stored last
	layout uint64 // handle<<32 | version
	length uint64
	addr   uint64
}

// where says which memory of its sender a message is taken from, or written to: contiguous memory, or
// the layout of a handle, which the sender tells on the control connection.
type where struct {
	handle  uint32
	version uint32 // of the layout; for contiguous memory, the key of its region
	addr    uint64 // of contiguous memory; 0: the layout of the handle
}

func (g *gate) open(k uint64, at where, length int) {
	wait.StoreRelaxed64(&g.word, 0) // a reader that sees the new fields sees this too
	wait.StoreRelease64(&g.layout, uint64(at.handle)<<32|uint64(at.version))
	wait.StoreRelease64(&g.length, uint64(length))
	wait.StoreRelease64(&g.addr, at.addr)
	// This word and the sender's slot: the side that writes second must see the first.
	atomic.StoreUint64(&g.word, k)
}

// read returns the receive that waits at the gate for k, if any.
func (g *gate) read(k uint64) (at where, length uint64, ok bool) {
	if atomic.LoadUint64(&g.word) != k {
		return at, 0, false
	}
	l, n := atomic.LoadUint64(&g.layout), atomic.LoadUint64(&g.length)
	at = where{uint32(l >> 32), uint32(l), atomic.LoadUint64(&g.addr)}
	return at, n, atomic.LoadUint64(&g.word) == k
}

// match is the state of a rendezvous, whose chunks both sides claim one by one.
type match struct {
	next uint64 // k<<16 | number of the next chunk to be claimed, or a verdict
	done uint64 // k<<16 | number of chunks that are done
}

// Verdicts take the place of a chunk number.
const (
	verdictWithdrawn = 0xffff // the node that started it is closing
	verdictLength    = 0xfffe // the lengths differ
	maxChunks        = 0xff00
)

// key is the word of k with low bits v.
func key(k uint64, v uint32) uint64 { return k<<16 | uint64(v) }

// newRing makes a ring in mem, which is zero and of ringSize bytes at least.
func newRing(mem []byte) *ring {
	r := (*ring)(unsafe.Pointer(unsafe.SliceData(mem[:ringSize])))
	r.magic, r.version, r.slotCount, r.dataSize = ringMagic, ringVersion, ringSlots, ringData
	return r
}

// viewRing returns the ring that a peer has made in mem.
func viewRing(mem []byte) (*ring, error) {
	if len(mem) != ringSize || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%64 != 0 {
		return nil, fmt.Errorf("%w: ring of %d bytes, want %d", ErrProtocol, len(mem), ringSize)
	}
	r := (*ring)(unsafe.Pointer(unsafe.SliceData(mem)))
	if r.magic != ringMagic || r.version != ringVersion || r.slotCount != ringSlots || r.dataSize != ringData {
		return nil, fmt.Errorf("%w: ring %#x version %d with %d slots and %d bytes", ErrProtocol, r.magic, r.version, r.slotCount, r.dataSize)
	}
	return r, nil
}

// rendezvous is the content of a slotRendezvous.
type rendezvous struct {
	where
	length uint64
}

func (s *slot) setRendezvous(v rendezvous) {
	binary.NativeEndian.PutUint32(s.data[0:], v.handle)
	binary.NativeEndian.PutUint32(s.data[4:], v.version)
	binary.NativeEndian.PutUint64(s.data[8:], v.length)
	binary.NativeEndian.PutUint64(s.data[16:], v.addr)
}

func (s *slot) rendezvous() rendezvous {
	return rendezvous{
		where:  where{binary.NativeEndian.Uint32(s.data[0:]), binary.NativeEndian.Uint32(s.data[4:]), binary.NativeEndian.Uint64(s.data[16:])},
		length: binary.NativeEndian.Uint64(s.data[8:]),
	}
}

func (s *slot) setPacked(first, length uint64) {
	binary.NativeEndian.PutUint64(s.data[0:], first)
	binary.NativeEndian.PutUint64(s.data[8:], length)
}

func (s *slot) packed() (first, length uint64) {
	return binary.NativeEndian.Uint64(s.data[0:]), binary.NativeEndian.Uint64(s.data[8:])
}

func (s *slot) setEager(off, n uint32) {
	binary.NativeEndian.PutUint32(s.data[0:], off)
	binary.NativeEndian.PutUint32(s.data[4:], n)
}

func (s *slot) eager() (off, n uint32) {
	return binary.NativeEndian.Uint32(s.data[0:]), binary.NativeEndian.Uint32(s.data[4:])
}

// claim takes the next chunk of k, of which there are n. It returns -1 when all
// are taken, and the verdict if there is one.
func (m *match) claim(k uint64, n int) (chunk int, verdict uint32) {
	for {
		v := atomic.LoadUint64(&m.next)
		i := uint32(0)
		if v>>16 == k {
			i = uint32(v & 0xffff)
		}
		switch {
		case v>>16 > k: // k has long been complete
			return -1, 0
		case i > maxChunks:
			return -1, i
		case int(i) >= n:
			return -1, 0
		}
		if atomic.CompareAndSwapUint64(&m.next, v, key(k, i+1)) {
			return int(i), 0
		}
	}
}

// claimed says whether there is nothing left to claim of the n chunks of k.
func (m *match) claimed(k uint64, n int) bool {
	v := atomic.LoadUint64(&m.next)
	return v>>16 > k || v>>16 == k && int(v&0xffff) >= n
}

// judge stores a verdict on k in place of the first claim; false if a chunk has been claimed, or
// there is a verdict already.
func (m *match) judge(k uint64, verdict uint32) bool {
	for {
		v := atomic.LoadUint64(&m.next)
		if v>>16 > k || v>>16 == k && v&0xffff != 0 {
			return v == key(k, verdict)
		}
		if atomic.CompareAndSwapUint64(&m.next, v, key(k, verdict)) {
			return true
		}
	}
}

// verdict returns the verdict on k, 0 if there is none.
func (m *match) verdict(k uint64) uint32 {
	if v := atomic.LoadUint64(&m.next); v>>16 == k && v&0xffff > maxChunks {
		return uint32(v & 0xffff)
	}
	return 0
}

// sane says whether the words are valid for an incomplete k of n chunks.
func (m *match) sane(k uint64, n int) bool {
	next, done := atomic.LoadUint64(&m.next), atomic.LoadUint64(&m.done)
	if next>>16 > k || done>>16 > k || done>>16 == k && int(done&0xffff) > n {
		return false
	}
	i := int(next & 0xffff)
	return next>>16 < k || i <= n || i == verdictWithdrawn || i == verdictLength
}

// finish counts a chunk of k as done.
func (m *match) finish(k uint64) {
	for {
		v := atomic.LoadUint64(&m.done)
		n := uint32(0)
		if v>>16 == k {
			n = uint32(v & 0xffff)
		}
		if atomic.CompareAndSwapUint64(&m.done, v, key(k, n+1)) {
			return
		}
	}
}

// finished says whether all n chunks of k are done.
func (m *match) finished(k uint64, n int) bool {
	return atomic.LoadUint64(&m.done) == key(k, uint32(n))
}

// Chunks of a rendezvous.
const chunkMin = 128 << 10

// chunks returns the number and size of the chunks into which a message of n bytes is cut.
func chunks(n int) (count, size int) {
	size = chunkMin
	for (n+size-1)/size > maxChunks {
		size *= 2
	}
	return max(1, (n+size-1)/size), size
}
