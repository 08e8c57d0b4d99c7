package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// open opens a context of the provider, below package verbs. Its peers have all the time of a test.
func open(t testing.TB) *Context { return openWithin(t, ranks.Limit) }

// soon is the peer timeout in tests in which it expires.
const soon = 100 * time.Millisecond

func openWithin(t testing.TB, peerTimeout time.Duration) *Context {
	c, err := provider{}.Open(deviceName, verbs.Config{PeerTimeout: peerTimeout, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return c.(*Context)
}

// side is one end of a connection between two contexts of this process.
type side struct {
	c  *Context
	pd *PD
	cq *CQ
	q  *QP
	mr *MR
}

func newSide(t testing.TB, c *Context) *side {
	s := &side{c: c}
	pd, err := c.AllocPD()
	require.NoError(t, err)
	s.pd = pd.(*PD)
	cq, err := c.CreateCQ(64, nil)
	require.NoError(t, err)
	s.cq = cq.(*CQ)
	q, err := s.pd.CreateQP(verbs.ProviderQPInit{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}})
	require.NoError(t, err)
	s.q = q.(*QP)
	mr := allocMR(t, s.pd, 1<<16)
	s.mr = mr.(*MR)
	return s
}

func (s *side) connect(t testing.TB, to *side) { require.NoError(t, s.connectWithin(to, 14)) }

func (s *side) connectWithin(to *side, timeout uint8) error {
	psn := func(s *side) uint32 { return s.q.Num & 0xffff }
	for _, m := range []struct {
		a    verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll}, verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags},
		{verbs.QPAttr{QPState: verbs.QPRTR, PathMTU: verbs.MTU4096, DestQPNum: to.q.Num, RQPSN: psn(to), MinRNRTimer: 12, AHAttr: verbs.AHAttr{DGID: to.c.gid, PortNum: 1}},
			verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRdAtomic | verbs.MaskMinRNRTimer},
		{verbs.QPAttr{QPState: verbs.QPRTS, SQPSN: psn(s), RNRRetry: 7, RetryCnt: 7, Timeout: timeout, MaxRdAtomic: 4}, verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskMaxQPRdAtomic},
	} {
		if err := s.q.Modify(&m.a, m.mask|verbs.MaskState); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) joined() bool {
	s.q.Lock.Lock()
	defer s.q.Unlock()
	return s.q.joined
}

func join(t testing.TB, a, b *side) {
	a.connect(t, b)
	b.connect(t, a)
	for limit := time.Now().Add(ranks.Limit); !a.joined() || !b.joined(); runtime.Gosched() {
		require.True(t, time.Now().Before(limit), "not connected")
	}
}

func (s *side) close(t testing.TB) {
	require.NoError(t, s.q.Close())
	require.NoError(t, s.mr.Close())
	require.NoError(t, s.cq.Close())
}

