package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// Parameters of the socket.
const (
	trainBytes  = 60 << 10 // limit of a train: one message, cut into packets of one length
	trainLen    = 64       // UDP_MAX_SEGMENTS of kernels before 6.9
	trains      = 16       // messages of one call
	sendBuffer  = trains * trainBytes
	recvSlots   = 16       // messages received by one call
	recvSize    = 64 << 10 // the largest message, by GRO
	overhead4   = 20 + 8
	overhead6   = 40 + 8
	transportUp = 12 + 4 + 16 + 4 + packet.ICRCLen // the largest headers of a packet with payload
)

// udp is the wire over a UDP socket that is not connected and does not fragment. The kernel then
// writes the identification 0 into the IPv4 headers, and 0, 1, 2 … into those of a message that it
// segments (UDP_SEGMENT). The CRC covers the identification.
type udp struct {
	fd    int
	addr  netip.AddrPort
	mtu   int    // of the link, in bytes
	room  int    // bytes that the kernel queues
	group *group // nil, or the group that shares the port of RoCEv2 on the address

	// Sending: packets of the same length to the same peer are a train.
	out      []byte
	used     int
	train    [trains]train
	trainN   int
	sendMsgs [trains]mmsghdr
	sendIov  [trains]unix.Iovec
	sendCtl  [trains]sendControl
	noTrains bool

	in       []byte
	recvMsgs [recvSlots]mmsghdr
	recvIov  [recvSlots]unix.Iovec
	recvFrom [recvSlots]sockaddr
	recvCtl  [recvSlots][controlSize]byte
	inlets   []inlet
	at       int // the inlet of the last call
	got      int // its messages
	msg, off int // the next segment
	guess    uint16

	link string // interface that may have another MTU by now, if it is not empty

	report atomic.Pointer[report] // nil, or the newest; both sending and receiving set it
}

