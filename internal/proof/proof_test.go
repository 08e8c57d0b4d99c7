package proof

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func params(self string) Params {
	return Params{
		Secret:   []byte("0123456789abcdef0123456789abcdef"),
		Protocol: "sluice-test",
		Major:    1,
		Minor:    2,
		Features: 0b0110,
		Job:      "job 7",
		Self:     []byte(self),
	}
}

type outcome struct {
	peer Peer
	err  error
}

// run lets Dial and Accept talk over a pipe, each closing its end when it
// returns, as a caller would.
func run(t *testing.T, d, a Params, want []byte, known func([]byte) bool) (dialed, accepted outcome) {
	t.Helper()
	dc, ac := net.Pipe()
	deadline := time.Now().Add(10 * time.Second)
	require.NoError(t, dc.SetDeadline(deadline))
	require.NoError(t, ac.SetDeadline(deadline))
	done := make(chan struct{})
	go func() {
		defer close(done)
		accepted.peer, accepted.err = Accept(ac, a, known)
		if accepted.err != nil {
			ac.Close()
		}
	}()
	dialed.peer, dialed.err = Dial(dc, d, want)
	if dialed.err != nil {
		dc.Close()
	}
	<-done
	dc.Close()
	ac.Close()
	return dialed, accepted
}

func TestProof(t *testing.T) {
	d, a := params("rank 1"), params("rank 0")
	a.Minor, a.Features = 9, 0b1100
	var asked [][]byte
	dialed, accepted := run(t, d, a, []byte("rank 0"), func(id []byte) bool {
		asked = append(asked, id)
		return true
	})
	require.NoError(t, dialed.err)
	require.NoError(t, accepted.err)
	pages := uint32(os.Getpagesize())
	require.Equal(t, Peer{ID: []byte("rank 0"), Major: 1, Minor: 9, Features: 0b0100, PageSize: pages}, dialed.peer)
	require.Equal(t, Peer{ID: []byte("rank 1"), Major: 1, Minor: 2, Features: 0b0100, PageSize: pages}, accepted.peer)
	require.Equal(t, [][]byte{[]byte("rank 1")}, asked)
}

func TestInsecure(t *testing.T) {
	d, a := params("1"), params("0")
	d.Secret, d.Insecure = nil, true
	a.Secret, a.Insecure = nil, true
	dialed, accepted := run(t, d, a, nil, nil)
	require.NoError(t, dialed.err)
	require.NoError(t, accepted.err)
}

// What is sent right behind the proof stays in the connection.
func TestReadsNotBeyond(t *testing.T) {
	dc, ac := net.Pipe()
	defer dc.Close()
	defer ac.Close()
	go func() {
		if _, err := Dial(dc, params("1"), nil); err == nil {
			io.WriteString(dc, "data")
		}
	}()
	_, err := Accept(ac, params("0"), nil)
	require.NoError(t, err)
	b := make([]byte, 4)
	_, err = io.ReadFull(ac, b)
	require.NoError(t, err)
	require.Equal(t, "data", string(b))
}

