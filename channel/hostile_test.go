package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A hostile peer writes what it likes into the rings that it shares with us. We
// neither crash nor touch memory that is not ours or its, and whatever we wait for
// has an end: a typed error, at the latest when the peer has gone.

// hostile is this side of a stream each way to a peer that is played by a test.
type hostile struct {
	t        testing.TB
	peer     *peer
	in, out  *ring // in is the peer's
	memory   []byte
	outside  [][]byte // of memory: unused
	sources  [][]byte
	sends    []*Handle
	receives []*Handle
	failed   error // the last
}

// hostileSizes are the lengths of the messages, one handle each way for each. The
// number of one of the peer's layouts is the index here of its length, plus 1.
// Sends of those from the first packed one on are of heap memory.
var hostileSizes = []int{0, 8, 100, 200, 4096, 5000, 2*chunkMin + 100, 5001, pipeLeast + 1000}

const hostilePacked = 7

func newHostile(t testing.TB, n *Node) *hostile {
	total := 64
	for _, size := range hostileSizes {
		total += 3 * (size + 64)
	}
	x := &hostile{t: t, memory: make([]byte, total), in: newRing(alignedMemory(ringSize)), out: newRing(alignedMemory(ringSize))}
	x.peer = &peer{node: n, rank: 1, bell: ringer{bell: n.bell}, fenced: true, sends: map[uint32]*sendStream{}, receives: map[uint32]*receiveStream{},
		layouts: map[uint32]*remoteLayout{}, resting: map[uint32]uint32{}, had: map[uint32]had{}, handles: map[*Handle]struct{}{}, wake: make(chan struct{}, 1)}
	x.peer.state.Store(peerUp)
	s, r := &sendStream{peer: x.peer}, &receiveStream{peer: x.peer}
	s.begin(x.out, true)
	r.r.Store(x.in)
	s.pipe = make([]byte, pipeLeast)
	theirs := make([]byte, pipeLeast)
	r.pipe.Store(&theirs)
	rest := x.memory
	cut := func(n int) []byte {
		b := rest[:n:n]
		rest = rest[n:]
		return b
	}
	x.outside = append(x.outside, cut(64))
	for i, size := range hostileSizes {
		for _, kind := range []handleKind{kindSend, kindReceive} {
			h := &Handle{node: n, kind: kind, out: s, reachable: kind == kindReceive || i < hostilePacked}
			b := cut(size)
			require.NoError(t, h.adoptLayout(Contiguous(b)))
			if kind == kindSend {
				x.sends, x.sources = append(x.sends, h), append(x.sources, b)
			} else {
				h.in, h.out = r, nil
				x.receives = append(x.receives, h)
			}
			x.outside = append(x.outside, cut(64))
		}
		theirs := Contiguous(cut(size))
		x.peer.setLayout(&remoteLayout{where: where{handle: uint32(i + 1)}, mapped: true, shape: theirs.shape})
		x.outside = append(x.outside, cut(64))
	}
	t.Cleanup(func() {
		for _, h := range slices.Concat(x.sends, x.receives) {
			h.release()
		}
	})
	for _, b := range append(slices.Clone(x.outside), x.sources...) {
		for i := range b {
			b[i] = 0xa5
		}
	}
	return x
}

// word is one that the peer writes: of so many kinds, for slot i.
func (x *hostile) word(kind, i int) *uint64 {
	i %= ringSlots
	switch kind % hostileWords {
	case 0, 1:
		return &x.in.slots[i].word
	case 2:
		return (*uint64)(unsafe.Pointer(&x.in.slots[i].data[0]))
	case 3:
		return (*uint64)(unsafe.Pointer(&x.in.slots[i].data[8]))
	case 4:
		return &x.in.matches[i].next
	case 5:
		return &x.in.matches[i].done
	case 6, 7:
		return &x.out.acks[i]
	case 8:
		return &x.out.gates[i].word
	case 9:
		return &x.out.gates[i].layout
	case 10:
		return &x.out.gates[i].length
	case 11:
		return &x.out.matches[i].next
	case 12:
		return &x.out.matches[i].done
	case 13:
		return &x.out.emptied
	case 14:
		return &x.in.filled
	case 16:
		return &x.out.unpacked
	}
	return (*uint64)(unsafe.Pointer(&x.out.faults))
}

