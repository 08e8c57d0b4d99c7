//go:build linux

package shm

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// The structures are shared between processes, perhaps of different builds:
// their layout is the protocol.
func TestLayout(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(slot{}))
	require.EqualValues(t, 0, unsafe.Offsetof(slot{}.flag))
	require.EqualValues(t, 8, unsafe.Offsetof(slot{}.ack))
	require.EqualValues(t, 12, unsafe.Offsetof(slot{}.imm))
	require.EqualValues(t, 16, unsafe.Offsetof(slot{}.length))
	require.EqualValues(t, 20, unsafe.Offsetof(slot{}.rkey))
	require.EqualValues(t, 24, unsafe.Offsetof(slot{}.raddr))
	require.EqualValues(t, 32, unsafe.Offsetof(slot{}.body))
	require.EqualValues(t, 8, unsafe.Sizeof(packed{}))
	require.EqualValues(t, 16, unsafe.Sizeof(piece{}))
	require.EqualValues(t, 24, unsafe.Sizeof(pull{}))
	require.EqualValues(t, 16, unsafe.Sizeof(atomicArgs{}))
	require.EqualValues(t, inboxSize, unsafe.Sizeof(inbox{}))
	require.EqualValues(t, 0, unsafe.Offsetof(inbox{}.notify))
	require.EqualValues(t, 8, unsafe.Offsetof(inbox{}.access))
	require.EqualValues(t, 12, unsafe.Offsetof(inbox{}.pd))
	require.EqualValues(t, 16, unsafe.Offsetof(inbox{}.left))
	require.EqualValues(t, 128, unsafe.Offsetof(inbox{}.hazard))
	require.EqualValues(t, 256, unsafe.Offsetof(inbox{}.ack))
	require.EqualValues(t, 264, unsafe.Offsetof(inbox{}.rnrRetry))
	require.EqualValues(t, 268, unsafe.Offsetof(inbox{}.writer))
	require.EqualValues(t, 384, unsafe.Offsetof(inbox{}.slots))
	require.EqualValues(t, 384+64*slotCount, unsafe.Offsetof(inbox{}.bytes))
	require.EqualValues(t, 128, unsafe.Offsetof(control{}.doorbell))
	require.EqualValues(t, 256, unsafe.Offsetof(control{}.boards))
	require.EqualValues(t, 256+8*boardWords, unsafe.Offsetof(control{}.regions))
	require.EqualValues(t, 256+8*boardWords+64*maxMR, controlSize)
	require.Zero(t, payloadLen%packMaxForTest)
}

// packMaxForTest is the largest piece that tx packs; pieces must be able to fill the ring.
const packMaxForTest = 16 << 10

// The ring protocol over ordinary memory between two goroutines, where the race
// detector sees it: slots and bytes go one way, the count of consumed slots the
// other, both sides check every byte.
func TestRingBetweenGoroutines(t *testing.T) {
	box := new(inbox)
	messages := uint32(rounds(20000))
	var wg sync.WaitGroup
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	wg.Go(func() { // the sender
		r := rand.New(rand.NewPCG(seed, 1))
		o := &outbox{inbox: box}
		for i := range messages {
			want := uint32(r.IntN(5000)) &^ 7
			for !o.room() && !t.Failed() {
				o.consumed(uint32(atomic.LoadUint64(&box.ack)))
			}
			sl := o.next()
			pos, b, ok := o.take(want)
			for ; !ok && !t.Failed(); pos, b, ok = o.take(want) {
				o.consumed(uint32(atomic.LoadUint64(&box.ack)))
			}
			if t.Failed() {
				return
			}
			for j := range b {
				b[j] = byte(i + uint32(j))
			}
			*sl.packed() = packed{pos, want}
			sl.imm = i
			o.advance()
			wait.StoreRelease64(&sl.flag, flagOf(o.sent, 2, bitPacked, 0))
			o.prepare(want, i/2) // as if every second one had been an answer
		}
	})
	wg.Go(func() { // the receiver
		for seen := uint32(0); seen < messages; {
			flag, ok := box.arrived(seen + 1)
			if !ok {
				continue
			}
			sl := &box.slots[seen&slotMask]
			if sl.imm != seen || uint8(flag>>32) != 2 || uint8(flag>>40) != bitPacked {
				t.Errorf("slot %d: imm %d, flag %#x", seen, sl.imm, flag)
				return
			}
			p := *sl.packed()
			for j, b := range box.bytes[p.pos : p.pos+p.n] {
				if b != byte(seen+uint32(j)) {
					t.Errorf("slot %d byte %d: %#x", seen, j, b)
					return
				}
			}
			seen++
			wait.StoreRelease64(&box.ack, uint64(seen))
		}
	})
	wg.Wait()
}

