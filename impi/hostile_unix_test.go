//go:build unix

package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// hostile is a host of a job of three that says what it wants: a plain connection to
// the victim, rank 0. Rank 2 is a decent one.
type hostile struct {
	t       testing.TB
	conn    *net.TCPConn
	victim  *Comm
	decent  *Comm
	l       *link // from the victim to here
	procs   []packet.Proc
	seq     uint64
	foreign bool
}

const (
	hostileAckMark = 4
	hostileHiWater = 8
	hostilePacket  = 1000
	hostileMemory  = 1 << 20
)

// connected returns the two ends of a TCP connection.
func connected(t testing.TB) (a, b *net.TCPConn) {
	l := ranks.Listen(t)
	x := ranks.Dial(t, l.Addr().String())
	for {
		y, err := l.Accept()
		require.NoError(t, err)
		if y.RemoteAddr().String() == x.LocalAddr().String() {
			return x.(*net.TCPConn), y.(*net.TCPConn)
		}
		y.Close() // of an earlier test, whose peer had this port
	}
}

// quiet is a configuration of tests whose peers have reason to complain.
func quiet(t testing.TB) Config {
	c, err := Config{PeerTimeout: limit, Unexpected: hostileMemory, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}.complete()
	require.NoError(t, err)
	return c
}

func newHostile(t testing.TB, foreign bool) *hostile {
	h := &hostile{t: t, foreign: foreign}
	h.start(quiet(t), func(func(int) *roster) {})
	return h
}

// start starts the jobs of hosts 0 and 2, while host 1 does what meet does with its roster.
func (h *hostile) start(config Config, meet func(rosterFor func(int) *roster)) {
	for i := range 3 {
		h.procs = append(h.procs, packet.Proc{Host: startup.HostIDOf(netip.MustParseAddr("127.0.0.1")), PID: int64(100 + i)})
	}
	mine, theirs := connected(h.t)
	h.conn = mine
	x, y := connected(h.t)
	conns := [][]*net.TCPConn{{nil, theirs, x}, nil, {y, nil, nil}}
	rosterFor := func(i int) *roster {
		r := &roster{me: i, tagUB: 1<<31 - 1, foreign: true, finished: func() error { return nil }, abandon: func() {}}
		for k := range 3 {
			r.hosts = append(r.hosts, member{client: k, foreign: k == 1 && h.foreign || i == 2 || k == 2, packetLen: hostilePacket,
				ackMark: hostileAckMark, hiWater: hostileHiWater, addrs: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, procs: h.procs[k : k+1]})
		}
		return r
	}
	var jobs [3]*Job
	var wg sync.WaitGroup
	for _, i := range []int{0, 2} {
		wg.Go(func() {
			var err error
			jobs[i], err = newJob(within(h.t), rosterFor(i), conns[i], config)
			if assert.NoError(h.t, err) {
				jobs[i].protocol = false // the third would not come to the last barrier
			}
		})
	}
	meet(rosterFor)
	wg.Wait()
	require.False(h.t, h.t.Failed())
	h.victim, h.decent, h.l = jobs[0].World(), jobs[2].World(), jobs[0].e.links[1]
	h.t.Cleanup(func() {
		h.conn.Close()
		closeAll(h.t, []*Job{jobs[0], jobs[2]})
	})
}

// packet completes a header, and appends body.
func (h *hostile) packet(p packet.Header, body ...byte) []byte {
	if p.Src == (packet.Proc{}) && p.Type != packet.Fini {
		p.Src, p.Dest = h.procs[1], h.procs[0]
	}
	h.seq++
	p.Seq = h.seq
	return append(p.Append(nil, packet.Revised), body...)
}

func (h *hostile) send(p packet.Header, body ...byte) {
	_, err := h.conn.Write(h.packet(p, body...))
	require.NoError(h.t, err)
}

