package impi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
)

// script is a socket that brings a stream in pieces of whatever length, and takes all.
type script struct {
	in     []byte
	step   int
	closed bool
	sent   int
}

func (s *script) readv(bufs [][]byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := 0
	for _, b := range bufs {
		k := copy(b, s.in[:min(len(s.in), s.step-n)])
		s.in = s.in[k:]
		n += k
	}
	return n, nil
}

func (s *script) writev(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	s.sent += n
	return n, nil
}

func (s *script) fd() int { return -1 }
func (s *script) close()  { s.closed = true }

// scripted is a process of a job of two whose other host says what the script has.
func scripted(t testing.TB, s *script) (*Comm, *tcpCarrier) {
	e := &engine{log: slog.New(slog.DiscardHandler), ranks: map[packet.Proc]int32{}, unexpected: 100_000}
	for i, p := range fuzzProcs {
		e.procs, e.hostOf, e.ranks[p] = append(e.procs, p), append(e.hostOf, int32(i)), int32(i)
	}
	p := &process{e: e, matchers: map[uint64]*matcher{}, pairs: make([]*pair, 2)}
	e.processes = []*process{p}
	l := &link{e: e, host: 1, foreign: true, packetLen: 100, first: 100, rest: 100, ackMark: 2, hiWater: 5}
	c := newTCPCarrier(l, s)
	l.carrier = c
	e.links = []*link{nil, l}
	j := &Job{e: e, tagUB: 1<<31 - 1}
	return j.newComm(p, identity(2), 0), c
}

var fuzzProcs = []packet.Proc{{Host: startup.HostIDOf(netip.MustParseAddr("127.0.0.1")), PID: 1}, {Host: startup.HostIDOf(netip.MustParseAddr("127.0.0.1")), PID: 2}}

// FuzzStream: whatever a host sends, all that waits for it ends, with an error that
// says why, no more is kept than is allowed, and memory beside that of a receive is
// left alone.
func FuzzStream(f *testing.F) {
	say := func(list ...any) []byte {
		var b []byte
		for _, x := range list {
			switch x := x.(type) {
			case packet.Header:
				if x.Type != packet.Fini {
					x.Src, x.Dest = fuzzProcs[1], fuzzProcs[0]
				}
				b = x.Append(b, packet.Revised)
			case string:
				b = append(b, x...)
			}
		}
		return b
	}
	type header = packet.Header
	f.Add(uint8(200), say(header{Type: packet.Data, Len: 5, MsgLen: 5, Tag: 1}, "hello"))
	f.Add(uint8(1), say(header{Type: packet.DataSync, Len: 5, MsgLen: 5, Tag: 7, SRQID: 1}, "hello", header{Type: packet.Cancel, SRQID: 1}))
	f.Add(uint8(255), say(header{Type: packet.DataSync, Len: 3, MsgLen: 20, Tag: 1, SRQID: 1}, "abc", header{Type: packet.Data, Len: 17, MsgLen: 20, DRQID: 1 << 32}, "defghijklmnopqrst", header{Type: packet.Fini}))
	f.Add(uint8(100), say(header{Type: packet.SyncAck, SRQID: 1<<32 | 2}, header{Type: packet.SyncAck, SRQID: 1<<32 | 3, DRQID: 9}, header{Type: packet.ProtoAck}, header{Type: packet.CancelNo, SRQID: 1<<32 | 4}))
	f.Add(uint8(130), say(header{Type: packet.CancelYes, SRQID: 1<<32 | 4}, header{Type: packet.Fini}, header{Type: packet.Data}))
	f.Add(uint8(50), say(header{Type: packet.Data}, header{Type: packet.Data}, header{Type: packet.Data}, header{Type: packet.Data}, header{Type: packet.Data}, header{Type: packet.Data}))
	f.Fuzz(hears)
}

