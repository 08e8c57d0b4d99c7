package startup

import (
	"bytes"
	"encoding/hex"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// TestGolden has every message as it is on the wire. That of IMPI is the example of
// the report (figure 2.1).
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string // command, length; payload
	}{
		{"AUTH", authCommand{methods: AuthNone | AuthKey}.append(nil), "41555448 00000004  00000003"},
		{"AUTH of 1999", authCommand{old: true, key: 0x0102030405060708}.append(nil), "41555448 00000008  0102030405060708"},
		{"AUTH answer NONE", authReply{which: whichNone}.append(nil), "00000000 00000000"},
		{"AUTH answer KEY", authReply{which: whichKey}.append(nil), "00000001 00000000"},
		{"key", appendKey(nil, 0xfedcba9876543210), "fedcba9876543210"},
		{"IMPI", appendImpi(nil, 2), "494d5049 00000004  00000002"},
		{"COLL", collCommand{LabelNHosts, []byte{0, 0, 0, 3}}.append(nil), "434f4c4c 00000008  00001100 00000003"},
		{"COLL, negative label", collCommand{-5, []byte{0xaa}}.append(nil), "434f4c4c 00000005  fffffffb aa"},
		{"COLL answer, negative label", collReply{-1 << 31, 1 << 31, nil}.append(nil), "434f4c4c 00000008  80000000 80000000"},
		{"COLL answer", collReply{LabelNHosts, 5, []byte{0, 0, 0, 3, 0, 0, 0, 2}}.append(nil), "434f4c4c 00000010  00001100 00000005 00000003 00000002"},
		{"DONE", header{cmd: cmdDone}.append(nil), "444f4e45 00000000"},
		{"FINI", header{cmd: cmdFini}.append(nil), "46494e49 00000000"},
		{"SLUICE", collCommand{LabelSluice, appendSluice(nil)}.append(nil), "434f4c4c 0000000c  00008000 534c5543 00000001"},
		{"extra", collCommand{0x8001, appendFramed(nil, []byte{0xaa})}.append(nil), "434f4c4c 00000009  00008001 00000001 aa"},
	} {
		require.Equal(t, unhex(t, c.want), c.got, c.name)
	}
}

// TestGoldenClient has all that a client of two hosts submits.
func TestGoldenClient(t *testing.T) {
	id := HostID{15: 9}
	c, err := (&Config{Hosts: []Host{
		{ID: HostID{12: 10, 15: 1}, Port: 7000, Processes: []Process{{PID: 1}, {PID: 2}}},
		{ID: HostID{12: 10, 15: 2}, Port: 7001, AckMark: 3, HiWater: 5, Processes: []Process{{Host: id, PID: 1 << 40}}},
	}, TagUB: 99999, XSize: 4096}).filled()
	require.NoError(t, err)
	want := []struct {
		label Label
		data  string
	}{
		{0x1000, "00000000 00000000"},
		{0x1100, "00000002"},
		{0x1200, "00000003"},
		{0x1300, "00010000"},
		{0x1400, "0001869f"},
		{0x1500, "00001000"},
		{0x1600, "ffffffff"},
		{0x2000, "000000000000000000000000 0a000001  000000000000000000000000 0a000002"},
		{0x2100, "00001b58 00001b59"},
		{0x2200, "00000002 00000001"},
		{0x2300, "0000000a 00000003"},
		{0x2400, "00000014 00000005"},
		{0x3000, "000000000000000000000000 0a000001  000000000000000000000000 0a000001  000000000000000000000000 00000009"},
		{0x3100, "0000000000000001 0000000000000002 0000010000000000"},
		{0x8000, "534c5543 00000001"},
	}
	got := c.submissions()
	require.Len(t, got, len(want))
	for i, w := range want {
		require.Equal(t, w.label, got[i].label)
		require.Equal(t, unhex(t, w.data), got[i].data, "%v", w.label)
	}
}

func TestParse(t *testing.T) {
	h, err := parseHeader(unhex(t, "444f4e45 00000000"))
	require.NoError(t, err)
	require.Equal(t, header{cmd: cmdDone}, h)
	a, err := parseAuth(unhex(t, "00000003"))
	require.NoError(t, err)
	require.Equal(t, authCommand{methods: AuthNone | AuthKey}, a)
	a, err = parseAuth(unhex(t, "0102030405060708"))
	require.NoError(t, err)
	require.Equal(t, authCommand{old: true, key: 0x0102030405060708}, a)
	r, err := parseAuthReply(unhex(t, "00000001 00000000"))
	require.NoError(t, err)
	require.Equal(t, authReply{which: whichKey}, r)
	k, err := parseKey(unhex(t, "fedcba9876543210"))
	require.NoError(t, err)
	require.Equal(t, uint64(0xfedcba9876543210), k)
	n, err := parseImpi(unhex(t, "ffffffff"))
	require.NoError(t, err)
	require.Equal(t, -1, n)
	c, err := parseColl(unhex(t, "00001100 00000003"))
	require.NoError(t, err)
	require.Equal(t, collCommand{LabelNHosts, []byte{0, 0, 0, 3}}, c)
	c, err = parseColl(unhex(t, "80000000"))
	require.NoError(t, err)
	require.Equal(t, collCommand{-1 << 31, []byte{}}, c)
	cr, err := parseCollReply(unhex(t, "00001100 00000005 00000003"))
	require.NoError(t, err)
	require.Equal(t, collReply{LabelNHosts, 5, []byte{0, 0, 0, 3}}, cr)
}

