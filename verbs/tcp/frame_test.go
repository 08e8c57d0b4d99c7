package tcp

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden are frames as they are on the wire. The header is
// kind flags zero | size | ack | msn.
var golden = []struct {
	frame frame
	hex   string
}{
	{frame{kind: kindOpen, flags: flagFinal, dst: 0x123456, src: 0x654321, psn: 0xabcdef, expectPSN: 0x010203, maxAnswers: 128},
		"01 08 0000 | 00000000 | 00000000 | 00000000 | dst 00123456 src 00654321 psn 00abcdef expected 00010203 answers 80 000000 reason 00000000"},
	{frame{kind: kindOpened, dst: 1, src: 2, psn: 3, expectPSN: 4, maxAnswers: 5},
		"02 00 0000 | 00000000 | 00000000 | 00000000 | dst 00000001 src 00000002 psn 00000003 expected 00000004 answers 05 000000 reason 00000000"},
	{frame{kind: kindRefused, dst: 1, src: 2, status: uint32(refusedPSN)},
		"03 00 0000 | 00000000 | 00000000 | 00000000 | dst 00000001 src 00000002 psn 00000000 expected 00000000 answers 00 000000 reason 00000003"},
	{frame{kind: kindConfirm, dst: 0x123456, src: 0x654321},
		"04 00 0000 | 00000000 | 00000000 | 00000000 | dst 00123456 src 00654321 psn 00000000 expected 00000000 answers 00 000000 reason 00000000"},
	{frame{kind: kindStart, ack: 1, psn: 0xabcdef, rnrRetry: 7},
		"05 00 0000 | 00000000 | 00000001 | 00000000 | psn 00abcdef retries 07 000000"},
	{frame{kind: kindSend, flags: flagImm | flagSolicited, size: 5, ack: 6, msn: 7, total: 0x1000005, imm: 0xdeadbeef},
		"06 03 0000 | 00000005 | 00000006 | 00000007 | total 01000005 imm deadbeef"},
	{frame{kind: kindWrite, flags: flagTrailer, size: 0x40000, ack: 0xffffffff, msn: 0x80000000, addr: 0x0102030405060708, rkey: 0x0a0b0c0d, total: 0x40000000},
		"07 10 0000 | 00040000 | ffffffff | 80000000 | address 0102030405060708 rkey 0a0b0c0d total 40000000 imm 00000000 00000000"},
	{frame{kind: kindRead, ack: 1, msn: 2, addr: 0x7f0000001000, rkey: 0x105, total: 64},
		"08 00 0000 | 00000000 | 00000001 | 00000002 | address 00007f0000001000 rkey 00000105 total 00000040"},
	{frame{kind: kindAtomic, flags: flagSwap, ack: 1, msn: 2, addr: 0x7f0000001008, rkey: 0x105, operand: 3, swap: 0x1122334455667788},
		"09 04 0000 | 00000000 | 00000001 | 00000002 | address 00007f0000001008 rkey 00000105 00000000 compare 0000000000000003 swap 1122334455667788"},
	{frame{kind: kindMore, flags: flagTrailer, size: 0x1001, ack: 1, msn: 2}, "0a 10 0000 | 00001001 | 00000001 | 00000002"},
	{frame{kind: kindResponse, size: 8, ack: 1, msn: 2}, "0b 00 0000 | 00000008 | 00000001 | 00000002"},
	{frame{kind: kindAck, ack: 0x12345678}, "0c 00 0000 | 00000000 | 12345678 | 00000000"},
	{frame{kind: kindNak, ack: 4, msn: 4, status: 10}, "0d 00 0000 | 00000000 | 00000004 | 00000004 | status 0000000a 00000000"},
	{frame{kind: kindRNR, ack: 4, msn: 4}, "0e 00 0000 | 00000000 | 00000004 | 00000004"},
	{frame{kind: kindReady, ack: 4}, "0f 00 0000 | 00000000 | 00000004 | 00000000"},
	{frame{kind: kindResume, ack: 9, msn: 4}, "10 00 0000 | 00000000 | 00000009 | 00000004"},
	{frame{kind: kindDown, ack: 9}, "11 00 0000 | 00000000 | 00000009 | 00000000"},
	{frame{kind: kindBye, ack: 9}, "12 00 0000 | 00000000 | 00000009 | 00000000"},
}

