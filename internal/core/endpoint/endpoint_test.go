package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOrder(t *testing.T) {
	p := newPair()
	p.wire()
	var want [2][]string
	for i := range uint64(40) {
		for side := range 2 {
			stream := uint32(i % 3)
			require.True(t, p.send(side, stream, i, "x"))
			want[1-side] = append(want[1-side], fmt.Sprintf("%d:%dx", stream, i))
		}
	}
	p.settle()
	require.NoError(t, p.err)
	require.Equal(t, want, p.ran)
	require.Len(t, p.done[0], 40)
}

// Short payloads are copied before Send returns; buffered ones are not, and are read once
// more when a path has broken.
func TestPayloads(t *testing.T) {
	p := newPair()
	w := p.wire()
	short, buffered := []byte("short"), []byte("buffered")
	send := func(b []byte, keep bool) {
		ok, err := p.ends[0].Send(&Message{Payload: b, Buffered: keep})
		require.True(t, ok)
		require.NoError(t, err)
	}
	send(short, false)
	send(buffered, true)
	copy(short, "XXXXX")
	p.wire()
	w.ends[0].fail()
	w.ends[1].fail()
	p.settle()
	require.Equal(t, []string{"0:0short", "0:0buffered"}, p.ran[1])
	// The room of a message is used again, by a longer one, too.
	for i := range 3 * Window {
		send([]byte(strings.Repeat("y", i)), false)
		p.settle()
		require.Len(t, p.ran[1][len(p.ran[1])-1], i+3)
	}
}

// A sender that is ahead is told that there is no room, and when there is.
func TestRoom(t *testing.T) {
	told := 0
	p := newPair()
	p.ends[0].cfg.Room = func(stream uint32) { told++; require.EqualValues(t, 7, stream) }
	w := p.wire()
	w.ends[0].room = 3 // of the path: that is not the user's matter
	for i := range uint64(Window) {
		require.True(t, p.send(0, 7, i, ""))
	}
	require.False(t, p.send(0, 7, 99, ""))
	require.True(t, p.send(0, 8, 0, ""), "another stream has room of its own")
	require.Len(t, w.ends[1].queue, 3)
	p.settle()
	require.NoError(t, p.err)
	require.Equal(t, 1, told)
	require.Len(t, p.ran[1], Window+1)
	require.True(t, p.send(0, 7, 99, ""))
}

// Messages without Done are acknowledged, too, so that a stream of it goes on.
func TestUnasked(t *testing.T) {
	p := newPair()
	p.wire()
	for i := range uint64(10 * Window) {
		ok, err := p.ends[0].Send(&Message{Arg: i})
		require.NoError(t, err)
		for ; !ok; ok, err = p.ends[0].Send(&Message{Arg: i}) {
			require.NoError(t, err)
			n := len(p.ran[1])
			p.settle()
			require.Greater(t, len(p.ran[1]), n)
		}
	}
	p.settle()
	require.Len(t, p.ran[1], 10*Window)
}

// Numbers go on beyond 2^32.
func TestNumbersWrap(t *testing.T) {
	p := newPair()
	p.wire()
	out, in := p.ends[0].stream(0), p.ends[1].stream(0)
	out.sent, out.acked, out.posted, in.taken = ^uint32(4), ^uint32(4), ^uint32(4), ^uint32(4)
	for i := range uint64(20) {
		require.True(t, p.send(0, 0, i, ""))
	}
	w := p.wires[0]
	for range 7 {
		_, err := w.ends[1].deliver()
		require.NoError(t, err)
	}
	p.wire()
	w.ends[1].fail()
	p.settle()
	w.ends[0].fail()
	p.settle()
	require.NoError(t, p.err)
	require.Len(t, p.ran[1], 20)
	require.Len(t, p.done[0], 20)
}

