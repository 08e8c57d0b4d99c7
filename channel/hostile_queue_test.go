package channel

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// A peer behind a queue pair sends messages that no peer of this version sends.

// hostileQueues are what the peer sends, and what becomes of a large send and a
// large receive on stream 0 that wait for it, both start 1. On stream 1 we have sent
// one eager message. Layout 1 of the peer is a receive of 5000 bytes, layout 2 one of
// the right length.
const hostileLength = 8 << 20

var hostileQueues = []struct {
	name string
	send []header
	owed int // credits that the first message gives
	want error
}{
	{"credits without receives", []header{{kind: queueCredit}}, queueRecvs, ErrProtocol},
	{"taken what was not sent", []header{{kind: queueTaken, stream: 1, k: 2}}, 0, ErrProtocol},
	{"taken less than before", []header{{kind: queueTaken, stream: 1, k: 1}, {kind: queueTaken, stream: 1, k: 0}}, 0, ErrProtocol},
	{"taken on a stream without sends", []header{{kind: queueTaken, stream: 9, k: 1 << 60}}, 0, ErrProtocol},
	{"gate of no handle", []header{{kind: queueGate, k: 1, length: hostileLength, where: where{handle: 77}}}, 0, ErrProtocol},
	{"gate to no memory", []header{{kind: queueGate, k: 1, length: hostileLength, where: where{2, 0xdead, 0x1000}}}, 0, ErrPeerDied},
	{"ready at no memory, behind the gate", []header{{kind: queueReady, k: 1, length: hostileLength, where: where{2, 0xdead, 0x1000}}}, 0, nil},
	{"gate of a shorter handle", []header{{kind: queueGate, k: 1, length: hostileLength, where: where{handle: 1}}}, 0, ErrProtocol},
	{"gate of an absurd length", []header{{kind: queueGate, k: 1, length: ^uint64(0), where: where{handle: 1}}}, 0, nil},
	{"gate of no start", []header{{kind: queueGate, k: 0, length: hostileLength, where: where{handle: 2}}}, 0, ErrProtocol},
	{"gate of the future", []header{{kind: queueGate, k: 1 << 60, length: 1, where: where{handle: 77}}}, 0, nil},
	{"verdict on no start", []header{{kind: queueWrong, k: 0}}, 0, ErrProtocol},
	{"verdict on the future", []header{{kind: queueWrong, k: 2}}, 0, ErrProtocol},
	{"verdict behind the gate", []header{{kind: queueGate, k: 1, length: hostileLength, where: where{handle: 2}}, {kind: queueWrong, k: 1}}, 0, ErrProtocol},
	{"done before the start", []header{{kind: queueDone, k: 2, length: hostileLength}}, 0, ErrProtocol},
	{"done of no start", []header{{kind: queueDone, k: 0, length: hostileLength}}, 0, ErrProtocol},
	{"done of another length", []header{{kind: queueDone, k: 1, length: 1}}, 0, ErrProtocol},
	{"ready of no start", []header{{kind: queueReady, k: 0, length: 1}}, 0, ErrProtocol},
	{"ready of another length", []header{{kind: queueReady, k: 1, length: ^uint64(0)}}, 0, ErrLength},
	{"eager for a large receive", []header{{kind: queueEager, k: 1}}, 0, ErrLength},
	{"end of a stream of the user's", []header{{kind: queueEnd, stream: 1}}, 0, ErrProtocol},
	{"end of a stream twice", []header{{kind: queueEnd, stream: MaxStream + 9}, {kind: queueEnd, stream: MaxStream + 9}}, 0, nil},
	{"more ahead than the window", ahead(queueEager, window+1), 0, ErrProtocol},
}

// ahead makes messages for starts that are far away.
func ahead(k queueKind, n int) []header {
	list := make([]header, n)
	for i := range list {
		list[i] = header{kind: k, stream: 2, k: uint64(100 + i)}
	}
	return list
}