func TestFailures(t *testing.T) {
	alter := func(self string, f func(*Params)) Params {
		p := params(self)
		f(&p)
		return p
	}
	same := func(*Params) {}
	for _, c := range []struct {
		name         string
		d, a         func(*Params)
		want         []byte
		known        func([]byte) bool
		dialErr      error
		acceptErr    error
		dialSays     string
		acceptSays   string
		acceptNotErr error
	}{
		{
			name: "wrong secret",
			d:    func(p *Params) { p.Secret = []byte("guess") }, a: same,
			dialErr: ErrRefused, acceptErr: ErrSecret,
		},
		{
			name: "version",
			d:    func(p *Params) { p.Major, p.Minor = 2, 5 }, a: same,
			dialErr: ErrVersion, acceptErr: ErrVersion,
			dialSays: `this end has "2.5", the peer "1.2"`, acceptSays: `this end has "1.2", the peer "2.5"`,
		},
		{
			name: "protocol",
			d:    func(p *Params) { p.Protocol = "other" }, a: same,
			dialErr: ErrProtocol, acceptErr: ErrProtocol,
			dialSays: `this end has "other", the peer "sluice-test"`,
		},
		{
			name: "job",
			d:    func(p *Params) { p.Job = "job 8" }, a: same,
			dialErr: ErrJob, acceptErr: ErrJob, acceptSays: `this end has "job 7", the peer "job 8"`,
		},
		{
			name: "only the dialer is insecure",
			d:    func(p *Params) { p.Secret, p.Insecure = nil, true }, a: same,
			dialErr: ErrInsecure, acceptErr: ErrInsecure,
			dialSays: `this end has "none", the peer "a secret"`,
		},
		{
			name: "only the acceptor is insecure",
			d:    same, a: func(p *Params) { p.Secret, p.Insecure = nil, true },
			dialErr: ErrInsecure, acceptErr: ErrInsecure,
		},
		{
			name: "not the acceptor that was wanted",
			d:    same, a: same, want: []byte("rank 2"),
			dialErr: ErrIdentity, acceptErr: io.EOF, dialSays: `claiming to be "rank 0"`,
		},
		{
			name: "dialer not known",
			d:    same, a: same, known: func([]byte) bool { return false },
			dialErr: ErrRefused, acceptErr: ErrIdentity, acceptSays: `claiming to be "rank 1"`,
		},
		{
			name: "wrong secret of an unknown dialer",
			d:    func(p *Params) { p.Secret = []byte("guess") }, a: same,
			known: func([]byte) bool {
				panic("a stranger must not learn which identities exist")
			},
			dialErr: ErrRefused, acceptErr: ErrSecret, acceptNotErr: ErrIdentity,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dialed, accepted := run(t, alter("rank 1", c.d), alter("rank 0", c.a), c.want, c.known)
			for _, o := range []struct {
				outcome
				op   string
				want error
				says string
			}{{dialed, "dial", c.dialErr, c.dialSays}, {accepted, "accept", c.acceptErr, c.acceptSays}} {
				var e *Error
				require.ErrorAs(t, o.err, &e)
				require.Equal(t, o.op, e.Op)
				require.ErrorIs(t, o.err, o.want)
				require.ErrorContains(t, o.err, o.says)
				require.Zero(t, o.peer)
			}
			if c.acceptNotErr != nil {
				require.NotErrorIs(t, accepted.err, c.acceptNotErr)
			}
		})
	}
}

func TestParams(t *testing.T) {
	for name, f := range map[string]func(*Params){
		"no secret":           func(p *Params) { p.Secret = nil },
		"secret and insecure": func(p *Params) { p.Insecure = true },
		"no protocol":         func(p *Params) { p.Protocol = "" },
		"long protocol":       func(p *Params) { p.Protocol = strings.Repeat("p", 33) },
		"long job":            func(p *Params) { p.Job = strings.Repeat("j", 65) },
		"long identity":       func(p *Params) { p.Self = make([]byte, 65) },
	} {
		p := params("1")
		f(&p)
		// A nil connection: nothing may be sent.
		_, err := Dial(nil, p, nil)
		require.ErrorIs(t, err, ErrParams, name)
		_, err = Accept(nil, p, nil)
		require.ErrorIs(t, err, ErrParams, name)
	}
	p := params(strings.Repeat("i", 64))
	p.Job, p.Protocol = strings.Repeat("j", 64), strings.Repeat("p", 32)
	dialed, accepted := run(t, p, p, p.Self, nil)
	require.NoError(t, dialed.err)
	require.NoError(t, accepted.err)
}

// script is a peer that says what it is told to say, whatever it hears, and
// keeps count.
type script struct {
	say   *bytes.Reader
	heard bytes.Buffer
}

func newScript(say ...[]byte) *script {
	return &script{say: bytes.NewReader(bytes.Join(say, nil))}
}

func (s *script) Read(b []byte) (int, error)  { return s.say.Read(b) }
func (s *script) Write(b []byte) (int, error) { return s.heard.Write(b) }

func fixedNonce(c byte) func(*[nonceSize]byte) {
	return func(n *[nonceSize]byte) {
		for i := range n {
			n[i] = c + byte(i)
		}
	}
}

// record returns what the dialer "rank 1" says to the acceptor "rank 0", and
// what it answers, both with the given nonces.
func record(t *testing.T, dn, an func(*[nonceSize]byte)) (dialer, acceptor []byte) {
	t.Helper()
	d, a := params("rank 1"), params("rank 0")
	dh, err := d.hello(roleDialer, dn)
	require.NoError(t, err)
	ah, err := a.hello(roleAcceptor, an)
	require.NoError(t, err)
	dialer, acceptor = dh.Append(nil), ah.Append(nil)
	dt := makeTag(d.Secret, roleDialer, dialer, acceptor)
	at := makeTag(d.Secret, roleAcceptor, dialer, acceptor)
	return append(dialer, dt[:]...), append(acceptor, at[:]...)
}

