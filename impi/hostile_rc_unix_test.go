//go:build unix

package impi

import (
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/verbs"
)

// hostileRC is a hostile host with a queue pair to the victim, which it drives by hand.
type hostileRC struct {
	hostile
	c      *rcCarrier
	heard  []heard       // that has not been expected
	broken bool          // the victim has gone
	gone   chan struct{} // it has closed the connection
	acks   int
}

// heard is a packet of the victim.
type heard struct {
	rcPacket
	body []byte
}

func newHostileRC(t testing.TB, provider string) *hostileRC {
	h := &hostileRC{hostile: hostile{t: t}, gone: make(chan struct{})}
	config := quiet(t)
	config.Providers = []string{provider}
	h.start(config, func(rosterFor func(int) *roster) {
		e := &engine{log: slog.New(slog.DiscardHandler), me: 1, procs: h.procs, hostOf: []int32{0, 1, 2}}
		e.processes = []*process{{e: e, rank: 1}}
		s := (&Job{e: e, roster: rosterFor(1), config: config}).openRC()
		require.NotEmpty(t, s.devices)
		var err error
		h.c, err = s.negotiate(within(t), &link{e: e, host: 0}, h.conn)
		require.NoError(t, err)
		require.NotNil(t, h.c)
		go func() {
			io.Copy(io.Discard, h.conn)
			close(h.gone)
		}()
		t.Cleanup(func() {
			<-h.gone
			for _, d := range s.devices {
				require.NoError(t, d.ctx.Close())
			}
		})
	})
	return h
}

// poll takes what has come, and what has gone.
func (h *hostileRC) poll() {
	n, err := h.c.d.cq.Poll(h.c.d.wcs[:])
	require.NoError(h.t, err)
	wcs := append(h.c.d.early, h.c.d.wcs[:n]...)
	h.c.d.early = nil
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.WCSuccess:
			h.broken = true
		case wc.Opcode == verbs.WCRecv:
			b := h.c.d.recvs.Bytes()[int(wc.WRID)*h.c.d.slot:][:wc.ByteLen]
			p, err := parseRC(b)
			require.NoError(h.t, err)
			if p.t == packet.ProtoAck {
				h.acks++
			}
			h.heard = append(h.heard, heard{p, append([]byte{}, b[rcHeader:]...)})
			h.c.d.repost(h.c, int(wc.WRID))
		case wc.Opcode < verbs.WCRecv:
			h.c.completed(uint32(wc.WRID))
		}
	}
	if n == 0 {
		select {
		case <-h.gone:
			h.broken = true
		default:
			runtime.Gosched()
		}
	}
}

// expect returns the next packet of that type.
func (h *hostileRC) expect(want packet.Type) heard {
	h.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end) && !h.broken; h.poll() {
		for len(h.heard) > 0 {
			p := h.heard[0]
			if h.heard = h.heard[1:]; p.t == want {
				return p
			}
		}
	}
	require.Fail(h.t, "not heard", "%v", want)
	return heard{}
}

// send sends a packet.
func (h *hostileRC) send(p rcPacket, body ...byte) {
	for !h.c.room() && !h.broken {
		h.poll()
	}
	if h.broken {
		return
	}
	b := h.c.packet(len(body))
	copy(b[rcHeader:], body)
	h.c.send(b, &p)
	require.NoError(h.t, h.c.l.err)
}

// post posts a work request that is no packet.
func (h *hostileRC) post(wr verbs.SendWR) {
	wr.Flags |= verbs.SendSignaled
	n, err := h.c.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(h.t, err)
	require.Equal(h.t, 1, n)
}

// flood sends packets, never more at a time than may be in flight, until the victim has
// enough.
func (h *hostileRC) flood(each func(i int) rcPacket, body ...byte) {
	for i := 0; !h.broken; i++ {
		for i-h.acks*int(h.l.ackMark) >= int(h.l.hiWater) && !h.broken {
			h.poll()
		}
		h.send(each(i), body...)
		h.heard = nil
	}
}