// expect reads packets up to one of that type.
func (h *hostile) expect(want packet.Type) packet.Header {
	h.conn.SetReadDeadline(time.Now().Add(limit))
	for {
		var b [packet.HeaderLen]byte
		_, err := io.ReadFull(h.conn, b[:])
		require.NoError(h.t, err)
		var p packet.Header
		require.NoError(h.t, packet.Parse(&p, &b, packet.Revised))
		_, err = io.CopyN(io.Discard, h.conn, int64(p.Body()))
		require.NoError(h.t, err)
		if p.Type == want {
			return p
		}
	}
}

// flood sends packets, never more at a time than may be in flight, until the victim
// has enough, and calls each before one is sent.
func (h *hostile) flood(each func(i int) packet.Header, body ...byte) {
	inFlight := 0
	for i := 0; ; i++ {
		for inFlight == hostileHiWater {
			var b [packet.HeaderLen]byte
			if _, err := io.ReadFull(h.conn, b[:]); err != nil {
				return
			}
			if packet.Type(binary.BigEndian.Uint32(b[:])) == packet.ProtoAck {
				inFlight -= hostileAckMark
			}
		}
		if _, err := h.conn.Write(h.packet(each(i), body...)); err != nil {
			return
		}
		inFlight++
	}
}

// unharmed: the decent host and the victim go on.
func (h *hostile) unharmed() {
	h.t.Helper()
	got := make([]byte, 5000)
	both(h.t, func() error { return h.decent.Ssend(within(h.t), pattern(5000, 1), 0, 9) },
		func() error { _, err := h.victim.Recv(within(h.t), got, 2, 9); return err })
	require.Equal(h.t, pattern(5000, 1), got)
}

// givenUp: the victim has given the connection up, for that reason.
func (h *hostile) givenUp(reason error) {
	h.t.Helper()
	_, err := h.victim.Recv(within(h.t), nil, 1, 12345)
	requireError(h.t, err, reason, 1)
	err = h.victim.Send(within(h.t), nil, 1, 0)
	requireError(h.t, err, reason, 1)
	h.conn.SetReadDeadline(time.Now().Add(limit))
	_, err = io.Copy(io.Discard, h.conn)
	require.False(h.t, errors.Is(err, context.DeadlineExceeded) || isTimeout(err), "still open")
	h.unharmed()
}

