package tcp

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
	"github.com/sluice-hpc/sluice/verbs/internal/soft"
)

// tube is a transport whose other end the test controls: it decides what is read and how much can
// be written, byte by byte.
type tube struct {
	in     []byte
	eof    bool // behind in
	out    []byte
	room   int // bytes that can still be written; negative: no limit
	chunk  int // bytes of one read or write at most; 0: no limit
	fin    bool
	closed bool
}

func (p *tube) limit(n int) int {
	if p.chunk > 0 {
		return min(n, p.chunk)
	}
	return n
}

func (p *tube) readable() bool { return true }

func (p *tube) readv(bufs [][]byte) (int, error) {
	n := 0
	max := p.limit(len(p.in))
	for _, b := range bufs {
		m := copy(b, p.in[:max-n])
		p.in = p.in[m:]
		n += m
	}
	switch {
	case n > 0:
		return n, nil
	case p.eof:
		return 0, io.EOF
	}
	return 0, errAgain
}

func (p *tube) writev(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		m := p.limit(len(b))
		if p.chunk > 0 {
			m = min(m, p.chunk-n)
		}
		if p.room >= 0 {
			m = min(m, p.room)
			p.room -= m
		}
		p.out = append(p.out, b[:m]...)
		n += m
	}
	if n == 0 {
		return 0, errAgain
	}
	return n, nil
}

func (p *tube) shutdown()        { p.fin = true }
func (p *tube) close()           { p.closed = true }
func (p *tube) arm(in, out bool) {}
func (p *tube) disarm()          {}
func (p *tube) fired()           {}
func (p *tube) join(pollSet)     {}
func (p *tube) leave()           {}
func (p *tube) mute(bool)        {}

// lab is a context whose QPs are connected to tubes.
type lab struct {
	testing.TB
	a  *adapter
	pd *pd
}

func newLab(t testing.TB) *lab {
	t.Helper()
	return openLab(t, false)
}