// inlet is a socket that packets arrive at.
type inlet struct {
	fd    int
	from  netip.AddrPort // of the last packet
	route packet.Route   // from there to the socket
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// controlSize has room for the size of the segments and the traffic class.
const controlSize = 64

// train is a sequence of packets in out.
type train struct {
	f       *flow
	start   int
	n       int // packets
	segment int // bytes of each packet except the last, with CRC
	last    int // where the last one starts
	lastLen int // its bytes without CRC; 0: it is sealed
}

// openUDP binds a socket: to the port of RoCEv2 if that is free, else to any. Ranks that share an
// address thus have ports of their own, which their endpoints carry; adapters, which know only
// RoCEv2's port, can reach one of them. With share, they can reach up to share of them: see group.
func openUDP(addr netip.Addr, mtu, share int) (*udp, error) {
	u := &udp{mtu: mtu, out: make([]byte, sendBuffer), in: make([]byte, recvSlots*recvSize)}
	if share > 0 {
		u.group, _ = joinGroup(addr, share)
	}
	if err := u.open(addr); err != nil {
		u.group.close()
		return nil, err
	}
	for i := range u.recvMsgs {
		u.recvIov[i].Base = &u.in[i*recvSize]
		u.recvIov[i].SetLen(recvSize)
		h := &u.recvMsgs[i].hdr
		h.Iov = &u.recvIov[i]
		h.SetIovlen(1)
		h.Name = &u.recvFrom[i].b[0]
		h.Control = &u.recvCtl[i][0]
	}
	return u, nil
}

func (u *udp) open(addr netip.Addr) (err error) {
	if u.fd, err = newSocket(addr); err != nil {
		return err
	}
	err = u.setup(addr)
	if err != nil {
		unix.Close(u.fd)
	}
	return err
}

func (u *udp) setup(addr netip.Addr) error {
	widen(u.fd)
	var err error
	if u.room, err = unix.GetsockoptInt(u.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("get SO_RCVBUF: %w", err)
	}
	if err = bind(u.fd, netip.AddrPortFrom(addr, packet.Port)); errors.Is(err, unix.EADDRINUSE) {
		err = bind(u.fd, netip.AddrPortFrom(addr, 0))
	}
	if err != nil {
		return err
	}
	if u.addr, err = boundTo(u.fd); err != nil {
		return err
	}
	u.inlets = []inlet{newInlet(u.fd, u.addr)}
	if u.group != nil {
		u.inlets = append(u.inlets, newInlet(u.group.own(), netip.AddrPortFrom(addr, packet.Port)))
	}
	return nil
}

func newInlet(fd int, to netip.AddrPort) inlet {
	in := inlet{fd: fd}
	in.route.Set(netip.AddrPortFrom(to.Addr(), 0), to)
	return in
}

// fds returns the descriptors of all inlets.
func (u *udp) fds() (fds []int) {
	for i := range u.inlets {
		fds = append(fds, u.inlets[i].fd)
	}
	return fds
}

func (u *udp) local() netip.AddrPort { return u.addr }

func (u *udp) maxMTU() int { return u.maxPacket() - transportUp }

// maxPacket returns the length of the longest packet that the link takes now, from the BTH to the
// last byte of the CRC.
func (u *udp) maxPacket() int {
	mtu := u.mtu
	if q, err := unix.NewIfreq(u.link); err == nil && unix.IoctlIfreq(u.fd, unix.SIOCGIFMTU, q) == nil {
		mtu = int(q.Uint32())
	}
	if u.addr.Addr().Is4() {
		return mtu - overhead4
	}
	return mtu - overhead6
}

// window: the kernel counts the memory that a packet occupies, which may be twice its length and
// more.
func (u *udp) window() int { return u.room / 8 }

func (u *udp) close() {
	u.group.close()
	unix.Close(u.fd)
}

// frame appends a packet to the train that it fits, or starts another one.
func (u *udp) frame(f *flow, n int) []byte {
	u.seal()
	full := n + packet.ICRCLen
	if u.used+full > len(u.out) {
		u.flush()
	}
	var t *train
	if u.trainN > 0 {
		t = &u.train[u.trainN-1]
		size := u.used - t.start
		if t.f != f || u.noTrains || full > t.segment || t.n == trainLen || size != t.n*t.segment || size+full > trainBytes {
			t = nil
		}
	}
	if t == nil {
		if u.trainN == trains {
			u.flush()
		}
		t = &u.train[u.trainN]
		u.trainN++
		*t = train{f: f, start: u.used, segment: full}
	}
	t.last, t.lastLen = u.used, n
	t.n++
	u.used += full
	return u.out[t.last : t.last+n : t.last+full]
}

// seal computes the CRC of the last packet. Its place in the train is the identification that the
// kernel will write into its IP header.
func (u *udp) seal() {
	if u.trainN == 0 {
		return
	}
	if t := &u.train[u.trainN-1]; t.lastLen > 0 {
		t.f.route.Seal(u.out[t.last:t.last+t.lastLen:t.last+t.lastLen+packet.ICRCLen], uint16(t.n-1))
		t.lastLen = 0
	}
}

func (u *udp) cancel() {
	t := &u.train[u.trainN-1]
	u.used = t.last
	t.lastLen = 0
	if t.n--; t.n == 0 {
		u.trainN--
	}
}

// flush sends the trains.
func (u *udp) flush() {
	u.seal()
	for i := range u.trainN {
		t := &u.train[i]
		end := u.used
		if i+1 < u.trainN {
			end = u.train[i+1].start
		}
		u.sendIov[i].Base = &u.out[t.start]
		u.sendIov[i].SetLen(end - t.start)
		h := &u.sendMsgs[i].hdr
		h.Name, h.Namelen = &t.f.raw.b[0], t.f.raw.n
		h.Iov = &u.sendIov[i]
		h.SetIovlen(1)
		h.Control = nil
		n := u.sendCtl[i].set(t)
		if n > 0 {
			h.Control = (*byte)(unsafe.Pointer(&u.sendCtl[i]))
		}
		h.SetControllen(n)
	}
	u.send()
	u.used, u.trainN = 0, 0
}

// send hands the messages to the kernel. Those for which it has no room are lost.
func (u *udp) send() {
	raceWrite()
	for i, tries := 0, 0; i < u.trainN; {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(u.fd), uintptr(unsafe.Pointer(&u.sendMsgs[i])),
			uintptr(u.trainN-i), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == 0:
			i += int(n)
			continue
		case errno == unix.EINTR:
			continue
		case errno == unix.EIO || errno == unix.EINVAL || errno == unix.EOPNOTSUPP:
			// The interface computes no checksums, or the kernel cannot segment messages, unless
			// the link no longer takes packets of that length.
			u.noTrains = u.noTrains || u.train[i].n > 1 && u.train[i].segment <= u.maxPacket()
		case errno != unix.EAGAIN && errno != unix.ENOBUFS:
			// The network has reported an error of an earlier packet; this one is not
			// concerned.
			u.takeErrors()
			if tries++; tries <= trains {
				continue
			}
		}
		i++
	}
}