// Bytes of puts and gets go where the layouts say, also over a path that breaks.
func TestPutGet(t *testing.T) {
	for _, cut := range []bool{false, true} {
		p := newPair()
		w := p.wire()
		source, target, back := make([]byte, 64), make([]byte, 64), make([]byte, 24)
		for i := range source {
			source[i] = byte(i + 1)
		}
		from := &Local{Pieces: [][]byte{source}, Parts: []Part{{Offset: 60, Block: 4, Count: 4, Stride: -20}, {Offset: 8, Block: 8, Count: 1}}}
		to := &Remote{Pieces: []Region{expose(target)}, Parts: []Part{{Offset: 3, Block: 3, Count: 8, Stride: 7}}}
		done, got := 0, 0
		ok, err := p.ends[0].Put(from, to, &Message{Arg: 5, Done: func(err error) { require.NoError(t, err); done++ }})
		require.NoError(t, err)
		require.True(t, ok)
		if !cut {
			p.settle() // nothing orders a get behind a put
		}
		require.NoError(t, p.ends[0].Get(&Local{Pieces: [][]byte{back}, Parts: []Part{{Block: 24, Count: 1}}}, to, func(err error) { require.NoError(t, err); got++ }))
		if cut {
			p.wire()
			w.ends[1].fail()
		}
		p.settle()
		w.ends[0].fail()
		p.settle()
		require.NoError(t, p.err)
		require.Equal(t, []string{"0:5"}, p.ran[1])
		require.Equal(t, 1, done)
		require.Equal(t, 1, got)
		if !cut {
			require.Equal(t, gather(from), back)
		}
		require.Equal(t, gather(from), gather(&Local{Pieces: [][]byte{target}, Parts: to.Parts}))
		_, err = p.ends[0].Put(from, &Remote{Pieces: to.Pieces, Parts: []Part{{Block: 23, Count: 1}}}, &Message{})
		require.ErrorIs(t, err, ErrRange)
		require.ErrorContains(t, err, "24 bytes here, 23 at the peer")
		require.Equal(t, target, p.ends[0].mapped(to.Pieces[0]))
	}
}

func (e *Endpoint) mapped(r Region) []byte {
	if len(e.paths) == 0 {
		return memoryOf(r)
	}
	return e.Map(r)
}

// A path that breaks while a handler runs is told of only when it has returned: its message
// has been taken.
func TestBreakUnderHandler(t *testing.T) {
	var w *wire
	runs := 0
	p := newPair(func(e *Endpoint, _ uint32, _ uint64, _ []byte) error {
		runs++
		w.ends[0].fail()
		w.ends[1].fail()
		return nil
	})
	w = p.wire()
	p.wire()
	ok, err := p.ends[0].Send(&Message{Handler: 1})
	require.True(t, ok)
	require.NoError(t, err)
	p.settle()
	require.Equal(t, 1, runs)
	require.Empty(t, p.ends[0].past)
	require.Zero(t, p.ends[0].streams[0].waits())
}

// Handlers may answer.
func TestAnswer(t *testing.T) {
	p := newPair(func(e *Endpoint, stream uint32, arg uint64, payload []byte) error {
		_, err := e.Send(&Message{Stream: stream, Arg: arg + 1, Payload: payload})
		return err
	})
	p.wire()
	ok, err := p.ends[0].Send(&Message{Stream: 2, Handler: 1, Arg: 4, Payload: []byte("z")})
	require.True(t, ok)
	require.NoError(t, err)
	p.settle()
	require.Equal(t, []string{"2:5z"}, p.ran[0])
}

func TestEnds(t *testing.T) {
	dead := errors.New("killed")
	for _, c := range []struct {
		name  string
		end   func(e *Endpoint)
		state State
		err   error
	}{
		{"dead", func(e *Endpoint) { e.Fail(dead) }, Dead, dead},
		{"closed", func(e *Endpoint) { e.Close() }, Closed, ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair()
			var states []State
			p.ends[0].cfg.Changed = func(s State, err error) { states = append(states, s) }
			w := p.wire()
			var got error
			p.send(0, 1, 1, "")
			require.NoError(t, p.ends[0].Get(&Local{}, &Remote{}, func(err error) { got = err }))
			c.end(p.ends[0])
			require.Equal(t, []string{fmt.Sprint("1:1 ", c.err)}, p.done[0])
			require.ErrorIs(t, got, c.err)
			require.True(t, w.ends[0].fenced)
			_, err := p.ends[0].Send(&Message{})
			require.ErrorIs(t, err, c.err)
			require.ErrorIs(t, p.ends[0].Get(&Local{}, &Remote{}, nil), c.err)
			require.ErrorIs(t, p.ends[0].Add(9, &wireEnd{}), c.err)
			var left error
			p.ends[0].Leave(func(err error) { left = err })
			require.ErrorIs(t, left, c.err)
			s, err := p.ends[0].State()
			require.Equal(t, c.state, s)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, []State{Up, c.state}, states)
			p.ends[0].Close()
			require.Equal(t, 1, len(p.done[0]))
		})
	}
	t.Run("left", func(t *testing.T) {
		p := newPair()
		p.wire()
		p.send(0, 0, 1, "")
		p.send(1, 0, 2, "")
		var left []error
		p.ends[0].Leave(func(err error) { left = append(left, err) })
		_, err := p.ends[0].Send(&Message{})
		require.ErrorIs(t, err, ErrClosed)
		p.settle()
		require.Equal(t, []error{nil}, left)
		require.Equal(t, []string{"0:1"}, p.ran[1])
		require.Equal(t, []string{"0:2"}, p.ran[0])
		_, err = p.ends[1].Send(&Message{})
		require.ErrorIs(t, err, ErrLeft)
		p.ends[1].Leave(func(err error) { left = append(left, err) })
		require.Equal(t, []error{nil, nil}, left)
	})
	t.Run("both leave", func(t *testing.T) {
		p := newPair()
		p.wire()
		var left []error
		for _, e := range p.ends {
			e.Leave(func(err error) { left = append(left, err) })
		}
		p.settle()
		require.Equal(t, []error{nil, nil}, left)
	})
}

