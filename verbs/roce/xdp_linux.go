package roce

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/xdp"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// express is the wire over an AF_XDP socket, for peers reached through the interface, with a UDP
// socket beneath, which owns the port. The UDP socket sends packets to this host itself, through
// other interfaces, and to neighbours that are not resolved yet. It receives packets that the XDP
// program does not pick, and ICMP errors. Peers see no difference.
type express struct {
	*udp
	seat  *xdp.Seat
	paths *xdp.Paths

	// Sending.
	f        *flow // of the last frame, if it is in the seat and not sealed
	ethernet *[12]byte
	pkt      []byte
	stack    bool // the last frame is the UDP socket's

	// Receiving.
	arrived packet.Route
	peer    netip.AddrPort
	idle    uint        // turns since the UDP socket was last read
	empty   uint        // consecutive reads that found nothing
	stirred atomic.Bool // it is readable, or has not been read for long
	stats   struct{ sent, received atomic.Uint64 }
}

// Reading the UDP socket costs a system call, during which packets to the seat wait. It is read on
// every turn for a while after it had packets, then ever more rarely, doubling the turns between,
// and when the driver calls stir.
const (
	stackWarm = 256
	stackMost = 12 // log2 of the most turns
)

func newExpress(u *udp, seat *xdp.Seat, paths *xdp.Paths) *express {
	w := &express{udp: u, seat: seat, paths: paths}
	// On the way in, generic XDP comes after GRO: what GRO has merged would not be a single
	// packet.
	unix.SetsockoptInt(u.fd, unix.SOL_UDP, unix.UDP_GRO, 0)
	w.arrived.Set(netip.AddrPortFrom(u.addr.Addr(), 0), u.addr)
	return w
}

func (w *express) maxMTU() int {
	head := head6
	if w.addr.Addr().Is4() {
		head = head4
	}
	return min(w.udp.maxMTU(), w.seat.Shape().MaxPacket()-head-transportUp)
}

// window: half of the ring, in packets of the most usual size.
func (w *express) window() int { return min(w.udp.window(), w.seat.Shape().Ring/2*1024) }

func (w *express) close() {
	w.seat.Close()
	w.paths.Close()
	w.udp.close()
}

// path returns the path of the flow.
func (w *express) path(f *flow) *xdp.Path {
	if p := f.way.path; p != nil && !p.Dead() {
		return p
	}
	f.way.path = w.paths.To(f.remote.Addr())
	return f.way.path
}

func (w *express) frame(f *flow, n int) []byte {
	w.seal()
	p := w.path(f)
	if p != nil && !p.Local() {
		if e := p.Ethernet(); e != nil {
			lead := f.way.lead
			if b := w.seat.Frame(lead, n+packet.ICRCLen); b != nil {
				w.f, w.ethernet, w.pkt, w.stack = f, e, b, false
				return b[lead : lead+n]
			}
		}
	}
	w.stack = true
	// The XDP program of a peer would see messages before they are segmented.
	w.noTrains = p == nil || !p.Local()
	return w.udp.frame(f, n)
}

// seal completes the last frame in the seat.
func (w *express) seal() {
	if w.f == nil {
		return
	}
	lead := w.f.way.lead
	n := len(w.pkt) - lead
	w.f.way.write(w.pkt, w.ethernet, n)
	w.f.route.Seal(w.pkt[lead:len(w.pkt)-packet.ICRCLen:len(w.pkt)], 0)
	w.f = nil
	w.stats.sent.Add(1)
}

func (w *express) cancel() {
	if w.stack {
		w.udp.cancel()
		return
	}
	w.f = nil
	w.seat.Cancel()
}

func (w *express) flush() {
	w.seal()
	raceWrite()
	w.seat.Flush()
	if w.udp.trainN > 0 {
		w.udp.flush()
	}
}

func (w *express) recv(into []arrival) int {
	w.seat.Begin()
	k := 0
	for k < len(into) {
		b := w.seat.Next()
		if b == nil {
			break
		}
		if w.parse(b, &into[k]) {
			k++
		}
	}
	if k > 0 {
		raceRead(w.fd)
		w.stats.received.Add(uint64(k))
	}
	w.idle++
	if k == len(into) || w.idle < 1<<min(max(w.empty, stackWarm)-stackWarm, stackMost) && !w.udp.rest() && !w.stirred.Load() {
		return k
	}
	w.stirred.Store(false)
	w.idle = 0
	n := w.udp.recv(into[k:])
	if w.empty++; n > 0 {
		w.empty = 0
	}
	return k + n
}

// stir makes recv read the UDP socket.
func (w *express) stir() { w.stirred.Store(true) }

// parse parses an Ethernet frame, and says whether it is a packet for this wire with the right CRC.
func (w *express) parse(b []byte, to *arrival) bool {
	if len(b) < head4 {
		return false
	}
	var src netip.Addr
	var id uint16
	var class byte
	ip := b[ethLen:]
	own := w.addr.Addr()
	var udp []byte
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherType4:
		n := int(binary.BigEndian.Uint16(ip[2:]))
		const fragment = 0x3fff
		if ip[0] != 0x45 || n < ip4Len+udpLen || n > len(ip) || ip[9] != protocolUDP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 ||
			!own.Is4() || own != netip.AddrFrom4([4]byte(ip[16:20])) {
			return false
		}
		src, id, class = netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(ip[4:]), ip[1]
		w.arrived.SetDontFragment(ip[6]&0x40 != 0)
		udp = ip[ip4Len:n]
	case etherType6:
		if len(b) < head6 {
			return false
		}
		n := ip6Len + int(binary.BigEndian.Uint16(ip[4:]))
		if ip[0]>>4 != 6 || n < ip6Len+udpLen || n > len(ip) || ip[6] != protocolUDP || !own.Is6() || own != netip.AddrFrom16([16]byte(ip[24:40])) {
			return false
		}
		src, class = netip.AddrFrom16([16]byte(ip[8:24])), ip[0]<<4|ip[1]>>4
		udp = ip[ip6Len:n]
	default:
		return false
	}
	if binary.BigEndian.Uint16(udp[2:]) != w.addr.Port() || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		return false
	}
	if from := netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp)); from != w.peer {
		w.peer = from
		w.arrived.SetSource(from)
	}
	pkt := udp[udpLen:]
	if _, ok := w.arrived.Check(pkt, id, true); !ok {
		return false
	}
	*to = arrival{pkt: pkt[:len(pkt)-packet.ICRCLen], src: w.peer, ce: class&3 == ecnExperienced}
	return true
}