// TestHostile: anything that the protocol does not allow ends the connection to its sender, for a
// typed reason, and nothing else.
func TestHostile(t *testing.T) {
	type header = packet.Header
	const sync, data = packet.DataSync, packet.Data
	for i, c := range []struct {
		name   string
		act    func(h *hostile)
		reason error
	}{
		{"unknown type", func(h *hostile) { h.send(header{Type: 8}) }, ErrProtocol},
		{"unknown source", func(h *hostile) { h.send(header{Type: data, Src: packet.Proc{PID: 1}, Dest: h.procs[0]}) }, ErrProtocol},
		{"source of another host", func(h *hostile) { h.send(header{Type: data, Src: h.procs[2], Dest: h.procs[0]}) }, ErrProtocol},
		{"the victim as source", func(h *hostile) { h.send(header{Type: data, Src: h.procs[0], Dest: h.procs[0]}) }, ErrProtocol},
		{"unknown destination", func(h *hostile) { h.send(header{Type: data, Src: h.procs[1], Dest: packet.Proc{PID: 1}}) }, ErrProtocol},
		{"destination of another host", func(h *hostile) { h.send(header{Type: packet.ProtoAck, Src: h.procs[1], Dest: h.procs[2]}) }, ErrProtocol},
		{"long packet", func(h *hostile) { h.send(header{Type: sync, Len: hostilePacket + 1, MsgLen: 1 << 20}) }, ErrProtocol},
		{"longest packet", func(h *hostile) { h.send(header{Type: data, Len: 1<<32 - 1, MsgLen: 1<<32 - 1}) }, ErrProtocol},
		{"packet longer than its message", func(h *hostile) { h.send(header{Type: data, Len: 2, MsgLen: 1}, 1, 2) }, ErrProtocol},
		{"DATA of a longer message", func(h *hostile) { h.send(header{Type: data, Len: 1, MsgLen: 2}, 1) }, ErrProtocol},
		{"nothing of a long message", func(h *hostile) { h.send(header{Type: sync, MsgLen: 2}) }, ErrProtocol},
		{"message beyond an int", func(h *hostile) { h.send(header{Type: sync, Len: 1, MsgLen: 1 << 63}, 1) }, ErrProtocol},
		{"negative tag", func(h *hostile) { h.send(header{Type: data, Tag: -1}) }, ErrProtocol},
		{"data for a request that is none", func(h *hostile) { h.send(header{Type: data, Len: 1, MsgLen: 5, DRQID: 1 << 40}, 1) }, ErrProtocol},
		{"data for a receive that waits", func(h *hostile) {
			r := irecv(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: data, Len: 1, MsgLen: 5, DRQID: r.r.id()}, 1)
			fails(h.t, r, ErrProtocol, 1)
		}, ErrProtocol},
		{"more data than announced", func(h *hostile) {
			r := irecv(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: sync, Len: 1, MsgLen: 5, SRQID: 3}, 1)
			p := h.expect(packet.SyncAck)
			require.EqualValues(h.t, 3, p.SRQID)
			h.send(header{Type: data, Len: 5, MsgLen: 5, SRQID: 3, DRQID: p.DRQID}, 1, 2, 3, 4, 5)
			fails(h.t, r, ErrProtocol, 1)
		}, ErrProtocol},
		{"data after the last", func(h *hostile) {
			r := irecv(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: sync, Len: 1, MsgLen: 2, SRQID: 3}, 1)
			p := h.expect(packet.SyncAck)
			for range 2 {
				h.send(header{Type: data, Len: 1, MsgLen: 2, SRQID: 3, DRQID: p.DRQID}, 1)
			}
			completed(h.t, r)
		}, ErrProtocol},
		{"SYNCACK for nothing", func(h *hostile) { h.send(header{Type: packet.SyncAck, SRQID: 1}) }, ErrProtocol},
		{"SYNCACK for an eager message", func(h *hostile) {
			q := isend(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: packet.SyncAck, SRQID: h.expect(data).SRQID})
			_, err := h.victim.Recv(within(h.t), nil, 1, 12345)
			require.ErrorIs(h.t, err, ErrProtocol)
			completed(h.t, q)
		}, ErrProtocol},
		{"SYNCACK twice, of a short message", func(h *hostile) {
			q := issend(h.t, h.victim, make([]byte, 8), 1, 0)
			p := h.expect(sync)
			h.send(header{Type: packet.SyncAck, SRQID: p.SRQID})
			h.send(header{Type: packet.SyncAck, SRQID: p.SRQID})
			completed(h.t, q)
		}, ErrProtocol},
		{"SYNCACK twice, of a long message", func(h *hostile) {
			q := isend(h.t, h.victim, make([]byte, 100*hostilePacket), 1, 0)
			p := h.expect(sync)
			h.send(header{Type: packet.SyncAck, SRQID: p.SRQID, DRQID: 1})
			h.send(header{Type: packet.SyncAck, SRQID: p.SRQID, DRQID: 1})
			fails(h.t, q, ErrProtocol, 1)
		}, ErrProtocol},
		{"SYNCACK without a request", func(h *hostile) {
			q := isend(h.t, h.victim, make([]byte, 2*hostilePacket), 1, 0)
			h.send(header{Type: packet.SyncAck, SRQID: h.expect(sync).SRQID})
			fails(h.t, q, ErrProtocol, 1)
		}, ErrProtocol},
		{"SYNCACK for a receive", func(h *hostile) {
			r := irecv(h.t, h.victim, nil, 1, 0)
			h.send(header{Type: packet.SyncAck, SRQID: r.r.id()})
			fails(h.t, r, ErrProtocol, 1)
		}, ErrProtocol},
		{"CANCELYES without CANCEL", func(h *hostile) {
			q := issend(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: packet.CancelYes, SRQID: h.expect(sync).SRQID})
			fails(h.t, q, ErrProtocol, 1)
		}, ErrProtocol},
		{"CANCELNO for nothing", func(h *hostile) { h.send(header{Type: packet.CancelNo, SRQID: 5}) }, ErrProtocol},
		{"CANCELYES after SYNCACK", func(h *hostile) {
			q := issend(h.t, h.victim, make([]byte, 8), 1, 0)
			require.NoError(h.t, q.Cancel())
			p := h.expect(packet.Cancel)
			h.send(header{Type: packet.SyncAck, SRQID: p.SRQID})
			h.send(header{Type: packet.CancelYes, SRQID: p.SRQID})
			fails(h.t, q, ErrProtocol, 1)
		}, ErrProtocol},
		{"acknowledgement of nothing", func(h *hostile) { h.send(header{Type: packet.ProtoAck}) }, ErrProtocol},
		{"acknowledgement of too much", func(h *hostile) {
			for range hostileAckMark {
				require.NoError(h.t, h.victim.Send(within(h.t), nil, 1, 0))
			}
			h.send(header{Type: packet.ProtoAck})
			h.send(header{Type: packet.ProtoAck})
		}, ErrProtocol},
		{"more than HIWATER in flight", func(h *hostile) {
			var b []byte
			for range 100 {
				b = append(b, h.packet(header{Type: data})...)
			}
			// All of it is there before any of it is read.
			h.victim.e.lock.Lock()
			defer h.victim.e.lock.Unlock()
			_, err := h.conn.Write(b)
			require.NoError(h.t, err)
			await := time.Now().Add(limit)
			for unread(h.l, len(b)) < len(b) && time.Now().Before(await) {
				runtime.Gosched()
			}
		}, ErrProtocol},
		{"unknown contexts", func(h *hostile) {
			h.flood(func(i int) header { return header{Type: data, CID: uint64(100 + i)} })
		}, ErrOverflow},
		{"messages without receives", func(h *hostile) {
			h.flood(func(int) header { return header{Type: data, Len: hostilePacket, MsgLen: hostilePacket} }, make([]byte, hostilePacket)...)
		}, ErrOverflow},
		{"questions without an ear for answers", func(h *hostile) {
			h.flood(func(int) header { return header{Type: packet.Cancel, SRQID: 1} })
		}, ErrOverflow},
		{"half a header", func(h *hostile) {
			_, err := h.conn.Write(h.packet(header{Type: data})[:100])
			require.NoError(h.t, err)
			require.NoError(h.t, h.conn.CloseWrite())
		}, ErrPeerDied},
		{"half a body", func(h *hostile) {
			r := irecv(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: data, Len: 8, MsgLen: 8}, 1, 2, 3)
			require.NoError(h.t, h.conn.CloseWrite())
			fails(h.t, r, ErrPeerDied, 1)
		}, ErrPeerDied},
		{"half of a long message", func(h *hostile) {
			r := irecv(h.t, h.victim, make([]byte, 8), 1, 0)
			h.send(header{Type: sync, Len: 4, MsgLen: 8, SRQID: 1}, 1, 2, 3, 4)
			h.expect(packet.SyncAck)
			require.NoError(h.t, h.conn.CloseWrite())
			fails(h.t, r, ErrPeerDied, 1)
		}, ErrPeerDied},
	} {
		t.Run(c.name, func(t *testing.T) {
			if i%4 != 0 {
				need.Full(t)
			}
			h := newHostile(t, true)
			c.act(h)
			h.givenUp(c.reason)
		})
	}
	t.Run("packet after FINI", func(t *testing.T) {
		h := newHostile(t, true)
		_, err := h.conn.Write(append(h.packet(header{Type: packet.Fini}), h.packet(header{Type: data})...))
		require.NoError(t, err)
		h.givenUp(ErrProtocol)
	})
}

