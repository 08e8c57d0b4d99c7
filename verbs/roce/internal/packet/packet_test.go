package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomHeader draws what the opcode has; the rest stays zero, as Parse leaves it.
func randomHeader(rng *rand.Rand, op Opcode) Header {
	h := Header{
		Opcode: op, Solicited: rng.IntN(2) == 0, Migrated: rng.IntN(2) == 0, FECN: rng.IntN(2) == 0, BECN: rng.IntN(2) == 0,
		AckReq: rng.IntN(2) == 0, PKey: uint16(rng.Uint32()), DestQP: rng.Uint32() >> 8, PSN: rng.Uint32() >> 8,
	}
	e := layouts[op].ext
	if h.Carries = e&hasCarried != 0; h.Carries {
		h.Opcode, h.Carried = op-carrying, rng.Uint32()>>8
	}
	if e&(hasRETH|hasAtomic) != 0 {
		h.VA, h.RKey = rng.Uint64(), rng.Uint32()
	}
	if e&hasRETH != 0 {
		h.Length = rng.Uint32()
	}
	if e&hasWhole != 0 {
		h.WholeLength = rng.Uint32()
	}
	if e&hasAtomic != 0 {
		h.SwapAdd, h.Compare = rng.Uint64(), rng.Uint64()
	}
	if e&hasAETH != 0 {
		h.Syndrome, h.MSN = uint8(rng.Uint32()), rng.Uint32()>>8
	}
	if e&hasAtomicAck != 0 {
		h.Original = rng.Uint64()
	}
	if e&hasImm != 0 {
		h.Imm = rng.Uint32()
	}
	if e&hasIETH != 0 {
		h.InvRKey = rng.Uint32()
	}
	if e&hasArrived != 0 {
		for i := range h.Arrived {
			h.Arrived[i] = rng.Uint64()
		}
	}
	return h
}

func known() (ops []Opcode) {
	for op := range 256 {
		if Opcode(op).Known() {
			ops = append(ops, Opcode(op))
		}
	}
	return ops
}

func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, op := range known() {
		for n := range 64 {
			h := randomHeader(rng, op)
			payload := make([]byte, 0, 80)
			if layouts[op].ext&hasPayload != 0 {
				for range n {
					payload = append(payload, byte(rng.Uint32()))
				}
				h.Pad = PadOf(n)
			}
			b := h.Append(nil)
			require.Len(t, b, op.HeaderLen())
			require.Equal(t, op.HeaderLen(), h.Len())
			require.LessOrEqual(t, len(b), MaxHeader)
			b = append(append(b, payload...), make([]byte, h.Pad)...)
			var got Header
			p, err := got.Parse(b)
			require.NoError(t, err, "%v", op)
			require.Equal(t, h, got)
			require.Equal(t, payload, append([]byte{}, p...))
			for cut := range len(b) {
				var bth Header
				require.Equal(t, cut >= bthLen, bth.ParseBTH(b[:cut]))
				if cut >= bthLen {
					require.Equal(t, Header{Opcode: h.Opcode, Carries: h.Carries, DestQP: h.DestQP, PSN: h.PSN}, bth)
				}
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	ack := (&Header{Opcode: Acknowledge}).Append(nil)
	write := (&Header{Opcode: WriteOnly, Pad: 3}).Append(nil)
	version := (&Header{Opcode: SendOnly}).Append(nil)
	version[1] |= 1
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"half a BTH", ack[:8], ErrShort},
		{"no AETH", ack[:12], ErrShort},
		{"half a RETH", write[:20], ErrShort},
		{"odd length", append(write[:len(write):len(write)], 1), ErrAlign},
		{"padding of nothing", write, ErrPad},
		{"payload of an ACK", append(ack[:len(ack):len(ack)], 1, 2, 3, 4), ErrPayload},
		{"opcode of RD", append([]byte{0x40}, ack[1:]...), ErrOpcode},
		{"version 1", version, ErrVersion},
	} {
		var h Header
		_, err := h.Parse(c.b)
		require.ErrorIs(t, err, c.want, c.name)
	}
}

var (
	src4, dst4 = netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791")
	src6, dst6 = netip.MustParseAddrPort("[fd00::1]:49152"), netip.MustParseAddrPort("[fd00::2]:4791")
)

// What routers may change is not covered, every other bit is.
func TestICRCCovers(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{src4, dst4}, {src6, dst6}} {
		var r Route
		r.Set(ends[0], ends[1])
		pkt := append((&Header{Opcode: SendOnly, PSN: 7}).Append(nil), "some payload"...)
		want := r.ICRC(pkt, 0)
		for bit := range len(pkt) * 8 {
			pkt[bit/8] ^= 1 << (bit % 8)
			if got := r.ICRC(pkt, 0); bit/8 == maskedByte {
				require.Equal(t, want, got, "bit %d", bit)
			} else {
				require.NotEqual(t, want, got, "bit %d", bit)
			}
			pkt[bit/8] ^= 1 << (bit % 8)
		}
		var other Route
		other.Set(ends[0], netip.AddrPortFrom(ends[1].Addr().Next(), ends[1].Port()))
		require.NotEqual(t, want, other.ICRC(pkt, 0), "destination address")
		other.Set(ends[0], netip.AddrPortFrom(ends[1].Addr(), ends[1].Port()+1))
		require.NotEqual(t, want, other.ICRC(pkt, 0), "destination port")
		other.Set(netip.AddrPortFrom(ends[0].Addr().Next(), 1), ends[1])
		require.NotEqual(t, want, other.ICRC(pkt, 0), "source")
		other.SetSource(ends[0])
		require.Equal(t, want, other.ICRC(pkt, 0))
	}
}