// With a payload in the bytes of the inbox, the lines of the next one, as long as that, are written to, if slots of
// the peer have been consumed since that was last done.
func TestPrepare(t *testing.T) {
	o := &outbox{inbox: new(inbox)}
	for i := range o.bytes {
		o.bytes[i] = 1
	}
	untouched := func() (list []int) { // lines of the first 512 bytes
		for i := range 8 {
			if o.bytes[i*64] == 1 {
				list = append(list, i)
			}
		}
		return list
	}
	send := func(n, seen uint32) {
		_, _, ok := o.take(n)
		require.True(t, ok)
		o.advance()
		o.prepare(n, seen)
	}
	send(100, 0)
	require.Len(t, untouched(), 8)
	send(100, 1)
	require.Equal(t, []int{0, 1, 2, 3, 6, 7}, untouched())
	send(100, 1)
	require.Equal(t, []int{0, 1, 2, 3, 6, 7}, untouched())
	send(60, 2)
	require.Equal(t, []int{0, 1, 2, 3, 6}, untouched())
}

// Whatever the order of sizes, an outbox never grants what is not free, and
// never stalls for good.
func TestByteRing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	o := &outbox{inbox: new(inbox)}
	owner := make([]uint32, payloadLen) // slot number that holds the byte, 0: free
	type grant struct{ pos, n uint32 }
	held := map[uint32]grant{}
	for range 5000 {
		want := uint32(r.IntN(20<<10)) &^ 7
		var pos uint32
		var b []byte
		ok := false
		if o.room() {
			pos, b, ok = o.take(want)
		}
		if ok {
			require.LessOrEqual(t, pos+want, uint32(payloadLen))
			require.Len(t, b, int(want))
			require.Equal(t, -1, slices.IndexFunc(owner[pos:pos+want], func(slot uint32) bool { return slot != 0 }))
			for i := range owner[pos : pos+want] {
				owner[pos+uint32(i)] = o.sent + 1
			}
			held[o.sent+1] = grant{pos, want}
			o.advance()
			continue
		}
		require.NotZero(t, o.sent-o.acked, "no room for %d bytes in an empty ring", want)
		k := 1 + uint32(r.IntN(int(o.sent-o.acked)))
		for s := o.acked + 1; s <= o.acked+k; s++ {
			g := held[s]
			delete(held, s)
			clear(owner[g.pos : g.pos+g.n])
		}
		require.True(t, o.consumed(o.acked+k))
	}
}

func TestConsumedChecksThePeersCount(t *testing.T) {
	o := &outbox{inbox: new(inbox), sent: 10, acked: 4}
	require.False(t, o.consumed(11), "more than was sent")
	require.False(t, o.consumed(3), "less than before")
	require.False(t, o.consumed(1<<31))
	require.EqualValues(t, 4, o.acked)
	require.True(t, o.consumed(10))
	o = &outbox{inbox: new(inbox), sent: 5, acked: ^uint32(0) - 3} // across the wrap
	require.True(t, o.consumed(2))
	require.False(t, o.consumed(^uint32(0)))
}

func FuzzPayloadBytes(f *testing.F) {
	f.Add(uint32(0), uint32(0))
	f.Add(uint32(payloadLen), uint32(1))
	f.Add(uint32(payloadLen-8), uint32(8))
	f.Add(^uint32(0), ^uint32(0))
	f.Fuzz(func(t *testing.T, pos, n uint32) {
		b, ok := new(inbox).payloadBytes(packed{pos, n})
		require.Equal(t, uint64(pos)+uint64(n) <= payloadLen, ok)
		if ok {
			require.Len(t, b, int(n))
		}
	})
}

func TestNumbersOfASlot(t *testing.T) {
	f := flagOf(0x01020304, 0x05, 0x06, 0x0708)
	require.Equal(t, uint64(0x0708_06_05_01020304), f)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], f)
	require.Equal(t, []byte{4, 3, 2, 1, 5, 6, 8, 7}, b[:])
}