const hostileWords = 17

// test tests all handles once.
func (x *hostile) test() (active int) {
	for _, h := range slices.Concat(x.sends, x.receives) {
		done, err := h.Test()
		x.typed(err)
		switch {
		case !done:
			active++
		case err != nil:
			x.failed = err
		}
	}
	return active
}

func (x *hostile) start(h *Handle) {
	if err := h.Start(); !errors.Is(err, ErrActive) {
		x.typed(err)
	}
}

// typed says that an error is one that a user can make something of.
func (x *hostile) typed(err error) {
	if err == nil {
		return
	}
	var e *Error
	require.ErrorAs(x.t, err, &e)
	for _, want := range []error{ErrLength, ErrProtocol, ErrPeerLeft, ErrPeerDied} {
		if errors.Is(err, want) {
			return
		}
	}
	x.t.Errorf("not an error of this: %v", err)
}

// end lets the peer die, and checks that everything is over and in its place.
func (x *hostile) end() {
	x.peer.fail(fmt.Errorf("%w: a test", ErrPeerDied))
	for try := 0; x.test() > 0; try++ {
		require.Less(x.t, try, 100, "not over")
	}
	for i, b := range append(x.outside, x.sources...) {
		require.Equal(x.t, len(b), bytes.Count(b, []byte{0xa5}), "range %d", i)
	}
}

// Commands of a script: what the peer does, and what we do meanwhile.
const (
	doSend       = iota // which
	doReceive           // which
	doTest              // everything
	doKey               // kind, slot, k relative to what is started, low bits (2)
	doWord              // kind, slot, value (8)
	doRaw               // ring, offset (3), value (8)
	doRendezvous        // slot, handle, length: index
	doDrive             // waiters and the engine
	doKinds
)

func (x *hostile) play(script []byte) {
	next := func(n int) []byte {
		b := make([]byte, n)
		script = script[copy(b, script):]
		return b
	}
	for len(script) > 0 {
		switch next(1)[0] % doKinds {
		case doSend:
			x.start(x.sends[int(next(1)[0])%len(x.sends)])
		case doReceive:
			x.start(x.receives[int(next(1)[0])%len(x.receives)])
		case doTest:
			x.test()
		case doKey:
			b := next(5)
			k := x.receives[0].in.next
			if kind := b[0] % hostileWords; kind >= 6 && kind != 14 {
				k = x.sends[0].out.next
			}
			atomic.StoreUint64(x.word(int(b[0]), int(b[1])), key(k+uint64(int8(b[2])), uint32(binary.BigEndian.Uint16(b[3:]))))
		case doWord:
			b := next(10)
			atomic.StoreUint64(x.word(int(b[0]), int(b[1])), binary.BigEndian.Uint64(b[2:]))
		case doRaw:
			b := next(12)
			r := x.in
			if b[0]%2 == 1 {
				r = x.out
			}
			at := (int(b[1])<<16 | int(b[2])<<8 | int(b[3])) * 8 % ringSize
			atomic.StoreUint64((*uint64)(unsafe.Add(unsafe.Pointer(r), at)), binary.BigEndian.Uint64(b[4:]))
		case doRendezvous:
			b := next(3)
			s := &x.in.slots[int(b[0])%ringSlots]
			s.setRendezvous(rendezvous{where: where{handle: uint32(b[1])}, length: uint64(hostileSizes[int(b[2])%len(hostileSizes)])})
		case doDrive:
			x.receives[0].in.drive()
			s := x.sends[0].out
			s.lock.Lock()
			s.flush()
			s.lock.Unlock()
		}
	}
}

// FuzzHostileRing: whatever a peer writes, and whenever.
func FuzzHostileRing(f *testing.F) {
	n := join(f, 1)[0]
	for _, c := range hostileRings {
		f.Add(c.script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		defer time.AfterFunc(limit, func() { panic("hangs") }).Stop()
		x := newHostile(t, n)
		x.play(script[:min(len(script), 1<<10)])
		x.end()
	})
}