// Check finds the identification that a sender used, whatever it was, and takes
// no other change for one.
func TestIdentification(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var r Route
	r.Set(src4, dst4)
	for n := range 300 {
		pkt := (&Header{Opcode: SendOnly}).Append(nil)
		for range 4 * rng.IntN(n+1) {
			pkt = append(pkt, byte(rng.Uint32()))
		}
		want, guess := uint16(rng.Uint32()), uint16(rng.Uint32())
		b := r.Seal(pkt, want)
		id, ok := r.Check(b, want, true)
		require.True(t, ok)
		require.Equal(t, want, id)
		id, ok = r.Check(b, guess, false)
		require.True(t, ok)
		require.Equal(t, want, id)
		_, ok = r.Check(b, want+1, true)
		require.False(t, ok)
		// A single changed byte outside of the identification is found always: CRC-32
		// finds all bursts of up to 32 bits, and two of 16 as far apart almost always.
		at := rng.IntN(len(pkt))
		if at == maskedByte {
			continue
		}
		b[at] ^= byte(1 + rng.IntN(255))
		_, ok = r.Check(b, want, true)
		require.False(t, ok)
	}
	r.Set(src6, dst6)
	b := r.Seal((&Header{Opcode: Acknowledge}).Append(nil), 0)
	id, ok := r.Check(b, 77, false)
	require.True(t, ok)
	require.Zero(t, id, "IPv6 has no identification to be guessed")
	b[len(b)-1] ^= 1
	_, ok = r.Check(b, 0, false)
	require.False(t, ok, "IPv6 has no identification to be wrong")
	_, ok = r.Check(b[:8], 0, false)
	require.False(t, ok)
}

// What a Route keeps from one packet to the next does not show.
func TestRouteChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, ends := range [][2]netip.AddrPort{{src4, dst4}, {src6, dst6}} {
		var r Route
		src, whole := ends[0], true
		r.Set(src, ends[1])
		for range 2000 {
			switch rng.IntN(4) {
			case 0:
				src = netip.AddrPortFrom(src.Addr(), uint16(rng.IntN(3)))
				r.SetSource(src)
			case 1:
				whole = rng.IntN(2) == 0
				r.SetDontFragment(whole)
			case 2:
				r.Set(src, ends[1])
				whole = true
			}
			var fresh Route
			fresh.Set(src, ends[1])
			fresh.SetDontFragment(whole)
			pkt, id := make([]byte, 12+4*rng.IntN(3)), uint16(rng.IntN(2))
			pkt[0], pkt[4] = byte(rng.Uint32()), byte(rng.Uint32())
			before := bytes.Clone(pkt)
			require.Equal(t, fresh.ICRC(pkt, id), r.ICRC(pkt, id))
			require.Equal(t, before, pkt)
		}
	}
}

// Of packets of which everything has changed, at most a few in 2^16 pass where
// the identification is not known.
func TestGarbagePasses(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var r Route
	r.Set(src4, dst4)
	passed := 0
	b := make([]byte, 64)
	const tries = 1 << 16
	for range tries {
		for i := 0; i < len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
		}
		if _, ok := r.Check(b, 0, false); ok {
			passed++
		}
	}
	require.Less(t, passed, 16)
}

func TestAllocs(t *testing.T) {
	r := new(Route)
	r.Set(src4, dst4)
	b := make([]byte, 0, 2048)
	h, got := Header{Opcode: WriteOnly, PSN: 3}, new(Header)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b = h.Append(b[:0])
		b = b[:len(b)+1024]
		b = r.Seal(b, 5)
		if _, ok := r.Check(b, 3, false); !ok {
			panic("CRC")
		}
		if _, err := got.Parse(b[:len(b)-ICRCLen]); err != nil {
			panic(err)
		}
	}))
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(byteSize(n), func(b *testing.B) {
			r := new(Route)
			r.Set(src4, dst4)
			pkt := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				r.ICRC(pkt, 0)
			}
		})
	}
}

// What a packet costs whose identification is not known, of another length than the one
// before it.
func BenchmarkCheckUnknown(b *testing.B) {
	r := new(Route)
	r.Set(src4, dst4)
	pkts := [2][]byte{r.Seal(make([]byte, 64), 1), r.Seal(make([]byte, 68), 1)}
	for i := 0; b.Loop(); i++ {
		if _, ok := r.Check(pkts[i%2], 0, false); !ok {
			b.Fatal("it is right")
		}
	}
}