// Whatever a peer writes into an inbox, this process neither crashes nor touches
// memory outside the regions registered for it, and every operation completes.
func FuzzHostileInbox(f *testing.F) {
	x, y := open(f), open(f)
	f.Cleanup(func() { require.NoError(f, x.Close()); require.NoError(f, y.Close()) })
	slotOf := func(op, bits uint8, inline uint16, body ...uint64) []byte {
		b := binary.LittleEndian.AppendUint64(nil, uint64(op)<<32|uint64(bits)<<40|uint64(inline)<<48)
		for _, v := range body {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return append(b, make([]byte, 64-len(b))...)
	}
	f.Add(slotOf(2, 0, 8), uint64(0))                                        // SEND, inline
	f.Add(slotOf(2, 0, 65535), uint64(0))                                    // more than a slot has
	f.Add(slotOf(2, bitPacked, 0, 0, 100, 0, 100<<32|0xfffffff0), uint64(0)) // packed beyond the ring
	f.Add(slotOf(2, bitPull, 0, 0, 1<<20, 0, 1), uint64(0))                  // pulled from nowhere
	f.Add(slotOf(2, bitPull, 0, 0, 1<<20, 0, 0xffffffff), uint64(0))         // of too many pieces
	f.Add(slotOf(0, 0, 16, 0, 0xffffffff_00000010, 0xdeadbeef), uint64(0))   // WRITE with a wrong key
	f.Add(slotOf(4, 0, 0, 0, 1<<40), uint64(0))                              // READ
	f.Add(slotOf(opMore, 0, 0), uint64(0))                                   // the rest of nothing
	f.Add(slotOf(opReadBytes, 0, 0), uint64(0))                              // an answer to no question
	f.Add(slotOf(opAtomicDone, 0, 0), uint64(0))
	f.Add(slotOf(77, 255, 3), uint64(0))
	f.Add([]byte{}, uint64(1<<32|100)) // acknowledges what was not sent
	f.Add([]byte{}, uint64(10)<<32)    // refuses
	f.Fuzz(func(t *testing.T, slots []byte, ack uint64) {
		a, b := newSide(t, x), newSide(t, y)
		defer a.close(t)
		defer b.close(t)
		join(t, a, b)
		target := a.mr.Buf[4096:8192]
		_, err := a.q.PostRecv([]verbs.RecvWR{{WRID: 1, SGList: []verbs.SGE{{Addr: a.mr.Addr() + 4096, Length: 4096, LKey: a.mr.Key}}}})
		require.NoError(t, err)
		guard := unsafe.SliceData(target)
		in := a.q.in.Load()
		n := uint32(0)
		for ; len(slots) >= 64 && n < slotCount; slots = slots[64:] {
			sl := (*slot)(unsafe.Pointer(unsafe.SliceData(slots[:64])))
			dst := &in.slots[n]
			n++
			flag := dst.flag
			*dst = *sl
			dst.flag = flag
			atomic.StoreUint64(&dst.flag, sl.flag&^0xffffffff|uint64(n))
		}
		if ack != 0 {
			atomic.StoreUint64(&in.ack, ack)
		}
		wcs := make([]verbs.WC, 4)
		for range 2 * slotCount {
			if _, err := a.cq.Poll(wcs); err != nil {
				require.ErrorIs(t, err, verbs.ErrCQOverrun)
				break
			}
		}
		require.Equal(t, guard, unsafe.SliceData(target))
		for _, outside := range [][]byte{a.mr.Buf[:8], b.mr.Buf[:8]} {
			_ = outside // reached without a fault: the mappings are where they were
		}
	})
}

// A stranger on the socket breaks nothing: not by silence, not by garbage, not by a segment that could shrink.
func TestStrangers(t *testing.T) {
	leak.Check(t)
	c := open(t)
	peer := open(t)
	dial := func() *net.UnixConn {
		conn, err := net.DialUnix("unixpacket", nil, socketAddr(c.gid))
		require.NoError(t, err)
		return conn
	}
	closed := func(conn *net.UnixConn) {
		t.Helper()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		for {
			n, fds, err := readPacket(conn, make([]byte, 100))
			closeAll(fds)
			if err != nil {
				require.False(t, os.IsTimeout(err), "the connection was not closed")
				require.NoError(t, conn.Close())
				return
			}
			require.Equal(t, helloLen, n)
		}
	}
	refused := func(conn *net.UnixConn) {
		t.Helper()
		closed(conn)
		require.NotNil(t, c.refused.Swap(nil), "the peer knows of it before this end does")
	}
	var low verbs.GID // lower than any: the dialler
	low[0] = 1
	good := hello{major: wireMajor, arch: archCode(), pageSize: uint32(os.Getpagesize()), from: low, to: c.gid, ctrlSize: uint64(len(peer.ctrlSeg.mem))}

	silent := dial()
	for range 100 { // each time, why is noted before the connection is closed
		garbage := dial()
		_, err := garbage.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		require.NoError(t, err)
		refused(garbage)
	}

	without := dial() // a hello, but no descriptor
	_, err := without.Write(good.append(nil))
	require.NoError(t, err)
	refused(without)

	shrinking, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(shrinking, int64(good.ctrlSize)))
	unsealed := dial()
	_, _, err = unsealed.WriteMsgUnix(good.append(nil), unix.UnixRights(shrinking), nil)
	require.NoError(t, err)
	refused(unsealed)
	require.NoError(t, unix.Close(shrinking))

	wrongSize := dial()
	h := good
	h.ctrlSize += 4096
	_, _, err = wrongSize.WriteMsgUnix(h.append(nil), unix.UnixRights(peer.ctrlSeg.fd), nil)
	require.NoError(t, err)
	refused(wrongSize)

	another := dial() // meant for another context
	h = good
	h.to = peer.gid
	_, _, err = another.WriteMsgUnix(h.append(nil), unix.UnixRights(peer.ctrlSeg.fd), nil)
	require.NoError(t, err)
	refused(another)

	older := dial()
	h = good
	h.major = 9
	_, _, err = older.WriteMsgUnix(h.append(nil), unix.UnixRights(peer.ctrlSeg.fd), nil)
	require.NoError(t, err)
	refused(older)

	// A peer that is admitted and then sends invalid messages.
	for name, m := range map[string]ctl{
		"inbox in no arena":     {kind: ctlOpen, src: 5, dst: 6, arena: 9},
		"arena number too high": {kind: ctlArena, arena: maxArenas, size: 4096},
	} {
		inside := dial()
		h := good
		h.from[1]++
		good.from = h.from
		_, _, err = inside.WriteMsgUnix(h.append(nil), unix.UnixRights(peer.ctrlSeg.fd), nil)
		require.NoError(t, err, name)
		var rights []byte
		if m.kind == ctlArena {
			rights = unix.UnixRights(peer.ctrlSeg.fd)
		}
		_, _, err = inside.WriteMsgUnix(m.append(nil), rights, nil)
		require.NoError(t, err, name)
		require.NoError(t, inside.SetReadDeadline(time.Now().Add(ranks.Limit)))
		for {
			_, fds, err := readPacket(inside, make([]byte, 100))
			closeAll(fds)
			if err != nil {
				require.False(t, os.IsTimeout(err), name)
				break
			}
		}
		require.NoError(t, inside.Close())
	}

	// Legitimate peers can still connect while the silent stranger stays connected, and when more
	// of its kind have evicted it.
	first, other := newSide(t, c), newSide(t, peer)
	join(t, first, other)
	for range maxStrangers {
		ranks.Eventually(t, func() bool { // the backlog may be full
			conn, err := net.DialUnix("unixpacket", nil, socketAddr(c.gid))
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err == nil
		})
	}
	closed(silent)
	first.close(t)
	other.close(t)
	require.NoError(t, peer.Close())
	peer = open(t)
	a, b := newSide(t, c), newSide(t, peer)
	join(t, a, b)
	a.close(t)
	b.close(t)
	require.NoError(t, peer.Close())
	require.NoError(t, c.Close())
}