// FuzzDialogue is FuzzStream of packets that make sense one by one: five bytes each.
func FuzzDialogue(f *testing.F) {
	f.Add(uint8(255), []byte{0, 1, 5, 5, 0, 3, 2, 2, 0, 0})
	f.Add(uint8(3), []byte{1, 1, 5, 0x85, 1, 0, 1, 9, 0x85, 0x10, 4, 0, 0, 0, 1, 7, 0, 0, 0, 0})
	f.Add(uint8(90), []byte{3, 0, 0, 0, 2, 3, 0, 0, 0, 0x93, 6, 0, 0, 0, 4, 2, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, step uint8, program []byte) {
		var b []byte
		for ; len(program) >= 5; program = program[5:] {
			op := program[:5]
			id := func(n byte) uint64 { // of a request of the process, or none
				if n &= 15; n > 0 {
					return 1<<32 | uint64(n-1)
				}
				return 0
			}
			h := packet.Header{Type: packet.Type(op[0] % 9), Src: fuzzProcs[1], Dest: fuzzProcs[0], Tag: int64(op[1] % 8), Len: uint32(op[2] % 104),
				MsgLen: uint64(op[3]&127) << (op[3] >> 7), SRQID: id(op[4]), DRQID: id(op[4] >> 4), CID: uint64(op[1] >> 6)}
			b = append(h.Append(b, packet.Revised), make([]byte, h.Body())...)
		}
		hears(t, step, b)
	})
}

// hears has a process with requests of all kinds hear a stream, step bytes at a time.
func hears(t *testing.T, step uint8, b []byte) {
	s := &script{in: b, step: 1 + int(step)}
	c, carrier := scripted(t, s)
	memory := make([]byte, 48)
	var list []Request
	add := func(q Request, err error) {
		require.NoError(t, err)
		list = append(list, q)
	}
	add(c.Irecv(memory[16:32], 1, 1))
	add(c.Irecv(make([]byte, 8), AnySource, 5))
	add(c.Issend(make([]byte, 8), 1, 0))
	add(c.Isend(make([]byte, 1000), 1, 0))
	add(c.Issend(make([]byte, 9), 1, 0))
	require.NoError(t, list[4].Cancel())
	for !s.closed {
		carrier.poll()
		for _, p := range carrier.l.pairs {
			require.LessOrEqual(t, p.held, 100_000)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, q := range list {
		if ok, _, err := q.Test(); !ok || err != nil {
			require.True(t, ok)
			require.True(t, errors.Is(err, ErrProtocol) || errors.Is(err, ErrPeerDied) || errors.Is(err, ErrOverflow) || errors.Is(err, ErrPeerLeft) || errors.Is(err, ErrTruncated), "%v", err)
		}
	}
	_, err := c.Recv(gone, nil, 1, 999)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.Canceled)
	require.Equal(t, make([]byte, 16), memory[:16])
	require.Equal(t, make([]byte, 16), memory[32:])
}

// FuzzMember: what is read of a host's announcement is what it would announce.
func FuzzMember(f *testing.F) {
	m := member{packetLen: 1000, ackMark: 3, hiWater: 5, addrs: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:99"), netip.MustParseAddrPort("[fe80::1]:1")}, procs: fuzzProcs}
	f.Add(m.append(nil))
	f.Add(m.append(nil)[:40])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMember(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.NotEmpty(t, m.addrs)
		require.NotEmpty(t, m.procs)
		require.Positive(t, m.packetLen)
		require.GreaterOrEqual(t, m.hiWater, m.ackMark)
		again, err := parseMember(m.append(nil))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

// FuzzOffer: what a host says about its devices is refused, or read as it would be said.
func FuzzOffer(f *testing.F) {
	o := offer{machine: 5, kernel: 6, slot: rcSlot, mapped: mappedSlot, window: 16}
	b, err := o.append(nil)
	require.NoError(f, err)
	f.Add(b[4:])
	f.Add(b[4:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOffer(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		w, err := o.append(nil)
		require.NoError(t, err)
		require.Equal(t, b, w[4:])
	})
}

// FuzzRCPacket: a header of a queue pair's packet is refused, or read as it was
// written; and so is what follows a SYNCACK.
func FuzzRCPacket(f *testing.F) {
	var b [rcHeader]byte
	p := rcPacket{t: packet.Data, flags: rcRest, dest: 1, src: 2, length: 5, srqid: 9}
	p.put(&b)
	f.Add(b[:])
	f.Add(append(b[:], make([]byte, rcPiece)...))
	f.Add(b[:8])
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseRC(b)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		var w [rcHeader]byte
		p.put(&w)
		require.Equal(t, b[:rcHeader], w[:])
		list, err := parseRemotes(b[rcHeader:])
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		var again []byte
		for _, r := range list {
			again = r.append(again)
		}
		require.Equal(t, len(b)-rcHeader, len(again))
		require.Equal(t, string(b[rcHeader:]), string(again))
	})
}
