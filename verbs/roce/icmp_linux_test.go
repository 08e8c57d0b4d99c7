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

// forger sends ICMP messages about packets that were never sent, as any host can that knows the
// addresses of two peers.
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

// Forged ICMP messages (port unreachable, packet too big) do not affect a stream: neither from a host
// that knows addresses and ports, nor from one that also knows the numbers of the queue pairs but not
// which packets are in flight.
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
				var ends [2]*side
				for i := range ends {
					var a verbs.ProviderContext
					require.NoError(t, two[i].in(func() (err error) {
						a, err = provider{}.Open("roce_veth0", verbs.Config{Address: c.addr[i]})
						return err
					}))
					ends[i] = newSideOf(t, a.(*adapter), 16, 8*lossySize)
				}
				here, there := ends[0], ends[1]
				own, err := here.qp.Query()
				require.NoError(t, err)
				f := newForger(t, two[1], here.a.wire.local(), there.a.wire.local())
				var forged [][]byte
				// Before the first packet of the stream, and behind the last.
				for _, psn := range []uint32{own.SQPSN - 1, own.SQPSN + 1<<22} {
					h := packet.Header{Opcode: packet.WriteMiddle, Migrated: true, PKey: packet.DefaultPKey, DestQP: there.qp.Num, PSN: psn & psnMask}
					forged = append(forged, f.message(k.kind, k.code, k.mtu, append(h.Append(nil), make([]byte, 512)...)))
				}
				forged = append(forged, f.message(k.kind, k.code, k.mtu, nil))
				enough := need.InLong[int64](50, 200)
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
				// As long as the peer does not receive them, packets are in flight and resent. The second
				// refused try would be the last.
				how := usual
				how.timeout, how.retries = 20, 1
				here.connect(t, there, how, false)
				write := func() {
					at := here.posted % 8 * lossySize
					here.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{here.sge(here.local, at, lossySize)},
						RemoteAddr: there.mem.Addr() + uint64(at), RKey: there.mem.RKey()})
				}
				tries := func() uint {
					here.qp.Lock.Lock()
					defer here.qp.Unlock()
					return here.qp.req.waits
				}
				write()
				for last := uint(0); last < 6; last = tries() {
					for from := rounds.Load(); rounds.Load() < from+2 || tries() == last; {
						here.poll(t)
						require.Empty(t, here.done)
					}
				}
				there.connect(t, here, how, false)
				for from := rounds.Load(); rounds.Load() < from+enough || len(here.done) < here.posted; {
					if rounds.Load() < from+enough && here.posted < len(here.done)+8 {
						write()
					}
					here.poll(t)
					if n := len(here.done); n > 0 {
						require.NoError(t, here.done[n-1].Err())
					}
				}
				end()
			})
		}
	}
}
