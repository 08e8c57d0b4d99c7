package endpoint

import (
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// The bytes of version 1.
func TestGolden(t *testing.T) {
	h := Header{Kind: KindMessage, Handler: 0x12, Flags: FlagAsk, Stream: 0x3456, Number: 0x789abcde, Watermark: 0xf0123456, Arg: 0x0102030405060708, Length: 3}
	want := unhex(t, "01 12 0100 56340000 debc9a78 563412f0 0807060504030201 03000000 00000000")
	b := make([]byte, HeaderLen)
	h.Put(b)
	require.Equal(t, want, b)
	got, err := ParseHeader(append(b, "abc"...))
	require.NoError(t, err)
	require.Equal(t, h, got)

	g := Greeting{Major: 1, Minor: 2, Features: 0x80000001, PageSize: 4096, From: Identity{3, 0x1122334455667788}, To: Identity{4, 0}, Path: 5}
	wantGreeting := unhex(t, "534c554943456570 0100 0200 01000080 04030201 00100000 03000000 04000000 8877665544332211 0000000000000000 05000000 000000000000000000000000")
	require.Equal(t, wantGreeting, g.Append(nil))
	again, err := ParseGreeting(wantGreeting)
	require.NoError(t, err)
	require.Equal(t, g, again)
}

func TestHeaderErrors(t *testing.T) {
	for _, c := range []struct{ frame, says string }{
		{"01", "frame of 1 bytes"},
		{"00 00 0000 00000000 00000000 00000000 0000000000000000 00000000 00000000", "kind 0"},
		{"06 00 0000 00000000 00000000 00000000 0000000000000000 00000000 00000000", "kind 6"},
		{"01 00 0200 00000000 01000000 00000000 0000000000000000 00000000 00000000", "flags 0x2"},
		{"01 00 0000 00001000 01000000 00000000 0000000000000000 00000000 00000000", "stream 1048576"},
		{"01 00 0000 00000000 01000000 00000000 0000000000000000 01000000 00000000", "message with 0 bytes of payload says 1"},
		{"01 00 0000 00000000 01000000 00000000 0000000000000000 01001000 00000000", "message of 1048577 bytes"},
		{"02 00 0000 00000000 00000000 00000000 0000000000000000 01000000 00000000 00", "ack with 1 bytes"},
		{"02 01 0000 00000000 00000000 00000000 0000000000000000 00000000 00000000", "ack of handler 1"},
		{"04 00 0000 01000000 00000000 00000000 0000000000000000 00000000 00000000", "bye of handler 0, flags 0x0, on stream 1"},
	} {
		_, err := ParseHeader(unhex(t, c.frame))
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, c.says)
	}
}

func TestGreetingCheck(t *testing.T) {
	mine := Greeting{Major: 1, PageSize: 4096, From: Identity{0, 10}, To: Identity{1, 20}, Path: 2, Features: 6}
	theirs := Greeting{Major: 1, Minor: 7, PageSize: 4096, From: Identity{1, 20}, To: Identity{0, 10}, Path: 2, Features: 12}
	require.NoError(t, theirs.Check(&mine))
	require.Equal(t, Features(4), theirs.Common(&mine))
	for _, c := range []struct {
		change func(g *Greeting)
		err    error
		says   string
	}{
		{func(g *Greeting) { g.Major = 2 }, ErrMismatch, "version 2.7, here 1.0"},
		{func(g *Greeting) { g.PageSize = 65536 }, ErrMismatch, "pages of 65536 bytes, here 4096"},
		{func(g *Greeting) { g.Path = 3 }, ErrMismatch, "path 3, here 2"},
		{func(g *Greeting) { g.From.Incarnation = 0 }, ErrProtocol, "incarnation 0x0"},
		{func(g *Greeting) { g.From.Rank = 5 }, ErrStranger, "rank 5 (incarnation 0x14), meant was rank 1 (incarnation 0x14)"},
		{func(g *Greeting) { g.From.Incarnation = 21 }, ErrStranger, "rank 1 (incarnation 0x15), meant was rank 1 (incarnation 0x14)"},
		{func(g *Greeting) { g.To.Incarnation = 11 }, ErrStranger, "means rank 0 (incarnation 0xb), this is rank 0 (incarnation 0xa)"},
	} {
		g := theirs
		c.change(&g)
		err := g.Check(&mine)
		require.ErrorIs(t, err, c.err)
		require.ErrorContains(t, err, c.says)
	}
	unsure := mine // of the incarnation that it will meet
	unsure.To.Incarnation = 0
	require.NoError(t, theirs.Check(&unsure))
}

func FuzzHeader(f *testing.F) {
	f.Add(unhex(f, "01 12 0100 56340000 debc9a78 563412f0 0807060504030201 00000000 00000000"))
	f.Add(unhex(f, "03 00 0000 00000000 00000000 00000000 0500000000000000 08000000 00000000 0100000002000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		again := make([]byte, HeaderLen)
		h.Put(again)
		require.Equal(t, b[:HeaderLen], again)
		if h.Kind == KindResume {
			if marks, err := parseMarks(b[HeaderLen:]); err == nil {
				require.Equal(t, b[HeaderLen:], append([]byte{}, appendMarks(nil, marks)...))
			}
		}
		p := newPair()
		p.wire()
		p.send(0, 0, 1, "")
		_ = p.ends[0].Arrived(0, &h, b[HeaderLen:])
		p.settle()
		p.ends[0].Close()
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add((&Greeting{Major: 1, From: Identity{1, 2}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := ParseGreeting(b); err == nil {
			require.Equal(t, b[:52], g.Append(nil)[:52])
		}
	})
}

// Length is what counting says, for any numbers.
func TestLength(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	good := 0
	for range 20_000 {
		p := Part{Piece: r.IntN(4) - 1, Offset: r.IntN(24) - 2, Block: r.IntN(8) - 1, Count: r.IntN(6) - 1, Stride: r.IntN(24) - 12}
		if r.IntN(10) == 0 {
			p.Count = math.MaxInt - r.IntN(2)
		}
		if r.IntN(10) == 0 {
			p.Stride = math.MinInt + r.IntN(2)
		}
		if r.IntN(10) == 0 {
			p.Offset = math.MaxInt - r.IntN(9)
		}
		l := Local{Pieces: [][]byte{make([]byte, 20), nil}, Parts: []Part{p}}
		want := p.Piece >= 0 && p.Piece < 2 && p.Block > 0 && p.Count > 0 && p.Count < 10 && p.Offset >= 0 && p.Offset < 100
		if want {
			for i := range p.Count {
				at := float64(p.Offset) + float64(i)*float64(p.Stride)
				want = want && at >= 0 && at+float64(p.Block) <= float64(len(l.Pieces[p.Piece]))
			}
		} else if p.Stride == 0 && p.Piece == 0 && p.Block > 0 && p.Count > 0 && p.Offset >= 0 && p.Offset <= 20-p.Block {
			continue // as many blocks of the same bytes as one likes
		}
		n, err := l.Length()
		require.Equal(t, want, err == nil, "%+v: %v", p, err)
		if want {
			good++
			require.Equal(t, p.Block*p.Count, n)
		} else {
			require.ErrorIs(t, err, ErrRange)
		}
	}
	require.Positive(t, good)
}