// TestHostileQueue: each message that can be wrong.
func TestHostileQueue(t *testing.T) {
	t.Parallel() // it waits most of the time
	need.Full(t)
	for _, c := range hostileQueues {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			nodes := join(t, 2, WithProviders("tcp"))
			them, us := nodes[0], nodes[1]
			s, _ := send(t, us, 0, hostileLength)
			r, _ := receive(t, us, 0, hostileLength)
			small, _ := send(t, us, 0, 8, OnStream(1))
			shorter := receiveHalves(t, them, 1, hostileLength-2)
			fits := receiveHalves(t, them, 1, hostileLength, OnStream(3))
			startAll(t, s, r, small)
			require.NoError(t, small.WaitContext(within(t)))
			require.EqualValues(t, 1, shorter.id)
			require.EqualValues(t, 2, fits.id)
			p := peerOf(t, us, 0)
			require.Eventually(t, func() bool { return known(p, shorter) && known(p, fits) }, limit, time.Millisecond)

			p = peerOf(t, them, 1)
			q := p.queue
			q.lock.Lock()
			q.owed += c.owed
			for _, h := range c.send {
				q.tell(h)
			}
			q.lock.Unlock()
			switch {
			case c.want == nil:
				require.ErrorIs(t, s.WaitContext(brief(t)), ErrTimeout)
				require.ErrorIs(t, r.WaitContext(brief(t)), ErrTimeout)
			case errors.Is(c.want, ErrLength):
				require.ErrorIs(t, r.WaitContext(within(t)), c.want)
			default:
				require.ErrorIs(t, s.WaitContext(within(t)), c.want)
				require.Error(t, r.WaitContext(within(t)))
			}
		})
	}
}

// FuzzHostileQueue: whatever comes, in any order with our starts.
func FuzzHostileQueue(f *testing.F) {
	n := join(f, 1)[0]
	for _, c := range hostileQueues {
		script := []byte{0, 1}
		for _, h := range c.send {
			b := make([]byte, headerSize+addrSize)
			h.put(b)
			script = append(append(script, 2, byte(h.more())), b[:headerSize+h.more()]...)
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		defer time.AfterFunc(limit, func() { panic("hangs") }).Stop()
		q, out, in := bareQueue(n)
		p := q.peer
		var handles []*Handle
		for i, size := range []int{0, 100, eagerQueued, 5000} {
			l := layoutInfo{handle: uint32(i), regions: []region{{length: uint64(size)}}, parts: []remotePart{{block: size, count: 1}}}
			p.setLayout(&remoteLayout{where: where{handle: l.handle}, info: l})
			for _, kind := range []handleKind{kindSend, kindReceive} {
				h := &Handle{node: n, kind: kind, out: out, in: in}
				require.NoError(t, h.adoptLayout(Contiguous(make([]byte, size))))
				defer h.release()
				handles = append(handles, h)
			}
		}
		test := func(h *Handle) bool {
			done, err := h.Test()
			var e *Error
			if err != nil {
				require.ErrorAs(t, err, &e)
			}
			return done
		}
		for len(script) > 1 {
			op, which := script[0]%3, int(script[1])
			script = script[2:]
			h := handles[which%len(handles)]
			switch op {
			case 0:
				h.Start()
			case 1: // nothing that would poll
				if ph := h.phase.Load(); ph == phaseSent || ph == phaseReceived || ph == phaseFailed {
					test(h)
				}
			case 2:
				n := min(len(script), headerSize+which)
				m, err := parseHeader(script[:n])
				if err == nil {
					q.lock.Lock()
					err = q.arrive(m, script[headerSize:n])
					q.retryGates()
					q.lock.Unlock()
				}
				script = script[n:]
				if err != nil {
					require.ErrorIs(t, err, ErrProtocol)
					script = nil
				}
			}
		}
		q.lock.Lock()
		q.failed = true
		q.lock.Unlock()
		p.fail(fmt.Errorf("%w: a test", ErrPeerDied))
		for _, h := range handles {
			require.True(t, test(h), "not over")
		}
	})
}