// The recording is what Dial and Accept say; with it, the tests below that
// tamper with it test what they claim.
func TestRecord(t *testing.T) {
	dialer, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	s := newScript(acceptor)
	_, err := dial(s, params("rank 1"), nil, fixedNonce(1))
	require.NoError(t, err)
	require.Equal(t, dialer, s.heard.Bytes())
	s = newScript(dialer)
	_, err = accept(s, params("rank 0"), nil, fixedNonce(2))
	require.NoError(t, err)
	require.Equal(t, acceptor, s.heard.Bytes())
}

func TestReplay(t *testing.T) {
	dialer, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	s := newScript(dialer)
	_, err := accept(s, params("rank 0"), nil, fixedNonce(3))
	require.ErrorIs(t, err, ErrSecret)
	require.Equal(t, helloSize, s.heard.Len(), "the acceptor proves nothing to a replay")
	_, err = dial(newScript(acceptor), params("rank 1"), nil, fixedNonce(3))
	require.ErrorIs(t, err, ErrSecret)
}

// A dialer that gets its own bytes back, or its own with the role corrected
// and its own tag behind them, has met no peer.
func TestReflection(t *testing.T) {
	p := params("rank 1")
	h, err := p.hello(roleDialer, fixedNonce(1))
	require.NoError(t, err)
	own := h.Append(nil)
	_, err = dial(newScript(own), p, nil, fixedNonce(1))
	require.ErrorIs(t, err, ErrGarbage)

	h.role = roleAcceptor
	mirrored := h.Append(nil)
	tag := makeTag(p.Secret, roleDialer, own, mirrored) // what the dialer will say
	s := newScript(mirrored, tag[:])
	_, err = dial(s, p, nil, fixedNonce(1))
	require.ErrorIs(t, err, ErrSecret)
	require.Equal(t, tag[:], s.heard.Bytes()[helloSize:])
}

// Every bit of what a peer says counts.
func TestTampered(t *testing.T) {
	dialer, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	for bit := range 8 * len(dialer) {
		b := bytes.Clone(dialer)
		b[bit/8] ^= 1 << (bit % 8)
		s := newScript(b)
		_, err := accept(s, params("rank 0"), nil, fixedNonce(2))
		require.Error(t, err, "bit %d", bit)
		require.LessOrEqual(t, s.heard.Len(), helloSize, "bit %d", bit)
	}
	for bit := range 8 * len(acceptor) {
		b := bytes.Clone(acceptor)
		b[bit/8] ^= 1 << (bit % 8)
		_, err := dial(newScript(b), params("rank 1"), nil, fixedNonce(1))
		require.Error(t, err, "bit %d", bit)
	}
}

func TestTruncated(t *testing.T) {
	dialer, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	for n := range dialer {
		_, err := accept(newScript(dialer[:n]), params("rank 0"), nil, fixedNonce(2))
		require.Error(t, err)
		require.True(t, errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF), "%d bytes: %v", n, err)
	}
	for n := range acceptor {
		_, err := dial(newScript(acceptor[:n]), params("rank 1"), nil, fixedNonce(1))
		require.Error(t, err)
		if n < helloSize {
			require.NotErrorIs(t, err, ErrRefused, "%d bytes", n)
		} else {
			require.ErrorIs(t, err, ErrRefused, "%d bytes", n)
		}
	}
}

// A stranger is recognised by eight bytes, gets no answer, and cannot make the
// acceptor read on.
func TestGarbage(t *testing.T) {
	for _, say := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"SSH-2.0-OpenSSH_9.9\r\n",
		strings.Repeat("\x00", 1<<16),
		strings.Repeat("\xff", 1<<16),
	} {
		s := newScript([]byte(say))
		_, err := Accept(s, params("rank 0"), nil)
		require.ErrorIs(t, err, ErrGarbage)
		require.Equal(t, len(say)-prefixSize, s.say.Len())
		require.Zero(t, s.heard.Len())
	}
}

