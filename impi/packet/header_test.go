package packet

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/startup"
)

func unhex(t testing.TB, s string) *[HeaderLen]byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	require.Len(t, b, HeaderLen)
	return (*[HeaderLen]byte)(b)
}

var (
	here  = Proc{startup.HostID{12: 127, 15: 2}, 4711}
	there = Proc{startup.HostID{0: 0xfe, 1: 0x80, 15: 3}, 1<<40 + 1}
)

// The fields of a golden vector, in the order of the header.
const (
	procHere  = "0000000000000000000000007f000002 0000000000001267 "
	procThere = "fe800000000000000000000000000003 0000010000000001 "
	noProc    = "00000000000000000000000000000000 ffffffffffffffff "
	zero      = "0000000000000000 "
)

// TestGolden has a packet of every type as it is on the wire, in both dialects.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name    string
		h       Header
		before  string // type, length, source, destination, requests, length of the message
		revised string // rank, tag
		draft   string // tag
		after   string // context id, sequence number, count, datatype, reserved
	}{
		{"DATA", Header{Type: Data, Len: 5, Src: here, Dest: there, MsgLen: 5, LSRank: 3, Tag: 77, CID: 1, Seq: 9, Count: 5, DType: 0xd},
			"00000000 00000005" + procHere + procThere + zero + zero + "0000000000000005",
			"00000003 0000004d", "000000000000004d",
			"0000000000000001 0000000000000009 0000000000000005 000000000000000d" + zero},
		{"DATA after SYNCACK", Header{Type: Data, Len: 1 << 16, Src: here, Dest: there, SRQID: 0x1122334455667788, DRQID: 0xfedcba9876543210, MsgLen: 5 << 30, Tag: 0x7fffffff},
			"00000000 00010000" + procHere + procThere + "1122334455667788 fedcba9876543210 0000000140000000",
			"00000000 7fffffff", "000000007fffffff",
			zero + zero + zero + zero + zero},
		{"DATASYNC", Header{Type: DataSync, Len: 1, Src: there, Dest: here, SRQID: 6, MsgLen: 1, LSRank: 2, Tag: -1, CID: 1 << 63, Seq: 1, Count: -1, DType: 2, Reserved: 3},
			"00000001 00000001" + procThere + procHere + "0000000000000006" + zero + "0000000000000001",
			"00000002 ffffffff", "ffffffffffffffff",
			"8000000000000000 0000000000000001 ffffffffffffffff 0000000000000002 0000000000000003"},
		// LAM/MPI's: 128 bytes that do not follow, and 73 in little-endian as context.
		{"PROTOACK", Header{Type: ProtoAck, Len: 128, Src: here, Dest: there, MsgLen: 128, LSRank: -1, Tag: -1, CID: 73 << 56, Seq: 10, Count: -1},
			"00000002 00000080" + procHere + procThere + zero + zero + "0000000000000080",
			"ffffffff ffffffff", "ffffffffffffffff",
			"4900000000000000 000000000000000a ffffffffffffffff" + zero + zero},
		{"SYNCACK", Header{Type: SyncAck, Len: 128, Src: there, Dest: here, SRQID: 6, DRQID: 7, MsgLen: 128, LSRank: -1, Tag: -1, CID: 73 << 56, Seq: 11, Count: -1},
			"00000003 00000080" + procThere + procHere + "0000000000000006 0000000000000007 0000000000000080",
			"ffffffff ffffffff", "ffffffffffffffff",
			"4900000000000000 000000000000000b ffffffffffffffff" + zero + zero},
		{"CANCEL", Header{Type: Cancel, Src: here, Dest: there, SRQID: 8},
			"00000004 00000000" + procHere + procThere + "0000000000000008" + zero + zero,
			zero, zero,
			zero + zero + zero + zero + zero},
		{"CANCELYES", Header{Type: CancelYes, Src: there, Dest: here, SRQID: 8},
			"00000005 00000000" + procThere + procHere + "0000000000000008" + zero + zero,
			zero, zero,
			zero + zero + zero + zero + zero},
		// LAM/MPI's again.
		{"CANCELNO", Header{Type: CancelNo, Len: 128, Src: there, Dest: here, SRQID: 8, MsgLen: 128, LSRank: -1, Tag: -1, CID: 73 << 56, Seq: 12, Count: -1},
			"00000006 00000080" + procThere + procHere + "0000000000000008" + zero + "0000000000000080",
			"ffffffff ffffffff", "ffffffffffffffff",
			"4900000000000000 000000000000000c ffffffffffffffff" + zero + zero},
		{"FINI", Header{Type: Fini, Len: 128, Src: Proc{PID: -1}, Dest: Proc{PID: -1}, MsgLen: 128, LSRank: -1, Tag: -1, Seq: 13, Count: -1},
			"00000007 00000080" + noProc + noProc + zero + zero + "0000000000000080",
			"ffffffff ffffffff", "ffffffffffffffff",
			zero + "000000000000000d ffffffffffffffff" + zero + zero},
	} {
		for d, middle := range map[Dialect]string{Revised: c.revised, Draft1999: c.draft} {
			wire := unhex(t, c.before+middle+c.after)
			require.Equal(t, wire[:], c.h.Append(nil, d), "%s, %v", c.name, d)
			want := c.h
			if d == Draft1999 {
				want.LSRank = 0
			}
			got := Header{LSRank: 99}
			require.NoError(t, Parse(&got, wire, d), "%s, %v", c.name, d)
			require.Equal(t, want, got, "%s, %v", c.name, d)
		}
	}
}