// begin sends the first packet of a long message, and returns the answer of the receive.
func (h *hostileRC) begin(r Request, length uint64, flags uint8) heard {
	h.send(rcPacket{t: packet.DataSync, flags: flags, length: length, srqid: 3}, 1)
	p := h.expect(packet.SyncAck)
	require.EqualValues(h.t, 3, p.srqid)
	require.Equal(h.t, r.r.id(), p.length)
	return p
}

// TestHostileRC is TestHostile over queue pairs, and of memory that both sides map.
func TestHostileRC(t *testing.T) {
	const sync, data = packet.DataSync, packet.Data
	failing := func(h *hostileRC, q Request, reason error) {
		h.t.Helper()
		fails(h.t, q, reason, 1)
	}
	receiving := func(h *hostileRC, n int) Request {
		return irecv(h.t, h.victim, make([]byte, n), 1, 0)
	}
	sending := func(h *hostileRC, n int) (Request, heard) {
		return issend(h.t, h.victim, make([]byte, n), 1, 0), h.expect(sync)
	}
	say := func(p rcPacket, body ...byte) func(h *hostileRC) { return func(h *hostileRC) { h.send(p, body...) } }
	raw := func(b []byte) func(h *hostileRC) {
		return func(h *hostileRC) { h.post(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: b}) }
	}
	header := func(at int, v ...byte) []byte {
		b := make([]byte, rcHeader)
		copy(b[at:], v)
		return b
	}
	list := func(m ...remote) (b []byte) {
		for _, m := range m {
			b = m.append(b)
		}
		return b
	}
	// answered has the victim send a long message, and answers it so.
	answered := func(reason error, flags uint8, body ...byte) func(h *hostileRC) {
		return func(h *hostileRC) {
			q, p := sending(h, long)
			h.send(rcPacket{t: packet.SyncAck, flags: flags, srqid: p.srqid, length: 7}, body...)
			failing(h, q, reason)
		}
	}
	// lined writes to the victim's lane, as if that were the first line.
	lined := func(edit func(b *laneLine), n uint64) func(h *hostileRC) {
		return func(h *hostileRC) {
			at := h.c.lanes.at
			var mem []byte
			for end := time.Now().Add(limit); mem == nil && time.Now().Before(end); runtime.Gosched() {
				mem, _ = h.c.qp.Map(at.rkey, at.addr, laneSize)
			}
			require.NotNil(h.t, mem)
			l := (*lane)(unsafe.Pointer(unsafe.SliceData(mem)))
			b := &l.lines[0]
			edit(b)
			atomic.StoreUint64(&b.word, 1|n<<32|uint64(h.c.lanes.qpSent)<<48)
		}
	}
	type act struct {
		name   string
		act    func(h *hostileRC)
		reason error
	}
	acts := []act{
		{"nothing", raw([]byte{}), ErrProtocol},
		{"part of a header", raw(make([]byte, rcHeader-1)), ErrProtocol},
		{"unknown type", raw(header(0, byte(rcWake)+1)), ErrProtocol},
		{"unknown flag", raw(header(1, 16)), ErrProtocol},
		{"a packet that is to be taken", raw(header(1, rcEager)), ErrProtocol},
		{"a rest that is to be taken", raw(header(0, byte(sync), rcEager|rcRest)), ErrProtocol},
		{"taken as a whole", say(rcPacket{t: sync, flags: rcEager, length: 2}, 1, 2), ErrProtocol},
		{"too long to be taken", say(rcPacket{t: sync, flags: rcEager, length: 64<<10 + 1}, 1), ErrProtocol},
		{"flags that do not go together", raw(header(1, 5)), ErrProtocol},
		{"rest of no data", raw(header(0, byte(sync), rcRest)), ErrProtocol},
		{"packet longer than a receive", func(h *hostileRC) {
			mr, err := h.c.d.pd.AllocMR(h.c.d.slot+1, verbs.AccessLocalWrite)
			require.NoError(h.t, err)
			h.post(verbs.SendWR{Opcode: verbs.OpSend, SGList: []verbs.SGE{mr.SGE(0, h.c.d.slot+1)}})
		}, ErrPeerDied},
		{"unknown destination", say(rcPacket{dest: 1}), ErrProtocol},
		{"unknown source", say(rcPacket{src: 1}), ErrProtocol},
		{"acknowledgement to no process", say(rcPacket{t: packet.ProtoAck, dest: 65535}), ErrProtocol},
		{"packet longer than its message", say(rcPacket{length: 1}, 1, 2), ErrProtocol},
		{"DATA of a longer message", say(rcPacket{length: 2}, 1), ErrProtocol},
		{"nothing of a long message", say(rcPacket{t: sync, length: 2}), ErrProtocol},
		{"message beyond an int", say(rcPacket{t: sync, length: 1 << 63}, 1), ErrProtocol},
		{"negative tag", say(rcPacket{tag: -1}), ErrProtocol},
		{"body of a packet that has none", say(rcPacket{t: packet.Cancel}, 1), ErrProtocol},
		{"lines that are not there", raw(header(6, 1)), ErrProtocol},
		{"rest of nothing", say(rcPacket{flags: rcRest, length: 5, srqid: 1 << 40}, 1), ErrProtocol},
		{"rest for a receive that waits", func(h *hostileRC) {
			r := receiving(h, 8)
			h.send(rcPacket{flags: rcRest, length: 5, srqid: r.r.id()}, 1)
			failing(h, r, ErrProtocol)
		}, ErrProtocol},
		{"more of the rest than announced", func(h *hostileRC) {
			r := receiving(h, 8)
			p := h.begin(r, 5, rcKnown)
			h.send(rcPacket{flags: rcRest, length: 5, srqid: p.length}, 1, 2, 3, 4, 5)
			failing(h, r, ErrProtocol)
		}, ErrProtocol},
		{"SYNCACK for nothing", say(rcPacket{t: packet.SyncAck, srqid: 1}), ErrProtocol},
		{"SYNCACK for nothing, with memory", say(rcPacket{t: packet.SyncAck, srqid: 1}, list(remote{1, 1, 1})...), ErrProtocol},
		{"SYNCACK for a receive", func(h *hostileRC) {
			r := receiving(h, 8)
			h.send(rcPacket{t: packet.SyncAck, srqid: r.r.id()}, list(remote{1, 1, 1})...)
			failing(h, r, ErrProtocol)
		}, ErrProtocol},
		{"SYNCACK twice", func(h *hostileRC) {
			q, p := sending(h, 8)
			h.send(rcPacket{t: packet.SyncAck, srqid: p.srqid})
			h.send(rcPacket{t: packet.SyncAck, srqid: p.srqid})
			completed(h.t, q)
		}, ErrProtocol},
		{"SYNCACK without a request", func(h *hostileRC) {
			q, p := sending(h, long)
			h.send(rcPacket{t: packet.SyncAck, srqid: p.srqid})
			failing(h, q, ErrProtocol)
		}, ErrProtocol},
		{"part of a piece", answered(ErrProtocol, 0, make([]byte, rcPiece-1)...), ErrProtocol},
		{"too many pieces", answered(ErrProtocol, 0, make([]byte, rcPiece*(maxRCPieces+1))...), ErrProtocol},
		{"piece of nothing", answered(ErrProtocol, 0, list(remote{1, 0, 1})...), ErrProtocol},
		{"piece of 4 GiB", answered(ErrProtocol, 0, list(remote{1, 1<<32 - 1, 1})...), ErrProtocol},
		{"more room than is missing", answered(ErrProtocol, 0, list(remote{1, long, 1})...), ErrProtocol},
		{"room that is not there", answered(ErrPeerDied, 0, list(remote{1 << 40, 1000, 0x7fffff01})...), ErrPeerDied},
		{"known room that is not there", answered(ErrPeerDied, rcKnown, list(remote{1 << 40, 1000, 0x7fffff01})...), ErrPeerDied},
		{"CANCELYES without CANCEL", func(h *hostileRC) {
			q, p := sending(h, 8)
			h.send(rcPacket{t: packet.CancelYes, srqid: p.srqid})
			failing(h, q, ErrProtocol)
		}, ErrProtocol},
		{"CANCELNO for nothing", say(rcPacket{t: packet.CancelNo, srqid: 5}), ErrProtocol},
		{"acknowledgement of nothing", say(rcPacket{t: packet.ProtoAck}), ErrProtocol},
		{"more than HIWATER in flight", func(h *hostileRC) {
			// All are there before any is taken.
			h.victim.e.lock.Lock()
			defer h.victim.e.lock.Unlock()
			h.l.ackMark, h.l.hiWater = hostileAckMark, hostileHiWater
			for range 100 {
				h.send(rcPacket{})
			}
		}, ErrProtocol},
		{"unknown contexts", func(h *hostileRC) {
			h.flood(func(i int) rcPacket { return rcPacket{cid: uint32(100 + i)} })
		}, ErrOverflow},
		{"messages without receives", func(h *hostileRC) {
			h.flood(func(int) rcPacket { return rcPacket{length: 5000} }, make([]byte, 5000)...)
		}, ErrOverflow},
		{"write for nothing", func(h *hostileRC) { h.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: 1 << 20}) }, ErrProtocol},
		{"write for a receive that waits", func(h *hostileRC) {
			r := receiving(h, 8)
			h.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: r.r.index})
			failing(h, r, ErrProtocol)
		}, ErrProtocol},
		{"write for a send", func(h *hostileRC) {
			q, _ := sending(h, long)
			h.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: q.r.index})
			failing(h, q, ErrProtocol)
		}, ErrProtocol},
		{"write twice", func(h *hostileRC) {
			r := receiving(h, 1000)
			h.begin(r, 1000, rcKnown)
			index := r.r.index
			for range 2 {
				h.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: index})
			}
			completed(h.t, r)
		}, ErrProtocol},
		{"write beside the room", func(h *hostileRC) {
			memory := make([]byte, 3000)
			r := irecv(h.t, h.victim, memory[1000:2000], 1, 0)
			at, err := parseRemotes(h.begin(r, 1000, rcKnown).body)
			require.NoError(h.t, err)
			require.Len(h.t, at, 1)
			require.EqualValues(h.t, 999, at[0].length)
			mr, err := h.c.d.pd.AllocMR(1000, verbs.AccessAll)
			require.NoError(h.t, err)
			for i := range mr.Bytes() {
				mr.Bytes()[i] = 'x'
			}
			h.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RKey: at[0].rkey, RemoteAddr: at[0].addr, SGList: []verbs.SGE{mr.SGE(0, 1000)}})
			for !h.broken { // it may be that nothing else learns of it
				h.poll()
			}
			require.NoError(h.t, h.conn.CloseWrite())
			failing(h, r, ErrPeerDied)
			require.Equal(h.t, make([]byte, 1000), memory[2000:])
		}, ErrPeerDied},
		{"bytes where none belong", func(h *hostileRC) {
			_, err := h.conn.Write([]byte{1})
			require.NoError(h.t, err)
		}, ErrProtocol},
		{"the end of the connection", func(h *hostileRC) { require.NoError(h.t, h.conn.CloseWrite()) }, ErrPeerDied},
		{"slots given back that were never taken", say(rcPacket{t: rcCredit, cid: stageBack}), ErrProtocol},
		{"no slots given back", say(rcPacket{t: rcCredit}), ErrProtocol},
		{"rest in a stage that is not there", func(h *hostileRC) {
			r := receiving(h, 1000)
			p := h.begin(r, 1000, rcKnown)
			h.send(rcPacket{flags: rcRest | rcStaged, cid: 999, length: 1000, srqid: p.length})
			failing(h, r, ErrProtocol)
		}, ErrProtocol},
	}
	// staged has the victim receive through its stage, and says what there is.
	staged := func(p rcPacket) func(h *hostileRC) {
		return func(h *hostileRC) {
			r := receiving(h, long)
			a := h.begin(r, 30_000, 0)
			require.EqualValues(h.t, rcStaged, a.flags)
			p.flags, p.length, p.srqid = rcRest|rcStaged, 30_000, a.length
			h.send(p)
			failing(h, r, ErrProtocol)
		}
	}
	mapped := []act{
		{"another slot", staged(rcPacket{tag: 1, cid: 10}), ErrProtocol},
		{"no such slot", staged(rcPacket{tag: -1, cid: 10}), ErrProtocol},
		{"nothing in a slot", staged(rcPacket{}), ErrProtocol},
		{"more than a slot", staged(rcPacket{cid: stageSlot + 1}), ErrProtocol},
		{"more in a slot than is missing", staged(rcPacket{cid: 30_000}), ErrProtocol},
		{"small stage", answered(ErrProtocol, rcStaged, list(remote{1, stageSlot, 1})...), ErrProtocol},
		{"large stage", answered(ErrProtocol, rcStaged, list(remote{1, 2 * stageMost, 1})...), ErrProtocol},
		{"odd stage", answered(ErrProtocol, rcStaged, list(remote{1, stageLeast + stageSlot, 1})...), ErrProtocol},
		{"two stages", answered(ErrProtocol, rcStaged, list(remote{1, stageLeast, 1}, remote{1, stageLeast, 1})...), ErrProtocol},
		{"line to no process", lined(func(b *laneLine) { b.dest = 1 }, 0), ErrProtocol},
		{"line from no process", lined(func(b *laneLine) { b.src = 1 }, 0), ErrProtocol},
		{"line with a negative tag", lined(func(b *laneLine) { b.tag = -1 }, 0), ErrProtocol},
		{"long line", lined(func(*laneLine) {}, laneMost+1), ErrProtocol},
		{"line beyond the data", lined(func(b *laneLine) { b.at = laneData - 99 }, 100), ErrProtocol},
		{"line far beyond the data", lined(func(b *laneLine) { b.at = 1<<32 - 50 }, 100), ErrProtocol},
		{"lines taken that were never written", func(h *hostileRC) {
			atomic.StoreUint32(&h.c.lanes.in.taken, 1<<20)
			for i := 1; ; i++ { // by the lane as soon as it is mapped
				q, err := h.victim.Isend(nil, 1, 0)
				require.NoError(h.t, err)
				for over := false; !over && err == nil; h.poll() {
					over, _, err = q.Test()
				}
				if err != nil {
					break
				}
				if i%int(h.l.ackMark) == 0 {
					h.send(rcPacket{t: packet.ProtoAck})
				}
			}
		}, ErrProtocol},
	}
	for _, provider := range []string{"shm", "tcp"} {
		list := acts
		if provider == "shm" {
			list = slices.Concat(acts, mapped)
		}
		for i, c := range list {
			t.Run(provider+"/"+c.name, func(t *testing.T) {
				switch {
				case provider != "shm" && c.reason == ErrProtocol: // found without the provider
					need.Long(t)
				case provider != "shm" || i%8 != 0: // with -short an eighth, over memory that both map
					need.Full(t)
				}
				t.Parallel() // some wait for a queue pair that does not fail
				h := newHostileRC(t, provider)
				c.act(h)
				h.givenUp(c.reason)
			})
		}
	}
}

// TestConnectionsNotWaitedFor: where the kernel refuses to wait for the connections, here because
// there are more of them than descriptors are allowed, the end of one is noticed all the same.
func TestConnectionsNotWaitedFor(t *testing.T) {
	h := newHostileRC(t, "shm")
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	require.NoError(t, h.conn.CloseWrite()) // after this the kernel is asked again
	_, err := h.victim.Recv(within(t), nil, 1, 0)
	requireError(t, err, ErrPeerDied, 1)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	h.givenUp(ErrPeerDied)
}