func TestForeignHost(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(*hello)
		err  error
		says string
	}{
		{"endianness", func(h *hello) { h.order ^= 3 }, ErrEndianness, "-endian"},
	} {
		p := params("rank 1")
		h, err := p.hello(roleDialer, fixedNonce(1))
		require.NoError(t, err)
		c.f(&h)
		s := newScript(h.Append(nil))
		_, err = Accept(s, params("rank 0"), nil)
		require.ErrorIs(t, err, c.err, c.name)
		require.ErrorContains(t, err, c.says, c.name)
		var m *MismatchError
		require.ErrorAs(t, err, &m, c.name)
		require.Equal(t, helloSize, s.heard.Len(), "the dialer must learn it too")
	}
}

// A connection is between hosts of whatever page sizes: 4 KiB and 64 KiB go together.
func TestForeignPages(t *testing.T) {
	const pages = 123
	d, a := params("rank 1"), params("rank 0")
	for _, foreign := range []role{roleDialer, roleAcceptor} {
		dh, err := d.hello(roleDialer, fixedNonce(1))
		require.NoError(t, err)
		ah, err := a.hello(roleAcceptor, fixedNonce(2))
		require.NoError(t, err)
		var peer Peer
		if foreign == roleDialer {
			dh.pageSize = pages
			dialer := dh.Append(nil)
			tag := makeTag(d.Secret, roleDialer, dialer, ah.Append(nil))
			peer, err = accept(newScript(dialer, tag[:]), a, nil, fixedNonce(2))
		} else {
			ah.pageSize = pages
			acceptor := ah.Append(nil)
			tag := makeTag(a.Secret, roleAcceptor, dh.Append(nil), acceptor)
			peer, err = dial(newScript(acceptor, tag[:]), d, nil, fixedNonce(1))
		}
		require.NoError(t, err, "the %v's pages are %d bytes", foreign, pages)
		require.EqualValues(t, pages, peer.PageSize)
	}
}

func TestNextWireVersion(t *testing.T) {
	dialer, _ := record(t, fixedNonce(1), fixedNonce(2))
	dialer[7] = 2
	_, err := Accept(newScript(dialer), params("rank 0"), nil)
	require.ErrorIs(t, err, ErrVersion)
	require.ErrorContains(t, err, `this end has "proof 1", the peer "proof 2"`)
}

// Silence is bounded by the caller's deadline, which stays visible.
func TestSilence(t *testing.T) {
	_, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	for _, said := range [][]byte{nil, acceptor[:100], acceptor[:helloSize], acceptor[:helloSize+5]} {
		dc, ac := net.Pipe()
		go func() {
			io.ReadFull(ac, make([]byte, helloSize))
			go io.Copy(io.Discard, ac)
			ac.Write(said) // returns once the other end has read it
			dc.SetDeadline(time.Now())
		}()
		_, err := dial(dc, params("rank 1"), nil, fixedNonce(1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, ErrRefused)
		dc.Close()
		ac.Close()
	}
}

func unhex(t testing.TB, fields string) []byte {
	t.Helper()
	var b []byte
	for line := range strings.Lines(fields) {
		_, digits, _ := strings.Cut(line, ":")
		part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(digits), " ", ""))
		require.NoError(t, err, line)
		b = append(b, part...)
	}
	return b
}

const goldenNames = `protocol: 736c756963652d7463700000000000000000000000000000 0000000000000000
	job:      6a6f622d3432 0000000000000000000000000000000000000000000000000000 0000000000000000000000000000000000000000000000000000000000000000
`

const goldenDialer = `magic:    534c55494345
	wire:     0001
	role:     01
	order:    01
	insecure: 00
	length:   0a
	page:     00001000
	version:  0001 0002
	lengths:  06 04
	zero:     0000
	features: 8000000000000005
	nonce:    000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
	` + goldenNames + `
	identity: 00000001 00000000000000000000000000000000000000000000000000000000 0000000000000000000000000000000000000000000000000000000000000000
`

const goldenAcceptor = `magic:    534c55494345
	wire:     0001
	role:     02
	order:    01
	insecure: 00
	length:   0a
	page:     00001000
	version:  0001 0003
	lengths:  06 04
	zero:     0000
	features: 0000000000000001
	nonce:    202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f
	` + goldenNames + `
	identity: 00000000 00000000000000000000000000000000000000000000000000000000 0000000000000000000000000000000000000000000000000000000000000000
`

// Computed independently of this package, with Python's hmac.
const (
	goldenDialerTag   = `tag: b9e8d502b40ae8767f72e03f59ba88a796894b2519740abbb484fedd2ad4723f`
	goldenAcceptorTag = `tag: 24ca99d24d782ca96d6cfd37bd208ec6b533e119e35b8a5af49384546d751124`
)

