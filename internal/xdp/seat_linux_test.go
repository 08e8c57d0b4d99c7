package xdp

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// paper is a ring without a kernel.
func paper(n, size int) *ring {
	mem := make([]uint64, 8+n*size/8)
	word := func(i int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[i])) }
	return &ring{prod: word(0), cons: word(1), flag: word(2), desc: unsafe.Pointer(&mem[8]), mask: uint32(n - 1)}
}

// paperSeat is a seat without a kernel: what is in its rings is the test's.
func paperSeat(number int) *Seat {
	sh := Shape{Chunk: 2048, Seats: 2, Ring: 16, Multi: true}
	mem := make([]byte, sh.bytes())
	return &Seat{
		shape: sh, holder: uint32(number + 1), socket: -1, mem: mem, ctl: sh.control(mem), leave: func() {},
		rx: paper(sh.Ring, 16), tx: paper(sh.Ring, 16), fill: paper(sh.frames(), 8), comp: paper(sh.frames(), 8),
		whole: make([]byte, 3*sh.MaxPacket()), base: sh.frames() + number*sh.Ring,
	}
}

// deliver puts a descriptor into the ring of received packets.
func (s *Seat) deliver(addr uint64, n, options uint32) {
	*s.rx.packet(*s.rx.prod) = unix.XDPDesc{Addr: addr, Len: n, Options: options}
	*s.rx.prod++
}

func inside(outer, inner []byte) bool {
	if len(inner) == 0 {
		return true
	}
	a, b := uintptr(unsafe.Pointer(&outer[0])), uintptr(unsafe.Pointer(&inner[0]))
	return b >= a && b+uintptr(len(inner)) <= a+uintptr(len(outer))
}

// Whatever is in the rings, which other processes can write to: packets are inside of the
// memory that packets are received into, and only frames of that go back.
func FuzzDescriptors(f *testing.F) {
	desc := func(list ...uint64) (b []byte) {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	f.Add(desc(0, 0, 60), uint32(0), uint32(0))
	f.Add(desc(2048*32, 100), uint32(0), uint32(0))
	f.Add(desc(2000, 2048), uint32(1), uint32(7))
	f.Add(desc(256, 1<<32|1792, 2304, 1<<32|1792, 4352, 300), uint32(3), uint32(9))
	f.Fuzz(func(t *testing.T, b []byte, fill, comp uint32) {
		s := paperSeat(0)
		*s.fill.cons, *s.comp.prod = fill, comp
		for ; len(b) >= 16 && *s.rx.prod < uint32(s.shape.Ring); b = b[16:] {
			s.deliver(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]))
		}
		for range 3 {
			s.Begin()
			for p := s.Next(); p != nil; p = s.Next() {
				require.True(t, inside(s.mem[:s.shape.sendBase()], p) || inside(s.whole, p))
			}
		}
		require.Zero(t, *s.ctl.fill)
		for i := uint32(0); i != min(*s.fill.prod, s.fill.mask+1); i++ {
			a := *s.fill.addr(i)
			require.Less(t, a, uint64(s.shape.sendBase()))
			require.Zero(t, a%uint64(s.shape.Chunk))
		}
		s.reap()
		require.Zero(t, *s.ctl.comp)
	})
}

// A packet of several frames is put together; what is too long, or leaves the memory,
// is dropped whole, and the ones behind it arrive.
func TestSeveralFrames(t *testing.T) {
	s := paperSeat(0)
	for i := range s.mem[:s.shape.sendBase()] {
		s.mem[i] = byte(i / 7)
	}
	const more = unix.XDP_PKT_CONTD
	s.deliver(256, 1792, more)
	s.deliver(2048+256, 1792, more)
	require.Nil(t, s.Next(), "the end has not come")
	s.deliver(4096+256, 10, 0)
	want := bytes.Join([][]byte{s.mem[256:2048], s.mem[2304:4096], s.mem[4352:4362]}, nil)
	require.Equal(t, want, s.Next())

	s.deliver(256, 1792, more)
	s.deliver(uint64(s.shape.sendBase()), 10, 0) // not to receive into
	for range 5 {
		s.deliver(256, 1792, more) // too long
	}
	s.deliver(256, 1, 0)
	s.deliver(300, 3, 0)
	require.Equal(t, s.mem[300:303], s.Next())
	require.Nil(t, s.Next())
}

