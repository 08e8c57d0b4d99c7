package tcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/verbs"
)

// FuzzConnection feeds a connection anything that an authenticated peer may send. Nothing panics,
// no byte outside the region that the peer may write is touched, and when the stream ends all
// posted work has completed once.
//
// The input is a script: a byte selects the next command, and the bytes after it fill in the rest,
// so that keys, addresses and numbers are right often enough to get anywhere.
func FuzzConnection(f *testing.F) {
	// Frames as a well-behaved peer sends them.
	for _, script := range [][]byte{
		{byte(kindStart), 0, 0},
		{byte(kindSend), 0, 5, 5, 0, 1, 2, 3, 4, 5},
		{byte(kindWrite), 0, 3, 3, 0, 1, 2, 3, byte(kindRead), 0, 0, 100, 0},
		{byte(kindSend), 0, 2, 4, 0, 1, 2, byte(kindMore), 0, 2, 0, 0, 3, 4},
		{byte(kindAtomic), 0, 0, 0, 0, byte(kindAtomic), 4, 0, 0, 8},
		{byte(kindAck), 0, 0, 0, 0, byte(kindResponse), 0, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
		{byte(kindNak), 10, 0, 0, 0},
		{byte(kindRNR), 0, 0, 0, 0, byte(kindReady), 0, 0, 0, 0},
		{byte(kindSend), 0, 0, 0, 0, byte(kindSend), 0, 0, 0, 0, byte(kindSend), 0, 0, 0, 0, byte(kindSend), 0, 0, 0, 0, scriptLater, byte(kindResume), 0, 0, 0, 0},
		{byte(kindDown), 0, 0, 0, 0},
		{byte(kindBye), 0, 0, 0, 0},
		{scriptRaw, 16, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		f.Add(script, uint8(0))
		f.Add(script, uint8(3))
	}
	b := newLab(f)
	f.Fuzz(func(t *testing.T, script []byte, chunk uint8) { runScript(t, b, script, int(chunk)) })
}

// Commands of a script other than kinds of frames.
const (
	scriptRaw   = 0x80 // so many bytes as they are
	scriptLater = 0x81 // deadlines pass
	scriptRecv  = 0x82 // a receive is posted
	scriptClose = 0x83 // the region is closed
)

func runScript(t *testing.T, b *lab, script []byte, chunk int) {
	const guard, size, posted = 64, 4096, 6
	arena := bytes.Repeat([]byte{0xa5}, guard+size+guard)
	b = &lab{t, b.a, b.pd}
	region := b.regFor(arena[guard : guard+size])
	open := true
	h := b.half(7)
	h.tube.chunk = chunk
	receives := 3
	for i := range receives {
		h.recv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{sge(region, 0, 1000), sge(region, 2000, 1000)}})
	}
	swap := onto(signalled(3, verbs.OpAtomicCmpAndSwp, sge(region, 3000, 8)), region, 0)
	h.post(signalled(0, verbs.OpSend, sge(region, 0, 100)),
		onto(signalled(1, verbs.OpRDMARead, sge(region, 0, 8)), region, 0),
		onto(signalled(2, verbs.OpRDMAWrite, sge(region, 0, size)), region, 0),
		swap, signalled(4, verbs.OpSend), onto(signalled(5, verbs.OpRDMARead, sge(region, 0, size)), region, 0))

	next := func() byte {
		if len(script) == 0 {
			return 0
		}
		c := script[0]
		script = script[1:]
		return c
	}
	msn := uint32(0)
	for len(script) > 0 {
		switch op := next(); op {
		case scriptRaw:
			n := min(int(next()), len(script))
			h.give(script[:n], false)
			script = script[n:]
		case scriptLater:
			h.q.Lock.Lock()
			h.q.expire(time.Now().Add(time.Hour))
			h.q.Unlock()
		case scriptRecv:
			if n, err := h.q.PostRecv([]verbs.RecvWR{{WRID: 9}}); err == nil {
				receives += n
			}
		case scriptClose:
			if open {
				require.NoError(t, region.Close())
				open = false
			}
		default:
			k := kind(op)
			if k == 0 || k >= kindEnd {
				k = kind(1 + op%byte(kindEnd-1))
			}
			flags, n, total, where := next(), next(), next(), next()
			fr := frame{kind: k, flags: flags & layouts[k].flags, ack: uint32(where >> 4), msn: msn, total: uint32(total), rkey: region.RKey(),
				addr: region.Addr() + uint64(where&7)*8, imm: 1, status: uint32(flags), psn: psn, rnrRetry: 7}
			if where&8 != 0 { // far off
				fr.addr, fr.msn = fr.addr+size-4, fr.msn+uint32(n)-1
			}
			var payload []byte
			if layouts[k].payload {
				payload = script[:min(int(n), len(script))]
				script = script[len(payload):]
				fr.size = uint32(len(payload))
				if fr.size == 0 {
					fr.flags &^= flagTrailer
				}
			}
			switch k {
			case kindSend, kindWrite:
				if fr.total == fr.size {
					msn++
				}
			case kindMore:
				msn += uint32(where & 1)
			case kindRead, kindAtomic:
				msn++
			case kindResponse, kindNak, kindRNR:
				fr.msn = uint32(where & 7)
			case kindResume:
				fr.msn -= uint32(where & 7)
				msn = fr.msn
			}
			stream := append(fr.Append(nil), payload...)
			if fr.flags&flagTrailer != 0 {
				stream = append(stream, where&2)
			}
			h.give(stream, false)
		}
	}
	h.give(nil, true)
	require.Equal(t, bytes.Repeat([]byte{0xa5}, guard), arena[:guard], "before the region")
	require.Equal(t, bytes.Repeat([]byte{0xa5}, guard), arena[guard+size:], "behind the region")
	sends, recvs := 0, 0
	for _, wc := range h.poll() {
		if wc.Opcode >= verbs.WCRecv {
			recvs++
		} else {
			require.EqualValues(t, sends, wc.WRID, "order of sends")
			sends++
		}
	}
	if h.q.State() == verbs.QPErr {
		require.Equal(t, posted, sends)
		require.Equal(t, receives, recvs)
	}
	// Its output is well-formed, whatever its input.
	out, _ := h.take()
	for len(out) > 0 {
		var fr frame
		n, err := fr.Parse(out)
		require.NoError(t, err)
		n += int(fr.size)
		if fr.flags&flagTrailer != 0 {
			n++
		}
		if n == 0 || n > len(out) {
			break // the connection broke in the middle of it
		}
		out = out[n:]
	}
	if open {
		require.NoError(t, region.Close())
	}
}