// Close of a region waits until the peer has left it.
func TestRegionInUse(t *testing.T) {
	a, b := twoWithin(t, ranks.Limit)
	leave := b.inside(t, a)
	done := make(chan error, 1)
	go func() { done <- a.mr.Close() }()
	eventually(t, "Close does nothing", func() bool { return a.c.awaiting.Load() == 1 || len(done) > 0 })
	leave()
	require.NoError(t, <-done)
}

// The receiver reads a region outside arenas; if that is not allowed, the sender packs it. Both
// move the same bytes.
func TestForbiddenToRead(t *testing.T) {
	leak.Check(t)
	x, y := open(t), open(t)
	var said logbuf.Buffer
	for _, c := range []*Context{x, y} {
		c.log = slog.New(slog.NewTextHandler(&said, nil))
	}
	a, b := newSide(t, x), newSide(t, y)
	join(t, a, b)
	for _, allowed := range []bool{true, false} {
		require.Empty(t, said.String())
		a.q.link.canRead.Store(allowed)
		a.q.link.readable.Store(allowed)
		b.q.link.canRead.Store(allowed)
		b.q.link.readable.Store(allowed)
		src, dst := make([]byte, 300000), make([]byte, 300000)
		for i := range src {
			src[i] = byte(i * 7)
		}
		from := regMR(t, a.pd, src)
		to := regMR(t, b.pd, dst)
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
			clear(dst)
			wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Addr: from.Addr(), Length: 300000, LKey: from.LKey()}}, RemoteAddr: to.Addr(), RKey: to.RKey()}
			poster := a
			switch op {
			case verbs.OpSend:
				_, err := b.q.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{{Addr: to.Addr(), Length: 300000, LKey: to.LKey()}}}})
				require.NoError(t, err)
			case verbs.OpRDMARead:
				poster = b
				wr.SGList[0] = verbs.SGE{Addr: to.Addr(), Length: 300000, LKey: to.LKey()}
				wr.RemoteAddr, wr.RKey = from.Addr(), from.RKey()
			}
			n, err := poster.q.PostSend([]verbs.SendWR{wr})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			poster.take(t)
			if op == verbs.OpSend {
				b.take(t)
			}
			raceSync()
			require.Equal(t, src, dst, "%v, allowed %v", op, allowed)
		}
		require.NoError(t, from.Close())
		require.NoError(t, to.Close())
	}
	require.Equal(t, 2, strings.Count(said.String(), "process_vm_readv(2) is forbidden"), "each context says it once")
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
}