// value appends a big-endian word to a command.
func value(v uint64, command ...byte) []byte { return binary.BigEndian.AppendUint64(command, v) }

// hostileRings are scripts with what becomes of the only handle that is started:
// an error, or nothing before the peer's end.
var hostileRings = []struct {
	name   string
	script []byte
	want   error // nil: it is not over
}{
	{"slot of no kind", slices.Concat([]byte{doReceive, 1}, value(1<<16|77<<8, doWord, 0, 1)), ErrProtocol},
	{"inline longer than its lines", slices.Concat([]byte{doReceive, 3}, value(1<<16|slotInline<<8|200, doWord, 0, 1)), ErrLength},
	{"inline of another length", slices.Concat([]byte{doReceive, 2}, value(1<<16|slotInline<<8|200, doWord, 0, 1)), ErrLength},
	{"slot of the future", slices.Concat([]byte{doReceive, 1}, value(65<<16|slotInline<<8|8, doWord, 0, 1)), nil},
	{"eager behind the data", slices.Concat([]byte{doReceive, 4}, eagerSlot(ringData-100, 4096), value(1<<16|slotEager<<8, doWord, 0, 1)), ErrProtocol},
	{"eager one byte behind the data", slices.Concat([]byte{doReceive, 4}, eagerSlot(ringData-4095, 4096), value(1<<16|slotEager<<8, doWord, 0, 1)), ErrProtocol},
	{"eager beyond the data", slices.Concat([]byte{doReceive, 4}, eagerSlot(1<<31, 4096), value(1<<16|slotEager<<8, doWord, 0, 1)), ErrProtocol},
	{"eager that wraps", slices.Concat([]byte{doReceive, 4}, eagerSlot(^uint32(0), 4096), value(1<<16|slotEager<<8, doWord, 0, 1)), ErrProtocol},
	{"eager of another length", slices.Concat([]byte{doReceive, 4}, eagerSlot(0, ^uint32(0)), value(1<<16|slotEager<<8, doWord, 0, 1)), ErrLength},
	{"rendezvous of an absurd length", slices.Concat([]byte{doReceive, 5}, value(^uint64(0), doWord, 3, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrLength},
	{"rendezvous of no handle", slices.Concat([]byte{doReceive, 5, doRendezvous, 1, 99, 5}, value(1<<16|slotRendezvous<<8, doWord, 0, 1)), nil},
	{"rendezvous of a shorter handle", slices.Concat([]byte{doReceive, 5, doRendezvous, 1, 2, 5}, value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"claims of the future", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(9<<16, doWord, 4, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"more claims than chunks", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(1<<16|99, doWord, 4, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"unknown verdict", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(1<<16|0xfffd, doWord, 4, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"verdict of the wrong side", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(1<<16|verdictLength, doWord, 4, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"more done than chunks", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(1<<16|3, doWord, 4, 1), value(1<<16|9, doWord, 5, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), ErrProtocol},
	{"claimed and never done", slices.Concat([]byte{doReceive, 6, doRendezvous, 1, 7, 6}, value(1<<16|2, doWord, 4, 1), value(1<<16|slotRendezvous<<8, doWord, 0, 1)), nil},
	{"gate of no handle", slices.Concat(value(99<<32, doWord, 9, 1), value(5000, doWord, 10, 1), value(1, doWord, 8, 1), []byte{doSend, 5}), nil},
	{"gate of a shorter handle", slices.Concat(value(2<<32, doWord, 9, 1), value(5000, doWord, 10, 1), value(1, doWord, 8, 1), []byte{doSend, 5}), ErrProtocol},
	{"gate of an absurd length", slices.Concat(value(6<<32, doWord, 9, 1), value(^uint64(0), doWord, 10, 1), value(1, doWord, 8, 1), []byte{doSend, 5}), nil},
	{"claims of the future, sending", slices.Concat(value(9<<16, doWord, 11, 1), []byte{doSend, 6}), ErrProtocol},
	{"more claims than chunks, sending", slices.Concat([]byte{doSend, 6}, value(1<<16|99, doWord, 11, 1)), ErrProtocol},
	{"unknown verdict, sending", slices.Concat([]byte{doSend, 6}, value(1<<16|0xfffd, doWord, 11, 1)), ErrProtocol},
	{"withdrawn by the receiver", slices.Concat([]byte{doSend, 6}, value(1<<16|verdictWithdrawn, doWord, 11, 1)), ErrPeerLeft},
	{"taken and not moved", slices.Concat([]byte{doSend, 6}, value(1<<1, doWord, 6, 1), make([]byte, 0), full()), ErrProtocol},
	{"acknowledged before it was sent", slices.Concat(value(1<<1, doWord, 6, 1), []byte{doSend, 6}), nil},
	{"faults without a fault", slices.Concat([]byte{doSend, 6}, value(7, doWord, 15, 1)), nil},
	{"moved to no gate", slices.Concat([]byte{doReceive, 1}, value(8, doWord, 3, 1), value(1<<16|slotMoved<<8, doWord, 0, 1)), ErrProtocol},
	{"moved of another length", slices.Concat([]byte{doReceive, 4}, value(8, doWord, 3, 1), value(1<<16|slotMoved<<8, doWord, 0, 1)), ErrProtocol},
	{"direct to no gate", slices.Concat([]byte{doReceive, 1}, value(8, doWord, 3, 1), value(1<<16|slotDirect<<8, doWord, 0, 1)), ErrProtocol},
	{"packed of another length", slices.Concat([]byte{doReceive, 7}, value(1, doWord, 3, 1), value(1<<16|slotPacked<<8, doWord, 0, 1)), ErrLength},
	{"packed of an absurd length", slices.Concat([]byte{doReceive, 7}, value(^uint64(0), doWord, 3, 1), value(1<<16|slotPacked<<8, doWord, 0, 1)), ErrLength},
	{"packed elsewhere", slices.Concat([]byte{doReceive, 7}, value(5, doWord, 2, 1), value(5001, doWord, 3, 1), value(1<<16|slotPacked<<8, doWord, 0, 1)), ErrProtocol},
	{"packed and never filled", slices.Concat([]byte{doReceive, 7}, value(5001, doWord, 3, 1), value(1<<16|slotPacked<<8, doWord, 0, 1)), nil},
	{"filled in the past", slices.Concat([]byte{doReceive, 8}, value(pipeLeast+1000, doWord, 3, 1), value(^uint64(0), doWord, 14, 1), value(1<<16|slotPacked<<8, doWord, 0, 1)), nil},
	{"timed, and unpacked in no time", slices.Concat(value(1<<32, doWord, 16, 1), []byte{doSend, 8}, value(1<<1, doWord, 6, 1)), nil},
	{"emptied in the future", slices.Concat(value(99, doWord, 13, 1), []byte{doSend, 8}), nil},
	{"refused while it is packed", slices.Concat([]byte{doSend, 8}, value(1<<1|1, doWord, 6, 1), value(1, doWord, 15, 1)), ErrLength},
}

func eagerSlot(off, n uint32) []byte {
	return value(binary.BigEndian.Uint64(func() []byte {
		b := binary.NativeEndian.AppendUint32(nil, off)
		b = binary.NativeEndian.AppendUint32(b, n)
		return binary.BigEndian.AppendUint64(nil, binary.NativeEndian.Uint64(b))
	}()), doWord, 2, 1)
}

// full fills the ring, so that the sender looks for slots that are free.
func full() []byte {
	var b []byte
	for range ringSlots + 1 {
		b = append(b, doSend, 1, doTest)
	}
	return b
}

// TestHostileRing: each word of a ring that can be wrong.
func TestHostileRing(t *testing.T) {
	n := join(t, 1)[0]
	for _, c := range hostileRings {
		t.Run(c.name, func(t *testing.T) {
			x := newHostile(t, n)
			x.play(c.script)
			if c.want == nil {
				require.Positive(t, x.test())
				require.NoError(t, x.failed)
			} else {
				ctx := within(t)
				for try := 0; x.failed == nil; try++ {
					require.NoError(t, ctx.Err(), "not over")
					if strings.HasPrefix(c.name, "packed") { // the engine has no part in it
						require.Less(t, try, 100, "not over")
					}
					x.test()
				}
				require.ErrorIs(t, x.failed, c.want)
			}
			x.end()
		})
	}
}