func goldenHellos() (dialer, acceptor hello) {
	dialer = hello{
		role: roleDialer, order: littleEndian, pageSize: 4096,
		major: 1, minor: 2, features: 1<<63 | 5,
		protocol: "sluice-tcp", job: "job-42", identity: []byte{0, 0, 0, 1},
	}
	fixedNonce(0)(&dialer.nonce)
	acceptor = hello{
		role: roleAcceptor, order: littleEndian, pageSize: 4096,
		major: 1, minor: 3, features: 1,
		protocol: "sluice-tcp", job: "job-42", identity: []byte{0, 0, 0, 0},
	}
	fixedNonce(32)(&acceptor.nonce)
	return dialer, acceptor
}

func TestGolden(t *testing.T) {
	dh, ah := goldenHellos()
	dialer, acceptor := unhex(t, goldenDialer), unhex(t, goldenAcceptor)
	for _, c := range []struct {
		h    hello
		wire []byte
	}{{dh, dialer}, {ah, acceptor}} {
		require.Equal(t, hex.EncodeToString(c.wire), hex.EncodeToString(c.h.Append(nil)))
		h, n, err := parseHello(append(bytes.Clone(c.wire), "more"...))
		require.NoError(t, err)
		require.Equal(t, helloSize, n)
		require.Equal(t, c.h, h)
	}
	secret := []byte("0123456789abcdef0123456789abcdef")
	tag := makeTag(secret, roleDialer, dialer, acceptor)
	require.Equal(t, hex.EncodeToString(unhex(t, goldenDialerTag)), hex.EncodeToString(tag[:]))
	tag = makeTag(secret, roleAcceptor, dialer, acceptor)
	require.Equal(t, hex.EncodeToString(unhex(t, goldenAcceptorTag)), hex.EncodeToString(tag[:]))
}

// A dialer that wants another identity says which, in words.
func TestWant(t *testing.T) {
	for want, id := range map[string][]byte{`"server"`: []byte("server"), "rank 2": {0, 0, 0, 2}} {
		_, acceptor := record(t, fixedNonce(1), fixedNonce(2))
		_, err := dial(newScript(acceptor), params("rank 1"), id, fixedNonce(1))
		require.ErrorIs(t, err, ErrIdentity)
		require.EqualError(t, err, `proof: dial: peer claiming to be "rank 0": wrong identity: expected `+want)
	}
	_, acceptor := record(t, fixedNonce(1), fixedNonce(2))
	_, err := dial(newScript(acceptor), params("rank 1"), []byte("rank 0"), fixedNonce(1))
	require.NoError(t, err)
}

// A dialer that cannot talk to the acceptor, and belongs to its job, proves that with its secret.
func TestProven(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*Params)
		err    error
		proven bool
	}{
		"version":                     {func(p *Params) { p.Major = 9 }, ErrVersion, true},
		"version, and another secret": {func(p *Params) { p.Major, p.Secret = 9, []byte("guess") }, ErrVersion, false},
		"version, and another job":    {func(p *Params) { p.Major, p.Job = 9, "job 8" }, ErrVersion, false},
		"version, and no secret":      {func(p *Params) { p.Major, p.Secret, p.Insecure = 9, nil, true }, ErrVersion, false},
		"another job":                 {func(p *Params) { p.Job = "job 8" }, ErrJob, false},
		"another protocol":            {func(p *Params) { p.Protocol = "other" }, ErrProtocol, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := params("rank 1")
			c.spoil(&d)
			dialed, accepted := run(t, d, params("rank 0"), nil, func([]byte) bool { panic("it is not admitted") })
			var e *Error
			require.ErrorAs(t, dialed.err, &e)
			require.ErrorIs(t, e, c.err)
			require.ErrorAs(t, accepted.err, &e)
			require.ErrorIs(t, e, c.err)
			require.Equal(t, c.proven, e.Proven)
		})
	}
}

// The identity that a peer claims is given in words.
func TestNames(t *testing.T) {
	for want, id := range map[string][]byte{`"server"`: []byte("server"), "rank 300": {0, 0, 1, 44}, "rank -1": {255, 255, 255, 255}, "nothing": {},
		"3 bytes that are no name": {0, 255, 16}, "10.0.0.7": {10: 255, 11: 255, 12: 10, 15: 7}, "fe80::1": {0: 0xfe, 1: 0x80, 15: 1, 17: 9}} {
		require.Equal(t, want, name(id))
	}
}