func TestParseRefuses(t *testing.T) {
	for name, parse := range map[string]func() error{
		"short header":         func() error { _, err := parseHeader(make([]byte, 7)); return err },
		"negative length":      func() error { _, err := parseHeader(unhex(t, "434f4c4c ffffffff")); return err },
		"AUTH of 5 bytes":      func() error { _, err := parseAuth(make([]byte, 5)); return err },
		"AUTH answer, 9 bytes": func() error { _, err := parseAuthReply(make([]byte, 9)); return err },
		"AUTH answer, data":    func() error { _, err := parseAuthReply(unhex(t, "00000001 00000004")); return err },
		"key of 7 bytes":       func() error { _, err := parseKey(make([]byte, 7)); return err },
		"IMPI of 8 bytes":      func() error { _, err := parseImpi(make([]byte, 8)); return err },
		"COLL of 3 bytes":      func() error { _, err := parseColl(make([]byte, 3)); return err },
		"label 0":              func() error { _, err := parseColl(make([]byte, 4)); return err },
		"COLL answer, 7 bytes": func() error { _, err := parseCollReply(make([]byte, 7)); return err },
		"SLUICE, 7 bytes":      func() error { return parseSluice(make([]byte, 7), 1) },
		"frame too long":       func() error { _, err := parseFramed(unhex(t, "00000002 aa"), 1); return err },
		"no frame":             func() error { _, err := parseFramed(unhex(t, "00000001 aa"), 2); return err },
		"behind the frames":    func() error { _, err := parseFramed(unhex(t, "00000001 aabb"), 1); return err },
	} {
		require.ErrorIs(t, parse(), ErrProtocol, name)
	}
	require.ErrorIs(t, parseSluice(make([]byte, 8), 1), ErrDisagree)
}

// TestLyingLength: a length costs no memory before its bytes have come.
func TestLyingLength(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readPayload(bytes.NewReader(make([]byte, 100)), maxPayload)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))

	want := bytes.Repeat([]byte("sluice"), 20000)
	got, err := readPayload(bytes.NewReader(append(want, 'x')), len(want))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestNames(t *testing.T) {
	require.Equal(t, "COLL", cmdColl.String())
	require.Equal(t, "command 0x00000001", command(1).String())
	require.Equal(t, "H_ACKMARK", LabelHostAckMark.String())
	require.Equal(t, "0x8001", Label(0x8001).String())
	require.Equal(t, "-0x5", Label(-5).String())
	require.Equal(t, "nothing", Methods(0).String())
	require.Equal(t, "NONE|KEY", (AuthNone | AuthKey).String())
	require.Equal(t, "phase 9", Phase(9).String())
	err := &Error{Phase: PhaseCollect, Rank: 3, Label: LabelTagUB, Err: ErrDisagree}
	require.EqualError(t, err, "impi/startup: collection, client 3, label C_TAGUB: clients disagree")
}

// FuzzCodec: what a parser takes is written again as it was.
func FuzzCodec(f *testing.F) {
	f.Add(authCommand{methods: AuthKey}.append(nil))
	f.Add(authCommand{old: true, key: 7}.append(nil))
	f.Add(appendImpi(nil, 3))
	f.Add(collCommand{LabelHostIPv6, make([]byte, 32)}.append(nil))
	f.Add(collReply{LabelSluice, 3, appendSluice(appendSluice(nil))}.append(nil))
	f.Add(header{cmd: cmdFini}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readHeader(r)
		if err != nil {
			return
		}
		payload, err := readPayload(r, h.len)
		if err != nil {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			return
		}
		wire := b[:headerLen+h.len]
		require.Equal(t, wire, append(h.append(nil), payload...))
		switch h.cmd {
		case cmdAuth:
			if a, err := parseAuth(payload); err == nil {
				require.Equal(t, wire, a.append(nil))
			}
		case cmdImpi:
			if n, err := parseImpi(payload); err == nil {
				require.Equal(t, wire, appendImpi(nil, n))
			}
		case cmdColl:
			if c, err := parseColl(payload); err == nil {
				require.Equal(t, wire, c.append(nil))
			}
			if c, err := parseCollReply(payload); err == nil {
				require.Equal(t, wire, c.append(nil))
			}
		}
	})
}