// TestPeculiar: what is unusual, but allowed, is understood.
func TestPeculiar(t *testing.T) {
	h := newHostile(t, true)
	go io.Copy(io.Discard, h.conn)
	type header = packet.Header
	got := make([]byte, 10)
	recv := func(tag int) Status {
		t.Helper()
		clear(got)
		return received(t, h.victim, got, 1, tag)
	}
	// Numbers that mean nothing in packets without data.
	h.send(header{Type: packet.Cancel, Len: 128, MsgLen: 128, LSRank: -1, Tag: -1, CID: 73 << 56, Count: -1})
	// A short synchronous message of no bytes, with a number that is 0.
	h.send(header{Type: packet.DataSync, Tag: 1})
	require.Equal(t, Status{Source: 1, Tag: 1}, recv(1))
	// The largest tag.
	h.send(header{Type: packet.Data, Tag: 1<<31 - 1})
	require.Equal(t, Status{Source: 1, Tag: 1<<31 - 1}, recv(AnyTag))
	// A byte at a time.
	for _, b := range h.packet(header{Type: packet.Data, Len: 3, MsgLen: 3}, 'a', 'b', 'c') {
		_, err := h.conn.Write([]byte{b})
		require.NoError(t, err)
	}
	require.Equal(t, 3, recv(0).Len)
	require.Equal(t, "abc", string(got[:3]))
	h.unharmed()
}