// An endpoint without a path waits for one, and loses nothing.
func TestWaiting(t *testing.T) {
	p := newPair()
	p.send(0, 0, 1, "")
	w := p.wire()
	w.ends[0].fail()
	w.ends[1].fail()
	s, err := p.ends[0].State()
	require.Equal(t, Waiting, s)
	require.NoError(t, err)
	p.send(0, 0, 2, "")
	p.wire()
	p.settle()
	require.Equal(t, []string{"0:1", "0:2"}, p.ran[1])
	require.ErrorIs(t, p.ends[0].Add(0, newWire(0, p.ends[0], p.ends[1]).ends[0]), ErrProtocol)
}

// A path that only one end has been given before it broke is refused at the other.
func TestHalfPath(t *testing.T) {
	p := newPair()
	w := newWire(5, p.ends[0], p.ends[1])
	p.wires = append(p.wires, w)
	require.NoError(t, p.ends[0].Add(5, w.ends[0]))
	p.send(0, 0, 1, "")
	w.ends[0].fail()
	p.wires = append(p.wires, newWire(6, p.ends[0], p.ends[1]))
	require.NoError(t, p.wires[1].add())
	p.settle()
	require.NoError(t, p.err)
	require.Equal(t, []string{"0:1"}, p.ran[1])
	require.ErrorContains(t, p.ends[1].Add(5, w.ends[1]), "path 5 has been there")
}

// What a peer must not say ends the endpoint, with an error that says what.
func TestHostile(t *testing.T) {
	for _, c := range []struct {
		h       Header
		payload string
		says    string
	}{
		{Header{Kind: KindMessage, Number: 2}, "", "message 2 of stream 0 behind 0"},
		{Header{Kind: KindMessage}, "", "message 0 of stream 0 behind 0"},
		{Header{Kind: KindMessage, Number: 1, Handler: 7}, "", "message for handler 7, there are 1"},
		{Header{Kind: KindMessage, Number: 1, Watermark: 9}, "", "9 messages of stream 0 taken, of which 1 were sent"},
		{Header{Kind: KindAck, Watermark: 1 << 31}, "", "2147483648 messages of stream 0 taken"},
		{Header{Kind: KindAck, Stream: 3, Watermark: 1}, "", "1 messages of stream 3 taken, of which 0 were sent"},
		{Header{Kind: KindResume, Arg: 77}, "\x01\x00\x00\x00\x01\x00\x00\x00", "stream 1, which did not use path 77"},
		{Header{Kind: KindResume, Arg: ArgBye}, "", "resume of path 0x100000000"},
		{Header{Kind: KindResume}, "abc", "resume with 3 bytes"},
		{Header{Kind: KindResume}, "\x00\x00\x00\x00\x09\x00\x00\x00", "9 messages of stream 0 taken"},
	} {
		t.Run(c.says, func(t *testing.T) {
			p := newPair()
			p.wire()
			p.send(0, 0, 1, "")
			err := p.ends[0].Arrived(0, &c.h, []byte(c.payload))
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, c.says)
			s, why := p.ends[0].State()
			require.Equal(t, Dead, s)
			require.Equal(t, err, why)
			require.Len(t, p.done[0], 1)
		})
	}
	t.Run("memory", func(t *testing.T) { // what a peer says of unknown streams and paths is bounded
		p := newPair()
		p.wire()
		for n := range uint32(1000) {
			require.NoError(t, p.ends[0].Arrived(0, &Header{Kind: KindAck, Flags: FlagAsk, Stream: n}, nil))
		}
		require.Empty(t, p.ends[0].streams)
		require.Empty(t, p.ends[0].asked)
		for n := range uint64(maxUnknown) {
			require.NoError(t, p.ends[0].Arrived(0, &Header{Kind: KindResume, Arg: 100 + n}, nil))
		}
		require.ErrorIs(t, p.ends[0].Add(100, &sinkPath{}), ErrProtocol)
		require.NoError(t, p.ends[0].Arrived(0, &Header{Kind: KindResume, Arg: 98}, nil))
		err := p.ends[0].Arrived(0, &Header{Kind: KindResume, Arg: 99}, nil)
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, "resume of path 99, and of 64 others")
	})
	t.Run("harmless", func(t *testing.T) { // asked of a stream that has sent nothing; heard what was not said
		p := newPair()
		p.wire()
		require.NoError(t, p.ends[0].Arrived(0, &Header{Kind: KindAck, Flags: FlagAsk, Stream: 5}, nil))
		require.NoError(t, p.ends[0].Arrived(0, &Header{Kind: KindHeard, Arg: ArgBye}, nil))
		require.NoError(t, p.ends[0].Arrived(3, &Header{Kind: KindMessage}, nil))
		p.ends[0].Quiet()
		s, _ := p.ends[0].State()
		require.Equal(t, Up, s)
	})
}