func byteSize(n int) string {
	if n >= 1024 {
		return string(rune('0'+n/1024)) + "KiB"
	}
	return "64B"
}

// golden is a packet of testdata/rxe.txt: its fields, in order.
type golden struct {
	name   string
	fields map[string][]byte
	wire   []byte // IP header and all
}

func goldens(t testing.TB) (all []golden) {
	text, err := os.ReadFile("testdata/rxe.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "" || name == "#":
		case name == "packet":
			all = append(all, golden{name: value, fields: map[string][]byte{}})
		default:
			b, err := hex.DecodeString(strings.TrimSpace(value))
			require.NoError(t, err, "%s", line)
			g := &all[len(all)-1]
			g.fields[name] = b
			g.wire = append(g.wire, b...)
		}
	}
	return all
}

// number is a field of up to 8 bytes.
func (g *golden) number(name string) (n uint64) {
	for _, b := range g.fields[name] {
		n = n<<8 | uint64(b)
	}
	return n
}

// What a kernel has sent is decoded to what it says, encoded to the same bytes, and
// has the CRC that is computed here.
func TestGolden(t *testing.T) {
	all := goldens(t)
	require.Equal(t, 17, len(all))
	for _, g := range all {
		t.Run(g.name, func(t *testing.T) {
			ip, udp := g.fields["ip"], g.fields["udp"]
			b := g.wire[len(ip)+len(udp):]
			var r Route
			var id uint16
			port := func(at int) uint16 { return binary.BigEndian.Uint16(udp[at:]) }
			if ip[0]>>4 == 4 {
				r.Set(netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[v4Src:])), port(0)), netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[v4Dst:])), port(2)))
				id = binary.BigEndian.Uint16(ip[v4ID:])
			} else {
				r.Set(netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[v6Src:])), port(0)), netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[v6Dst:])), port(2)))
			}
			_, ok := r.Check(b, id, true)
			require.True(t, ok, "CRC %x, computed %08x", g.fields["icrc"], r.ICRC(b[:len(b)-ICRCLen], id))
			found, ok := r.Check(b, 0, false)
			require.True(t, ok)
			require.Equal(t, id, found)

			var h Header
			payload, err := h.Parse(b[:len(b)-ICRCLen])
			require.NoError(t, err)
			require.Equal(t, string(g.fields["payload"]), string(payload))
			flags := g.number("bth.flags")
			want := Header{
				Opcode: Opcode(g.number("bth.opcode")), Solicited: flags&0x80 != 0, Migrated: flags&0x40 != 0, Pad: uint8(len(g.fields["pad"])),
				PKey: uint16(g.number("bth.pkey")), DestQP: uint32(g.number("bth.destqp")),
				AckReq: g.number("bth.psn")>>31 != 0, PSN: uint32(g.number("bth.psn")) & numberMask,
				VA: g.number("reth.va") | g.number("atomic.va"), RKey: uint32(g.number("reth.rkey") | g.number("atomic.rkey")),
				Length: uint32(g.number("reth.length")), SwapAdd: g.number("atomic.swapadd"), Compare: g.number("atomic.compare"),
				Syndrome: uint8(g.number("aeth.syndrome")), MSN: uint32(g.number("aeth.msn")), Original: g.number("atomicack.orig"),
			}
			require.Equal(t, want, h)
			name, _, _ := strings.Cut(g.name, ",")
			require.Equal(t, name, h.Opcode.String())
			again := append(append(h.Append(nil), payload...), make([]byte, h.Pad)...)
			require.Equal(t, b[:len(b)-ICRCLen], again)
		})
	}
}

// Whatever Parse accepts, Append makes again, save reserved bits.
func FuzzParse(f *testing.F) {
	for _, op := range known() {
		h := randomHeader(rand.New(rand.NewPCG(uint64(op), 0)), op)
		f.Add(h.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		payload, err := h.Parse(b)
		if err != nil {
			return
		}
		c := append(append(h.Append(nil), payload...), make([]byte, h.Pad)...)
		require.Len(t, c, len(b))
		p, err := again.Parse(c)
		require.NoError(t, err)
		require.Equal(t, h, again)
		require.Equal(t, payload, p)
	})
}

// A CRC that Check accepts is the one that Seal writes with the identification that
// it found.
func FuzzCheck(f *testing.F) {
	f.Add([]byte("twelve bytes and more"), uint16(7), true)
	f.Fuzz(func(t *testing.T, b []byte, guess uint16, four bool) {
		var r Route
		r.Set(src6, dst6)
		if four {
			r.Set(src4, dst4)
		}
		id, ok := r.Check(b, guess, false)
		if ok {
			require.Equal(t, b, r.Seal(append([]byte{}, b[:len(b)-ICRCLen]...), id))
		}
		if len(b) >= bthLen {
			id, ok = r.Check(r.Seal(append([]byte{}, b...), guess), 0, false)
			require.True(t, ok)
			require.True(t, id == guess || !four)
		}
	})
}