// TestMessageNumbers: pk_seqnum numbers the messages from one process to another. All
// packets of a message have its number; those that carry no message have 0.
func TestMessageNumbers(t *testing.T) {
	h := newHostile(t, true)
	type header = packet.Header
	ctx := within(t)
	long := pattern(2*hostilePacket+1, 1)
	require.NoError(t, h.victim.Send(ctx, long[:2], 1, 5))
	p := h.expect(packet.Data)
	require.Equal(t, header{Type: packet.Data, Len: 2, Src: h.procs[0], Dest: h.procs[1], SRQID: p.SRQID, MsgLen: 2, Tag: 5, Seq: 1, Count: 2}, p)
	q := isend(t, h.victim, long, 1, 6)
	first := h.expect(packet.DataSync)
	require.EqualValues(t, 2, first.Seq)
	require.NoError(t, h.victim.Send(ctx, long[:3], 1, 7))
	require.EqualValues(t, 3, h.expect(packet.Data).Seq)
	h.send(header{Type: packet.SyncAck, SRQID: first.SRQID, DRQID: 7})
	for _, n := range []uint32{hostilePacket, 1} {
		p := h.expect(packet.Data)
		require.Equal(t, header{Type: packet.Data, Len: n, Src: h.procs[0], Dest: h.procs[1], SRQID: first.SRQID, DRQID: 7,
			MsgLen: uint64(len(long)), Tag: 6, Seq: 2, Count: int64(len(long))}, p)
	}
	completed(t, q)

	q = irecv(t, h.victim, make([]byte, 1), 1, 0)
	h.send(header{Type: packet.DataSync, Len: 1, MsgLen: 1, SRQID: 3}, 'a')
	require.Equal(t, header{Type: packet.SyncAck, Src: h.procs[0], Dest: h.procs[1], SRQID: 3}, h.expect(packet.SyncAck))
	completed(t, q)
	q = issend(t, h.victim, nil, 1, 0)
	p = h.expect(packet.DataSync)
	require.EqualValues(t, 4, p.Seq)
	require.NoError(t, q.Cancel())
	require.Equal(t, header{Type: packet.Cancel, Src: h.procs[0], Dest: h.procs[1], SRQID: p.SRQID}, h.expect(packet.Cancel))
	h.send(header{Type: packet.CancelYes, SRQID: p.SRQID})
	st := completed(t, q)
	require.True(t, st.Cancelled)
}

