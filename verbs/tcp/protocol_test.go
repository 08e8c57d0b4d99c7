package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// The state machine byte by byte, over tubes: cases that depend on where exactly a stream is cut,
// or on an event while half a frame is written.

func fill(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
	return b
}

func signalled(id uint64, op verbs.Opcode, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, SGList: sges}
}

func onto(wr verbs.SendWR, m *mr, off int) verbs.SendWR {
	wr.RKey, wr.RemoteAddr = m.RKey(), m.Addr()+uint64(off)
	return wr
}

// statuses lists WRIDs and statuses.
func statuses(wcs []verbs.WC) []string {
	var l []string
	for _, wc := range wcs {
		l = append(l, fmt.Sprintf("%d: %v", wc.WRID, wc.Status))
	}
	return l
}

// TestPieces sends all kinds of operations through transports that move a few
// bytes at a time.
func TestPieces(t *testing.T) {
	for _, chunk := range []int{1, 2, 3, 7, 16, 41, 1000} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			b := newLab(t)
			x, y := b.half(7), b.half(7)
			x.tube.chunk, y.tube.chunk = chunk, chunk
			const n = 9000 // more than is copied
			src, dst := b.reg(fill(make([]byte, n), 1)), b.reg(make([]byte, 4*n))
			counter := b.reg(make([]byte, 8))
			binary.NativeEndian.PutUint64(counter.Bytes(), 40)
			old := b.reg(make([]byte, 8))
			y.recv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{sge(dst, 0, 3), sge(dst, 3, n-3)}}, verbs.RecvWR{WRID: 2})
			add := onto(signalled(4, verbs.OpAtomicFetchAndAdd, sge(old, 0, 8)), counter, 0)
			add.CompareAdd = 2
			imm := onto(signalled(5, verbs.OpRDMAWriteWithImm, sge(src, 0, 100)), dst, 3*n)
			imm.Imm = 0xfeedface
			x.post(
				signalled(1, verbs.OpSend, sge(src, 0, 5), sge(src, 5, n-5)),
				onto(signalled(2, verbs.OpRDMAWrite, sge(src, 0, n)), dst, n),
				onto(signalled(3, verbs.OpRDMARead, sge(dst, 2*n, 1), sge(dst, 2*n+1, n-1)), src, 0),
				add, imm)
			exchange(x, y)
			require.Equal(t, []string{"1: success", "2: success", "3: success", "4: success", "5: success"}, statuses(x.poll()))
			got := y.poll()
			require.Equal(t, []string{"1: success", "2: success"}, statuses(got))
			require.EqualValues(t, 0xfeedface, got[1].Imm)
			for i := range 3 {
				require.True(t, bytes.Equal(src.Bytes(), dst.Bytes()[i*n:(i+1)*n]), "copy %d", i)
			}
			require.Equal(t, src.Bytes()[:100], dst.Bytes()[3*n:3*n+100])
			require.EqualValues(t, 42, binary.NativeEndian.Uint64(counter.Bytes()))
			require.EqualValues(t, 40, binary.NativeEndian.Uint64(old.Bytes()))
		})
	}
}

// TestCutAnywhere ends the stream after every single byte: complete messages are delivered,
// incomplete ones are not, and all posted work completes once.
func TestCutAnywhere(t *testing.T) {
	b := newLab(t)
	sizes := []int{0, 1, 100, 6000, 8} // one of them with a trailer
	src := b.reg(fill(make([]byte, 6000), 1))
	x := b.half(7)
	var wrs []verbs.SendWR
	var ends []int // where in the stream each message is complete
	var stream []byte
	for i, n := range sizes {
		wrs = append(wrs, signalled(uint64(i), verbs.OpSend, sge(src, 0, n)))
		x.post(wrs[i])
		out, _ := x.take()
		stream = append(stream, out...)
		ends = append(ends, len(stream))
	}
	dst := b.reg(make([]byte, 6000))
	step := need.InShort(3, 1)
	for cut := 0; cut <= len(stream); cut += step {
		if cut > 300 && cut%97 != 0 && cut < len(stream)-100 {
			continue // in the middle of the long one
		}
		y := b.half(7)
		for i := range sizes {
			y.recv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{sge(dst, 0, 6000)}})
		}
		y.post(signalled(100, verbs.OpSend))
		y.give(stream[:cut], true)
		wcs := y.poll()
		require.Len(t, wcs, len(sizes)+1, "cut at %d", cut)
		k := 0
		for _, end := range ends {
			if cut >= end {
				require.Equal(t, verbs.WCSuccess, wcs[k].Status, "message %d, cut at %d", k, cut)
				require.EqualValues(t, sizes[k], wcs[k].ByteLen)
				k++
			}
		}
		for i, wc := range wcs[k:] {
			want := verbs.WCWRFlushErr
			if wc.WRID == 100 {
				want = verbs.WCRetryExcErr
			}
			require.Equal(t, want, wc.Status, "completion %d, cut at %d", k+i, cut)
		}
		require.Equal(t, verbs.QPErr, y.q.State())
		require.True(t, y.tube.closed)
	}
}