// Random traffic over paths that break and are replaced: each message runs once, in order.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		p := newPair()
		var sent [2][]string
		p.wire()
		n := [2]uint64{}
		for range 400 {
			side := r.IntN(2)
			w := p.wires[max(0, len(p.wires)-1-r.IntN(3))]
			switch r.IntN(12) {
			case 0, 1, 2, 3:
				stream := uint32(r.IntN(3))
				if p.send(side, stream, n[side], "p") {
					sent[1-side] = append(sent[1-side], fmt.Sprintf("%d:%dp", stream, n[side]))
					n[side]++
				}
			case 4, 5, 6, 7, 8:
				_, err := w.ends[side].deliver()
				require.NoError(t, err)
			case 9:
				p.ends[side].Quiet()
			case 10:
				w.ends[side].room = r.IntN(5)
				if r.IntN(3) == 0 {
					w.ends[side].fail()
				}
			case 11:
				if r.IntN(4) == 0 {
					p.wire()
				}
			}
		}
		p.wire()
		p.settle()
		for _, w := range p.wires[:len(p.wires)-1] {
			w.ends[0].fail()
			w.ends[1].fail()
		}
		p.settle()
		require.NoError(t, p.err)
		for i := range sent {
			require.True(t, sameStreams(p.ran[i], sent[i]), "at %d: ran %v\nwant %v", i, p.ran[i], sent[i])
			require.Len(t, p.done[1-i], len(sent[i]))
		}
	}
}

// The short path does not allocate.
func TestAllocs(t *testing.T) {
	p := newPair(func(*Endpoint, uint32, uint64, []byte) error { return nil })
	sink := &sinkPath{}
	require.NoError(t, p.ends[0].Add(0, sink))
	m := &Message{Handler: 1, Payload: make([]byte, 64)}
	ack := Header{Kind: KindAck}
	next := func() {
		ok, err := p.ends[0].Send(m)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		ack.Watermark++
		if err := p.ends[0].Arrived(0, &ack, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range Window {
		next()
	}
	require.Zero(t, testing.AllocsPerRun(1000, next))
	h := Header{Kind: KindMessage, Handler: 1}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		h.Number++
		if err := p.ends[0].Arrived(0, &h, nil); err != nil {
			t.Fatal(err)
		}
	}))
}

type sinkPath struct{ posted int }

func (s *sinkPath) Post(*Header, []byte) bool                 { s.posted++; return true }
func (s *sinkPath) Put(*Local, *Remote, *Header, []byte) bool { return true }
func (s *sinkPath) Get(*Local, *Remote, uint64) bool          { return true }
func (s *sinkPath) Map(Region) []byte                         { return nil }
func (s *sinkPath) Fence()                                    {}