func openLab(t testing.TB, portable bool) *lab {
	t.Helper()
	a, err := openContext("tcp_lo", nic.NIC{Name: "lo", MTU: 65536, Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		verbs.Config{Insecure: true, PeerTimeout: time.Minute, Portable: portable, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	p, err := a.AllocPD()
	require.NoError(t, err)
	return &lab{t, a, p.(*pd)}
}

// half is a QP with its tube.
type half struct {
	*lab
	q    *qp
	cq   *cq
	tube *tube
	conn *conn // also when the QP has left it
}

// far is the assumed peer of a half: smaller than any loopback address, so
// that the half waits to be dialed.
var far = verbs.GIDFromAddr(netip.MustParseAddr("0.0.0.1"))

// psn is the first PSN of both sides of a tube.
const psn = 5

// farPort and farQPN are the rest of its identity.
const (
	farPort = 9
	farQPN  = 7
)

// half creates a QP in RTS that is connected to a new tube.
func (b *lab) half(rnrRetry uint8) *half {
	b.Helper()
	h := b.waiting(rnrRetry)
	ok, err := h.q.attach(h.q.life, &frame{maxAnswers: 4}, func(*conn) (transport, error) { return h.tube, nil })
	require.NoError(b, err)
	require.True(b, ok)
	h.conn = h.q.conn
	b.Cleanup(h.close)
	return h
}

// waiting creates a QP in RTS that waits to be dialed.
func (b *lab) waiting(rnrRetry uint8) *half {
	b.Helper()
	c, err := b.a.CreateCQ(1024, nil)
	require.NoError(b, err)
	p, err := b.pd.CreateQP(verbs.ProviderQPInit{SendCQ: c, RecvCQ: c,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}})
	require.NoError(b, err)
	h := &half{lab: b, q: p.(*qp), cq: c.(*cq), tube: &tube{room: -1}}
	h.modify(verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags)
	h.modify(verbs.QPAttr{QPState: verbs.QPRTR, PathMTU: verbs.MTU4096, DestQPNum: farQPN, RQPSN: psn, MaxDestRdAtomic: 4, MinRNRTimer: 0,
		AHAttr: verbs.AHAttr{PortNum: 1, IsGlobal: true, DGID: far, DLID: farPort}},
		verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMaxDestRdAtomic|verbs.MaskMinRNRTimer)
	h.modify(verbs.QPAttr{QPState: verbs.QPRTS, SQPSN: psn, RetryCnt: 7, RNRRetry: rnrRetry, MaxRdAtomic: 4},
		verbs.MaskState|verbs.MaskSQPSN|verbs.MaskTimeout|verbs.MaskRetryCnt|verbs.MaskRNRRetry|verbs.MaskMaxQPRdAtomic)
	return h
}

// close closes the QP; there is no peer to wait for.
func (h *half) close() {
	h.Helper()
	require.NoError(h, h.q.Close())
	h.q.Lock.Lock()
	h.tube.room, h.tube.eof = -1, true
	h.conn.drive(nil)
	h.conn.close()
	h.q.Unlock()
	require.NoError(h, h.cq.Close())
}

func (h *half) modify(a verbs.QPAttr, mask verbs.QPAttrMask) {
	h.Helper()
	require.NoError(h, h.q.Modify(&a, mask))
}

// drive does what the engine does.
func (h *half) drive() {
	h.q.Lock.Lock()
	defer h.q.Unlock()
	if h.q.conn != nil {
		h.q.conn.drive(nil)
	}
}

// poll takes completions, without touching the tube.
func (h *half) poll() []verbs.WC {
	h.Helper()
	wcs := make([]verbs.WC, 1024)
	s := soft.Sink{CQ: &h.cq.CQ, WCs: wcs}
	require.NoError(h, h.cq.Begin(&s))
	return wcs[:s.N]
}

func (h *half) post(wrs ...verbs.SendWR) {
	h.Helper()
	n, err := h.q.PostSend(wrs)
	require.NoError(h, err)
	require.Equal(h, len(wrs), n)
}

func (h *half) recv(wrs ...verbs.RecvWR) {
	h.Helper()
	n, err := h.q.PostRecv(wrs)
	require.NoError(h, err)
	require.Equal(h, len(wrs), n)
}

// reg registers memory until the test ends.
func (b *lab) reg(buf []byte) *mr {
	b.Helper()
	m := b.regFor(buf)
	b.Cleanup(func() { require.NoError(b, m.Close()) })
	return m
}

// regFor registers memory that the test deregisters.
func (b *lab) regFor(buf []byte) *mr {
	b.Helper()
	m, err := b.pd.RegMR(buf, verbs.AccessAll)
	require.NoError(b, err)
	return m.(*mr)
}

// sge returns the element for n bytes at off of m.
func sge(m *mr, off, n int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// take returns what the half has written, and whether that was the last.
func (h *half) take() (out []byte, last bool) {
	h.q.Lock.Lock()
	defer h.q.Unlock()
	out, h.tube.out = h.tube.out, nil
	return out, h.tube.fin || h.tube.closed
}

// give makes the half read in, and then io.EOF if that was the last.
func (h *half) give(in []byte, last bool) {
	h.q.Lock.Lock()
	defer h.q.Unlock()
	h.tube.in = append(h.tube.in, in...)
	h.tube.eof = last
	for range len(h.tube.in) + 2 { // as often as chunks may need
		if h.q.conn == nil {
			return
		}
		h.q.conn.drive(nil)
	}
}

// exchange moves bytes between two halves until neither has any to send.
func exchange(a, b *half) {
	for quiet := 0; quiet < 2; quiet++ {
		for _, d := range [][2]*half{{a, b}, {b, a}} {
			out, last := d[0].take()
			d[1].give(out, last)
			if len(out) > 0 {
				quiet = 0
			}
		}
	}
}