// TestRegionClosedUnderWay: the region of a frame is closed when half of the frame is sent. The
// frame is completed, and void.
func TestRegionClosedUnderWay(t *testing.T) {
	const n = 20000
	b := newLab(t)
	src, dst := b.reg(fill(make([]byte, n), 1)), b.reg(make([]byte, n))

	t.Run("request", func(t *testing.T) {
		x, y := b.half(7), b.half(7)
		gone := b.regFor(fill(make([]byte, n), 2))
		y.recv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{sge(dst, 0, n)}}, verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{sge(dst, 0, n)}})
		x.tube.room = 2 * n / 3 * 2 // in the middle of the second
		x.post(signalled(1, verbs.OpSend, sge(src, 0, n)), signalled(2, verbs.OpSend, sge(gone, 0, n)), signalled(3, verbs.OpSend))
		require.NoError(t, gone.Close())
		x.tube.room = -1
		x.drive()
		require.Empty(t, x.poll(), "the first has not been acknowledged")
		exchange(x, y)
		require.Equal(t, []string{"1: success", "2: local protection error", "3: work request flushed error"}, statuses(x.poll()))
		require.Equal(t, []string{"1: success"}, statuses(y.poll()))
		require.Equal(t, verbs.QPErr, x.q.State())
		require.Equal(t, verbs.QPRTS, y.q.State(), "the peer's QP is none the worse")
	})
	t.Run("answer", func(t *testing.T) {
		x, y := b.half(7), b.half(7)
		gone := b.regFor(fill(make([]byte, n), 2))
		x.post(onto(signalled(1, verbs.OpRDMARead, sge(dst, 0, 100)), src, 0),
			onto(signalled(2, verbs.OpRDMARead, sge(dst, 0, n)), gone, 0),
			onto(signalled(3, verbs.OpRDMARead, sge(dst, 0, 100)), src, 0))
		out, _ := x.take()
		y.tube.room = n / 2
		y.give(out, false)
		require.NoError(t, gone.Close())
		y.tube.room = -1
		y.drive()
		exchange(x, y)
		require.Equal(t, []string{"1: success", "2: remote access error", "3: work request flushed error"}, statuses(x.poll()))
		require.Equal(t, verbs.QPErr, y.q.State())
	})
	t.Run("target", func(t *testing.T) {
		x, y := b.half(7), b.half(7)
		gone := b.regFor(make([]byte, n))
		x.post(onto(signalled(1, verbs.OpRDMAWrite, sge(src, 0, n)), gone, 0))
		out, _ := x.take()
		y.give(out[:n/2], false)
		require.NoError(t, gone.Close())
		y.give(out[n/2:], false)
		exchange(x, y)
		require.Equal(t, []string{"1: remote access error"}, statuses(x.poll()))
		require.Equal(t, verbs.QPErr, y.q.State())
	})
	t.Run("receive", func(t *testing.T) {
		x, y := b.half(7), b.half(7)
		gone := b.regFor(make([]byte, n))
		y.recv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{sge(gone, 0, n)}}, verbs.RecvWR{WRID: 2})
		x.post(signalled(1, verbs.OpSend, sge(src, 0, n)))
		out, _ := x.take()
		y.give(out[:n/2], false)
		require.NoError(t, gone.Close())
		y.give(out[n/2:], false)
		exchange(x, y)
		require.Equal(t, []string{"1: remote operation error"}, statuses(x.poll()))
		require.Equal(t, []string{"1: local protection error", "2: work request flushed error"}, statuses(y.poll()))
	})
	t.Run("result", func(t *testing.T) {
		x, y := b.half(7), b.half(7)
		gone := b.regFor(make([]byte, n))
		x.post(onto(signalled(1, verbs.OpRDMARead, sge(gone, 0, n)), src, 0))
		require.NoError(t, gone.Close())
		exchange(x, y)
		require.Equal(t, []string{"1: local protection error"}, statuses(x.poll()))
		require.Equal(t, verbs.QPRTS, y.q.State())
	})
}

// TestLeaveUnderWay: a QP goes to ERR, or is closed, when half of a frame is sent.
func TestLeaveUnderWay(t *testing.T) {
	const n = 20000
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed %v", closed), func(t *testing.T) {
			b := newLab(t)
			src, dst := b.reg(fill(make([]byte, n), 1)), b.reg(make([]byte, n))
			x, y := b.half(7), b.half(7)
			y.recv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{sge(dst, 0, n)}}, verbs.RecvWR{WRID: 2})
			x.tube.room = n / 2
			x.post(signalled(1, verbs.OpSend, sge(src, 0, n)))
			last := kindDown
			if closed {
				last = kindBye
				x.modify(verbs.QPAttr{QPState: verbs.QPReset}, verbs.MaskState)
			} else {
				x.modify(verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState)
				require.Equal(t, []string{"1: work request flushed error"}, statuses(x.poll()))
			}
			x.q.Lock.Lock()
			require.False(t, x.tube.fin)
			x.tube.room = -1
			x.conn.drive(nil)
			require.True(t, x.tube.fin, "everything is said")
			x.q.Unlock()
			out, _ := x.take()
			require.EqualValues(t, last, out[len(out)-headerSize])
			y.give(out, true)
			if closed {
				require.Equal(t, verbs.QPErr, y.q.State())
				require.Equal(t, []string{"1: work request flushed error", "2: work request flushed error"}, statuses(y.poll()))
				return
			}
			require.Equal(t, verbs.QPRTS, y.q.State())
			require.Empty(t, y.poll(), "the message was void")
			y.post(signalled(5, verbs.OpSend))
			require.ElementsMatch(t, []string{"5: transport retry counter exceeded", "1: work request flushed error", "2: work request flushed error"}, statuses(y.poll()))
		})
	}
}