// takeErrors reads the errors that the network has reported, and keeps the newest "port unreachable"
// of a host.
func (u *udp) takeErrors() {
	var name sockaddr
	var echo [32]byte
	var ctl [256]byte
	iov := unix.Iovec{Base: &echo[0]}
	iov.SetLen(len(echo))
	for {
		h := unix.Msghdr{Name: &name.b[0], Namelen: uint32(len(name.b)), Iov: &iov, Control: &ctl[0]}
		h.SetIovlen(1)
		h.SetControllen(len(ctl))
		n, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(u.fd), uintptr(unsafe.Pointer(&h)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errno != 0 {
			return
		}
		for b := ctl[:min(int(h.Controllen), len(ctl))]; len(b) > 0; {
			var c control
			c, b = nextControl(b)
			r := report{to: name.addr()}
			if c.refusesPort(r.to.Addr()) && r.packet.ParseBTH(echo[:n]) {
				u.report.Store(&r)
			}
		}
	}
}

// refusesPort says whether the control message is the error that host has no such port, sent by the
// host itself and not by a router that rejected the packet.
func (c *control) refusesPort(host netip.Addr) bool {
	const header = 16 // of struct sock_extended_err; the address of the error's sender follows
	switch {
	case c.level == unix.IPPROTO_IP && c.kind == unix.IP_RECVERR:
	case c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_RECVERR:
	default:
		return false
	}
	var from sockaddr
	if len(c.data) <= header || copy(from.b[:], c.data[header:]) < unix.SizeofSockaddrInet4 {
		return false
	}
	origin := c.data[4]
	return binary.NativeEndian.Uint32(c.data) == uint32(unix.ECONNREFUSED) &&
		(origin == unix.SO_EE_ORIGIN_ICMP || origin == unix.SO_EE_ORIGIN_ICMP6) && from.addr().Addr() == host
}

func (u *udp) unreachable() (report, bool) {
	if u.report.Load() == nil {
		return report{}, false
	}
	return *u.report.Swap(nil), true
}

// recv receives packets, and splits those that the kernel has merged (UDP_GRO).
func (u *udp) recv(into []arrival) int {
	if u.msg == u.got && !u.fill() {
		return 0
	}
	k := 0
	in := &u.inlets[u.at]
	for u.msg < u.got && k < len(into) {
		m := &u.recvMsgs[u.msg]
		size := int(m.n)
		segment, class := u.control(u.msg)
		if segment <= 0 {
			segment = size
		}
		if u.off == 0 {
			if from := u.recvFrom[u.msg].addr(); from != in.from {
				in.from = from
				in.route.SetSource(from)
			}
			u.guess = 0
		}
		for u.off < size && k < len(into) {
			b := u.in[u.msg*recvSize+u.off:][:min(segment, size-u.off)]
			u.off += len(b)
			id, ok := in.route.Check(b, u.guess, false)
			if !ok {
				continue
			}
			u.guess = id + 1
			into[k] = arrival{pkt: b[:len(b)-packet.ICRCLen], src: in.from, id: id, ce: class&3 == ecnExperienced}
			k++
		}
		if u.off >= size {
			u.msg++
			u.off = 0
		}
	}
	return k
}

func (u *udp) rest() bool { return u.msg < u.got }

// fill receives messages of one socket, trying the sockets in turn.
func (u *udp) fill() bool {
	for i := range u.recvMsgs {
		h := &u.recvMsgs[i].hdr
		h.Namelen = uint32(len(u.recvFrom[i].b))
		h.SetControllen(controlSize)
	}
	u.msg, u.got, u.off = 0, 0, 0
	for range u.inlets {
		u.at = (u.at + 1) % len(u.inlets)
		if u.fillFrom(u.inlets[u.at].fd) {
			return true
		}
	}
	return false
}

func (u *udp) fillFrom(fd int) bool {
	for tries := 0; ; tries++ {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&u.recvMsgs[0])), recvSlots, unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			raceRead(fd)
			u.got = int(n)
			return n > 0
		case errno == unix.EAGAIN:
			return false
		case errno != unix.EINTR:
			u.takeErrors()
			if tries > recvSlots {
				return false
			}
		}
	}
}

// control returns the length of the segments (0: there is only one) and the traffic class from the
// control messages of message i.
func (u *udp) control(i int) (segment int, class byte) {
	for b := u.recvCtl[i][:min(int(u.recvMsgs[i].hdr.Controllen), controlSize)]; len(b) > 0; {
		var c control
		c, b = nextControl(b)
		switch {
		case c.level == unix.SOL_UDP && c.kind == unix.UDP_GRO && len(c.data) >= 4:
			segment = int(binary.NativeEndian.Uint32(c.data))
		case c.level == unix.IPPROTO_IP && c.kind == unix.IP_TOS && len(c.data) >= 1,
			c.level == unix.IPPROTO_IPV6 && c.kind == unix.IPV6_TCLASS && len(c.data) >= 1:
			class = c.data[0]
		}
	}
	return segment, class
}

// control is a control message (cmsg(3)).
type control struct {
	level, kind int32
	data        []byte
}

// nextControl splits the first control message off b.
func nextControl(b []byte) (control, []byte) {
	if len(b) < unix.SizeofCmsghdr {
		return control{}, nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	n := int(h.Len)
	if n < unix.SizeofCmsghdr || n > len(b) {
		return control{}, nil
	}
	data := b[unix.SizeofCmsghdr:n]
	return control{h.Level, h.Type, data}, b[min(unix.CmsgSpace(len(data)), len(b)):]
}