// wireBytes reads a golden vector: everything but the names of the fields.
func wireBytes(t testing.TB, s string) []byte {
	t.Helper()
	var digits strings.Builder
	for _, word := range strings.Fields(s) {
		if strings.Trim(word, "0123456789abcdef") == "" && len(word)%2 == 0 {
			digits.WriteString(word)
		}
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	return b
}

func TestGoldenFrames(t *testing.T) {
	seen := map[kind]bool{}
	for _, g := range golden {
		b := wireBytes(t, g.hex)
		require.Equal(t, hex.EncodeToString(b), hex.EncodeToString(g.frame.Append(nil)), "%v", g.frame.kind)
		require.Len(t, b, headerSize+layouts[g.frame.kind].extension)
		var f frame
		n, err := f.Parse(append(b, 0xff))
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Equal(t, g.frame, f)
		for i := range b {
			n, err := f.Parse(b[:i])
			require.NoError(t, err)
			require.Zero(t, n, "%d of %d bytes of %v", i, len(b), g.frame.kind)
		}
		seen[g.frame.kind] = true
	}
	for k := kindOpen; k < kindEnd; k++ {
		require.True(t, seen[k], "no vector of %v", k)
	}
}

func TestMalformedFrames(t *testing.T) {
	for name, s := range map[string]string{
		"kind 0":                      "00 00 0000 | 00000000 | 00000000 | 00000000",
		"kind 19":                     "13 00 0000 | 00000000 | 00000000 | 00000000",
		"kind 255":                    "ff 00 0000 | 00000000 | 00000000 | 00000000",
		"reserved bytes":              "0c 00 0001 | 00000000 | 00000000 | 00000000",
		"flag of another kind":        "0c 01 0000 | 00000000 | 00000000 | 00000000",
		"unknown flag":                "06 80 0000 | 00000001 | 00000000 | 00000000 | 00000001 00000000",
		"payload of ACK":              "0c 00 0000 | 00000001 | 00000000 | 00000000",
		"payload of READ":             "08 00 0000 | 00000001 | 00000000 | 00000000 | 0000000000000000 00000000 00000000",
		"payload too long":            "0a 00 0000 | 00040001 | 00000000 | 00000000",
		"trailer of nothing":          "0a 10 0000 | 00000000 | 00000000 | 00000000",
		"reserved bytes of WRITE":     "07 00 0000 | 00000000 | 00000000 | 00000000 | 0000000000000000 00000000 00000000 00000000 00000001",
		"reserved bytes of ATOMIC":    "09 00 0000 | 00000000 | 00000000 | 00000000 | 0000000000000000 00000000 00000001 0000000000000000 0000000000000000",
		"reserved bytes of NAK":       "0d 00 0000 | 00000000 | 00000000 | 00000000 | 0000000a 00000001",
		"reserved bytes of START":     "05 00 0000 | 00000000 | 00000000 | 00000000 | 00000000 07 000001",
		"reserved bytes of handshake": "01 00 0000 | 00000000 | 00000000 | 00000000 | 00000000 00000000 00000000 00000000 00 010000 00000000",
	} {
		var f frame
		n, err := f.Parse(wireBytes(t, s))
		require.ErrorIs(t, err, errFrame, name)
		require.Zero(t, n)
	}
}

func FuzzFrame(f *testing.F) {
	for _, g := range golden {
		f.Add(wireBytes(f, g.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr frame
		n, err := fr.Parse(b)
		if err != nil {
			require.ErrorIs(t, err, errFrame)
			require.Zero(t, n)
			return
		}
		if n == 0 {
			require.Less(t, len(b), maxHeader)
			return
		}
		require.Equal(t, b[:n], fr.Append(nil), "what is accepted is exactly what is written")
		require.LessOrEqual(t, fr.size, uint32(maxPayload))
	})
}