// TestGoBack: a receiver without a posted receive drops messages, which are sent again once one is
// posted: everything is executed once, and in order.
func TestGoBack(t *testing.T) {
	for _, chunk := range []int{0, 5} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			const n = 5000
			b := newLab(t)
			x, y := b.half(7), b.half(7)
			x.tube.chunk, y.tube.chunk = chunk, chunk
			src, dst, counter := b.reg(fill(make([]byte, n), 1)), b.reg(make([]byte, 2*n)), b.reg(make([]byte, 8))
			add := onto(signalled(0, verbs.OpAtomicFetchAndAdd, sge(dst, 0, 8)), counter, 0)
			add.CompareAdd = 1
			batch := func(id uint64) []verbs.SendWR {
				add.WRID = id
				return []verbs.SendWR{add, signalled(id+1, verbs.OpSend, sge(src, 0, n)), onto(signalled(id+2, verbs.OpRDMARead, sge(dst, n, n)), src, 0)}
			}
			x.post(batch(10)...)
			exchange(x, y)
			require.Equal(t, []string{"10: success"}, statuses(x.poll()))
			for round := uint64(2); round < 5; round++ {
				// More arrives after the waiting message, then its time is up.
				x.post(batch(10 * round)...)
				exchange(x, y)
				y.q.Lock.Lock()
				y.q.expire(time.Now().Add(time.Hour))
				require.Equal(t, dropUntilRecv, y.conn.rx.drop)
				y.q.Unlock()
				exchange(x, y)
				require.Empty(t, x.poll())
				// The other direction is not held up.
				x.recv(verbs.RecvWR{WRID: 7})
				y.post(signalled(8, verbs.OpSend))
				exchange(x, y)
				require.Equal(t, []string{"7: success"}, statuses(x.poll()))
				require.Equal(t, []string{"8: success"}, statuses(y.poll()))

				clear(dst.Bytes())
				y.recv(verbs.RecvWR{WRID: round, SGList: []verbs.SGE{sge(dst, n, n)}})
				exchange(x, y)
				last := 10 * (round - 1)
				require.Equal(t, []string{fmt.Sprintf("%d: success", last+1), fmt.Sprintf("%d: success", last+2), fmt.Sprintf("%d: success", last+10)}, statuses(x.poll()))
				require.Equal(t, []string{fmt.Sprintf("%d: success", round)}, statuses(y.poll()))
				require.EqualValues(t, round, binary.NativeEndian.Uint64(counter.Bytes()), "atomics executed")
				require.True(t, bytes.Equal(src.Bytes(), dst.Bytes()[n:]))
			}
		})
	}
}

// TestAcknowledgementsRide: a frame sent soon in the other direction carries the acknowledgement.
func TestAcknowledgementsRide(t *testing.T) {
	b := newLab(t)
	x, y := b.half(7), b.half(7)
	exchange(x, y)
	y.recv(verbs.RecvWR{WRID: 1})
	x.recv(verbs.RecvWR{WRID: 1})
	x.post(signalled(1, verbs.OpSend))
	out, _ := x.take()
	y.q.Lock.Lock()
	c := y.conn
	y.tube.in = out
	require.True(t, c.receive(nil))
	c.transmit(nil, false)
	require.Empty(t, y.tube.out, "no acknowledgement by itself")
	y.q.Unlock()
	y.post(signalled(2, verbs.OpSend))
	out, _ = y.take()
	require.Len(t, out, headerSize+layouts[kindSend].extension, "one frame")
	x.give(out, false)
	require.Equal(t, []string{"1: success", "1: success"}, statuses(x.poll()), "the send and the receive")
}

// TestStaleStart: requests of a peer with another PSN are not executed.
func TestStaleStart(t *testing.T) {
	b := newLab(t)
	y := b.half(7)
	m := b.reg(make([]byte, 8))
	start := frame{kind: kindStart, psn: psn + 1, rnrRetry: 7}
	write := frame{kind: kindWrite, size: 1, total: 1, addr: m.Addr(), rkey: m.RKey()}
	y.take()
	y.give(append(write.Append(start.Append(nil)), 0xff), false)
	out, _ := y.take()
	var nak frame
	_, err := nak.Parse(out)
	require.NoError(t, err)
	require.Equal(t, frame{kind: kindNak, status: uint32(verbs.WCRetryExcErr)}, nak)
	require.Zero(t, m.Bytes()[0])
	require.Equal(t, verbs.QPRTS, y.q.State())
}
