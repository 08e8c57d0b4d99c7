package roce

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/roce/internal/packet"
)

// forger sends ICMP messages about packets that nothing has sent, as any host can that knows who
// talks to whom.
type forger struct {
	fd       int
	src, dst netip.AddrPort // of the packets
	v6       bool
}

func newForger(t testing.TB, h host, src, dst netip.AddrPort) *forger {
	f := &forger{src: src, dst: dst, v6: src.Addr().Is6()}
	require.NoError(t, h.in(func() (err error) {
		if f.v6 {
			f.fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		} else {
			f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		}
		return err
	}))
	t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

// message is an ICMP message that returns the headers of a packet, and the beginning of its payload.
func (f *forger) message(kind, code byte, mtu int, payload []byte) []byte {
	b := []byte{kind, code, 0, 0, 0, 0, 0, 0}
	const udp = 1200 // bytes of the packet, of which less is returned
	src, dst := f.src.Addr().AsSlice(), f.dst.Addr().AsSlice()
	if f.v6 {
		binary.BigEndian.PutUint32(b[4:], uint32(mtu))
		b = append(b, 0x60, 0, 0, 0, udp>>8, udp&0xff, unix.IPPROTO_UDP, 64)
	} else {
		binary.BigEndian.PutUint16(b[6:], uint16(mtu))
		b = append(b, 0x45, 0, (20+udp)>>8, (20+udp)&0xff, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	}
	b = append(append(b, src...), dst...)
	if !f.v6 {
		binary.BigEndian.PutUint16(b[8+10:], checksum(b[8:]))
	}
	b = binary.BigEndian.AppendUint16(b, f.src.Port())
	b = binary.BigEndian.AppendUint16(b, f.dst.Port())
	b = append(b, udp>>8, udp&0xff, 0, 0)
	b = append(b, payload...)
	if !f.v6 { // that of ICMPv6 is the kernel's
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (f *forger) send(b []byte) error {
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(f.src.Addr().AsSlice()[:4])}
	if f.v6 {
		to = &unix.SockaddrInet6{Addr: f.src.Addr().As16()}
	}
	return unix.Sendto(f.fd, b, 0, to)
}

// Forged ICMP messages, by which nothing has the peer's port, or packets are too long for the
// path, leave a stream as it is: those of a host that knows addresses and ports, and of one that
// knows the numbers of the queue pairs as well but not which packets are on their way.
func TestForgedICMP(t *testing.T) {
	need.Networks(t)
	need.Full(t)
	type kind struct {
		name       string
		kind, code byte
		mtu        int
	}
	for _, c := range []struct {
		addr  [2]string
		kinds []kind
	}{
		{[2]string{"198.18.0.1", "198.18.0.2"}, []kind{{"IPv4, port unreachable", 3, 3, 0}, {"IPv4, fragmentation needed", 3, 4, 552}}},
		{[2]string{"fd00::1", "fd00::2"}, []kind{{"IPv6, port unreachable", 1, 4, 0}, {"IPv6, packet too big", 2, 0, 1280}}},
	} {
		for _, k := range c.kinds {
			t.Run(k.name, func(t *testing.T) {
				two := hosts(t, 9000)
				var ends [2]*place
				var at [2]netip.AddrPort
				var points [2]verbs.Endpoint
				for i := range ends {
					e := newPlace(t, 8*lossySize, func() *verbs.Context { return two[i].open(t, "roce_veth0", verbs.Config{Address: c.addr[i]}) })
					ep, err := e.qp.Endpoint()
					require.NoError(t, err)
					ends[i], points[i] = e, ep
					at[i] = netip.AddrPortFrom(netip.MustParseAddr(c.addr[i]), ep.LID)
				}
				own, err := ends[0].qp.Query()
				require.NoError(t, err)
				f := newForger(t, two[1], at[0], at[1])
				var forged [][]byte
				// Before the first packet of the stream, and behind the last.
				for _, psn := range []uint32{own.SQPSN - 1, own.SQPSN + 1<<22} {
					h := packet.Header{Opcode: packet.WriteMiddle, Migrated: true, PKey: packet.DefaultPKey, DestQP: ends[1].qp.QPNum(), PSN: psn & psnMask}
					forged = append(forged, f.message(k.kind, k.code, k.mtu, append(h.Append(nil), make([]byte, 512)...)))
				}
				forged = append(forged, f.message(k.kind, k.code, k.mtu, nil))
				enough := int64(50)
				if need.WantLong() {
					enough = 200
				}
				var rounds atomic.Int64
				var forging sync.WaitGroup
				stop := make(chan struct{})
				end := sync.OnceFunc(func() { close(stop); forging.Wait() })
				defer end()
				forging.Go(func() {
					for ; ; rounds.Add(1) {
						select {
						case <-stop:
							return
						default:
						}
						for _, b := range forged {
							assert.NoError(t, f.send(b))
						}
					}
				})
				// As long as the peer does not take them, packets are on their way and come again.
				require.NoError(t, ends[0].qp.Connect(points[1], verbs.ConnectAttr{Timeout: 18}))
				_, err = ends[0].qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{ends[0].mem.SGE(0, lossySize)},
					RemoteAddr: ends[1].mem.Addr(), RKey: ends[1].mem.RKey()}})
				require.NoError(t, err)
				for rounds.Load() < enough {
					var wcs [1]verbs.WC
					n, err := ends[0].cq.Poll(wcs[:])
					require.NoError(t, err)
					require.Zero(t, n, "%+v", wcs[0])
				}
				require.NoError(t, ends[1].qp.Connect(points[0], verbs.ConnectAttr{}))
				for rounds.Load() < 2*enough {
					ends[0].writes(t, ends[1], verbs.OpRDMAWrite, 16)
				}
				end()
			})
		}
	}
}