// TestSlowSplit: a long message that could have been short, in packets of few bytes
// and of none.
func TestSlowSplit(t *testing.T) {
	h := newHostile(t, true)
	type header = packet.Header
	got := make([]byte, 4)
	r := irecv(t, h.victim, got, AnySource, 0)
	h.send(header{Type: packet.DataSync, Len: 1, MsgLen: 4, SRQID: 9}, 'a')
	p := h.expect(packet.SyncAck)
	require.Equal(t, h.procs[0], p.Src)
	require.Equal(t, h.procs[1], p.Dest)
	h.send(header{Type: packet.Data, Len: 1, MsgLen: 4, DRQID: p.DRQID}, 'b')
	h.send(header{Type: packet.Data, MsgLen: 4, DRQID: p.DRQID})
	h.send(header{Type: packet.Data, Len: 2, MsgLen: 4, DRQID: p.DRQID}, 'c', 'd')
	require.Equal(t, Status{Source: 1, Len: 4}, completed(t, r))
	require.Equal(t, "abcd", string(got))
	h.unharmed()
}

// TestMemoryOfHostile: a peer whose messages are not received makes the victim keep no more than it
// is allowed.
func TestMemoryOfHostile(t *testing.T) {
	h := newHostile(t, true)
	body := make([]byte, hostilePacket)
	most := 0
	h.flood(func(int) packet.Header {
		h.victim.e.lock.Lock()
		defer h.victim.e.lock.Unlock()
		for _, p := range h.l.pairs {
			most = max(most, p.held)
		}
		return packet.Header{Type: packet.Data, Len: hostilePacket, MsgLen: hostilePacket}
	}, body...)
	require.Greater(t, most, hostileMemory/2)
	require.LessOrEqual(t, most, hostileMemory)
	// What had come before is still there.
	require.Equal(t, hostilePacket, received(t, h.victim, body, 1, 0).Len)
	h.unharmed()
}

// unread is how many bytes wait in the socket of a link over TCP, up to most.
func unread(l *link, most int) int {
	n, _, err := unix.Recvfrom(l.carrier.(*tcpCarrier).s.fd(), make([]byte, most), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}

// TestCancelOneID: of several messages with one number the last is taken back, as a
// foreign peer may have it.
func TestCancelOneID(t *testing.T) {
	h := newHostile(t, true)
	for i := range 3 {
		h.send(packet.Header{Type: packet.Data, Len: 1, MsgLen: 1, SRQID: 7, Tag: int64(i)}, 'a'+byte(i))
	}
	h.send(packet.Header{Type: packet.Cancel, SRQID: 7})
	require.Equal(t, packet.CancelYes, h.expect(packet.CancelYes).Type)
	for i := range 2 {
		var b [1]byte
		require.Equal(t, Status{Source: 1, Tag: i, Len: 1}, received(t, h.victim, b[:], 1, AnyTag))
		require.Equal(t, 'a'+byte(i), b[0])
	}
	h.send(packet.Header{Type: packet.Cancel, SRQID: 7})
	require.Equal(t, packet.CancelNo, h.expect(packet.CancelNo).Type)
	h.unharmed()
}

// TestLeavesFirst: a foreign host has sent FINI and has not yet read what was sent to it. Closing
// the job sends that, and our own FINI, before it closes the connection.
func TestLeavesFirst(t *testing.T) {
	h := newHostile(t, true)
	h.victim.e.lock.Lock()
	h.l.packetLen, h.l.hiWater = 1<<20, 100
	h.victim.e.lock.Unlock()
	for range 50 { // more than the sockets take
		isend(t, h.victim, make([]byte, 1<<20), 1, 0)
	}
	h.send(packet.Header{Type: packet.Fini})
	until := func(over func() bool) {
		for ok := false; !ok; runtime.Gosched() {
			require.NoError(t, within(t).Err())
			h.victim.e.lock.Lock()
			h.victim.e.progress()
			ok = over()
			h.victim.e.lock.Unlock()
		}
	}
	go h.decent.job.Close(within(t))
	until(func() bool { return h.l.left && h.victim.e.links[2].left })
	go h.victim.job.Close(within(t))
	until(func() bool { return h.l.fini })
	h.expect(packet.Fini)
	n, err := h.conn.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
}