// What is received is the user's until Begin; and then goes back, once. While another
// has the lock it waits.
func TestFramesGoBack(t *testing.T) {
	s := paperSeat(0)
	s.deliver(256, 60, 0)
	s.deliver(2048+256, 60, 0)
	require.NotNil(t, s.Next())
	require.NotNil(t, s.Next())
	require.Nil(t, s.Next())
	require.Zero(t, *s.fill.prod)
	*s.ctl.fill = 2
	s.Begin()
	require.Zero(t, *s.fill.prod)
	require.Zero(t, *s.rx.cons)
	*s.ctl.fill = 0
	for range 2 {
		s.Begin()
		require.EqualValues(t, 2, *s.fill.prod)
		require.EqualValues(t, 2, *s.rx.cons)
	}
	require.Equal(t, []uint64{0, 2048}, []uint64{*s.fill.addr(0), *s.fill.addr(1)})
}

// A frame is sent from again when the kernel has said that it has done with it; a seat
// hears that of all seats.
func TestFramesToSend(t *testing.T) {
	seats := [2]*Seat{paperSeat(0), paperSeat(1)}
	a, b := seats[0], seats[1]
	b.mem, b.ctl, b.fill, b.comp = a.mem, a.ctl, a.fill, a.comp
	for _, s := range seats {
		for i := range s.shape.Ring {
			p := s.Frame(42, 100)
			require.Len(t, p, 142, "%d", i)
			require.True(t, inside(s.mem[s.base*s.shape.Chunk:][:s.shape.Ring*s.shape.Chunk], p))
		}
		require.Nil(t, s.Frame(42, 100))
		require.EqualValues(t, s.shape.Ring, *s.tx.prod, "what was framed is sent")
		*s.tx.cons = *s.tx.prod
		require.Nil(t, s.Frame(42, 100))
	}
	for i := range 4 { // of b, and a hears it
		*a.comp.addr(uint32(i)) = b.tx.packet(uint32(i)).Addr
	}
	*a.comp.prod = 4
	require.Nil(t, a.Frame(42, 100))
	require.NotNil(t, b.Frame(42, 100))
	require.NotNil(t, b.Frame(42, 100))
	b.Cancel()
	require.NotNil(t, b.Frame(42, 100))
	require.NotNil(t, b.Frame(42, 2048), "two frames")
	require.Nil(t, b.Frame(42, 100))
	d := b.tx.packet(*b.tx.prod - 2)
	require.EqualValues(t, unix.XDP_PKT_CONTD, d.Options)
	require.EqualValues(t, 2048-22, d.Len)
	require.EqualValues(t, 42+2048-(2048-22), b.tx.packet(*b.tx.prod-1).Len)
}

// Bursts begin with the first frame again when the kernel has done with all of them, and not before.
func TestFirstFramesAgain(t *testing.T) {
	s := paperSeat(0)
	s.shape.Ring = 2 * few
	s.tx, s.comp, s.base = paper(s.shape.Ring, 16), paper(s.shape.frames(), 8), s.shape.frames()
	s.mem = make([]byte, s.shape.bytes())
	s.ctl = s.shape.control(s.mem)
	s.socket = -1
	at := func() int {
		require.NotNil(t, s.Frame(42, 100))
		addr := s.tx.packet(s.next - 1).Addr
		s.Flush()
		*s.tx.cons = *s.tx.prod
		return int(addr)/s.shape.Chunk - s.base
	}
	done := func(frames ...int) {
		for _, i := range frames {
			*s.comp.addr(*s.comp.prod) = uint64((s.base + i) * s.shape.Chunk)
			*s.comp.prod++
		}
	}
	for i := range few {
		require.Equal(t, i, at())
		if i > 0 {
			done(i)
		}
	}
	require.Equal(t, few, at(), "the kernel has the first")
	done(0, few)
	require.Zero(t, at())
	require.Equal(t, 1, at())
}