// polled, allocMR and regMR are calls that must succeed.

func polled(t testing.TB, q *CQ, wcs []verbs.WC) int {
	t.Helper()
	n, err := q.Poll(wcs)
	require.NoError(t, err)
	return n
}

func allocMR(t testing.TB, pd *PD, size int) verbs.ProviderMR {
	t.Helper()
	m, err := pd.AllocMR(size, verbs.AccessAll)
	require.NoError(t, err)
	return m
}

func regMR(t testing.TB, pd *PD, b []byte) verbs.ProviderMR {
	t.Helper()
	m, err := pd.RegMR(b, verbs.AccessAll)
	require.NoError(t, err)
	return m
}

// take waits for one successful completion.
func (s *side) take(t testing.TB) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), ranks.Limit)
	defer cancel()
	wcs := make([]verbs.WC, 1)
	for {
		n := polled(t, s.cq, wcs)
		if n == 1 {
			require.NoError(t, wcs[0].Err())
			return wcs[0]
		}
		require.NoError(t, s.cq.Block(ctx))
	}
}

// Memory that is named before its arena has come is waited for, however long that takes; if the peer
// sends none, there is no such memory.
func TestArenaOnItsWay(t *testing.T) {
	leak.Check(t)
	x, y := open(t), open(t)
	a, b := newSide(t, x), newSide(t, y)
	join(t, a, b)
	_, err := a.q.Map(b.mr.Key, b.mr.Addr(), len(b.mr.Buf))
	for ; err != nil; _, err = a.q.Map(b.mr.Key, b.mr.Addr(), len(b.mr.Buf)) {
		require.ErrorIs(t, err, verbs.ErrState)
	}
	lose := func() []*segment {
		a.q.link.mu.Lock()
		defer a.q.link.mu.Unlock()
		return *a.q.link.segments.Swap(new([]*segment))
	}
	list := lose()
	b.q.link.mu.Lock() // b does not answer
	for range 100 {
		_, err = a.q.Map(b.mr.Key, b.mr.Addr(), len(b.mr.Buf))
		require.ErrorIs(t, err, verbs.ErrState)
	}
	for i, s := range list {
		if s != nil {
			fd, err := unix.FcntlInt(uintptr(y.arenas.get(uint32(i)).fd), unix.F_DUPFD_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, a.q.link.addArena(ctl{kind: ctlArena, arena: uint32(i), size: uint64(len(s.mem))}, fd))
		}
	}
	b.q.link.mu.Unlock()
	mem, err := a.q.Map(b.mr.Key, b.mr.Addr(), len(b.mr.Buf))
	require.NoError(t, err)
	b.mr.Buf[9] = 77
	require.EqualValues(t, 77, mem[9])

	arrived := lose()
	require.Eventually(t, func() bool {
		_, err = a.q.Map(b.mr.Key, b.mr.Addr(), len(b.mr.Buf))
		return !errors.Is(err, verbs.ErrState)
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, err, verbs.ErrAccess)

	for _, s := range arrived {
		if s != nil {
			require.NoError(t, s.close())
		}
	}
	a.q.link.segments.Store(&list)
	a.close(t)
	b.close(t)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
}