// TestDialectsAgree where the rank is 0 and the tag is not negative.
func TestDialectsAgree(t *testing.T) {
	h := Header{Type: Data, Tag: 0x7fffffff}
	require.Equal(t, h.Append(nil, Revised), h.Append(nil, Draft1999))
}

func TestBody(t *testing.T) {
	for typ := Data; typ <= Fini; typ++ {
		h := Header{Type: typ, Len: 128}
		want := uint32(0)
		if typ == Data || typ == DataSync {
			want = 128
		}
		require.Equal(t, want, h.Body(), "%v", typ)
	}
}

// TestProperty: any header is read as it was written, behind what was there before.
func TestProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	proc := func() (p Proc) {
		for i := range p.Host {
			p.Host[i] = byte(r.Uint32())
		}
		p.PID = int64(r.Uint64())
		return p
	}
	for range 2000 {
		h := Header{
			Type: Type(r.IntN(int(Fini) + 1)), Len: r.Uint32(), Src: proc(), Dest: proc(),
			SRQID: r.Uint64(), DRQID: r.Uint64(), MsgLen: r.Uint64(), LSRank: int32(r.Uint32()), Tag: int64(r.Uint64()),
			CID: r.Uint64(), Seq: r.Uint64(), Count: int64(r.Uint64()), DType: r.Uint64(), Reserved: r.Uint64(),
		}
		for _, d := range []Dialect{Revised, Draft1999} {
			prefix := make([]byte, r.IntN(9))
			b := h.Append(prefix, d)
			require.Equal(t, prefix, b[:len(prefix)])
			b = b[len(prefix):]
			require.Len(t, b, HeaderLen)
			want := h
			if d == Revised {
				want.Tag = int64(int32(h.Tag))
			} else {
				want.LSRank = 0
			}
			var got Header
			require.NoError(t, Parse(&got, (*[HeaderLen]byte)(b), d))
			require.Equal(t, want, got)
		}
	}
}

func TestUnknownType(t *testing.T) {
	for _, typ := range []Type{Fini + 1, 1 << 24, 1<<32 - 1} {
		h := Header{Type: typ, SRQID: 5}
		var got Header
		err := Parse(&got, (*[HeaderLen]byte)(h.Append(nil, Revised)), Revised)
		require.ErrorIs(t, err, ErrType)
		var e *TypeError
		require.ErrorAs(t, err, &e)
		require.Equal(t, typ, e.Type)
		require.Equal(t, h, got)
		require.Zero(t, got.Body())
	}
	require.EqualError(t, &TypeError{8}, "impi/packet: unknown type of packet: 8")
}

func TestNames(t *testing.T) {
	require.Equal(t, "DATA", Data.String())
	require.Equal(t, "CANCELNO", CancelNo.String())
	require.Equal(t, "FINI", Fini.String())
	require.Equal(t, "type 8", Type(8).String())
	require.Equal(t, "revised", Revised.String())
	require.Equal(t, "draft of 1999", Draft1999.String())
	require.Equal(t, "dialect 2", Dialect(2).String())
}

func TestAllocs(t *testing.T) {
	h := Header{Type: DataSync, Len: 5, Src: here, Dest: there, Tag: 4}
	var b [HeaderLen]byte
	var got Header
	buf := make([]byte, 0, 2*HeaderLen)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Put(&b, Revised)
		if Parse(&got, &b, Revised) != nil {
			panic("refused")
		}
		buf = h.Append(buf[:0], Draft1999)
	}))
	require.Equal(t, h, got)
}

func BenchmarkPut(b *testing.B) {
	h := Header{Type: Data, Len: 8, Src: here, Dest: there}
	var w [HeaderLen]byte
	for b.Loop() {
		h.Put(&w, Revised)
	}
}

func BenchmarkParse(b *testing.B) {
	h := Header{Type: Data, Len: 8, Src: here, Dest: there}
	var w [HeaderLen]byte
	h.Put(&w, Revised)
	for b.Loop() {
		if err := Parse(&h, &w, Revised); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzHeader: what Parse takes is written again as it was, and nothing else has a body.
func FuzzHeader(f *testing.F) {
	h := Header{Type: DataSync, Len: 3, Src: here, Dest: there, SRQID: 1, MsgLen: 3, LSRank: 1, Tag: 5, CID: 1}
	f.Add(h.Append(nil, Revised))
	f.Add(make([]byte, HeaderLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderLen {
			return
		}
		wire := (*[HeaderLen]byte)(b)
		for _, d := range []Dialect{Revised, Draft1999} {
			var h Header
			err := Parse(&h, wire, d)
			if err != nil {
				require.ErrorIs(t, err, ErrType)
				require.Greater(t, h.Type, Fini)
			}
			if h.Type > DataSync {
				require.Zero(t, h.Body())
			}
			require.Equal(t, wire[:], h.Append(nil, d))
		}
	})
}
