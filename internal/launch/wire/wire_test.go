package wire

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// golden has every message with its wire form, field by field.
var golden = []struct {
	m    Message
	wire string
}{
	{File{Index: 1, Size: 258, Sum: [32]byte{0xaa, 31: 0xbb}}, `kind: 01000000 rank: 00000001 length: 00000028
		size: 0000000000000102
		sum:  aa000000000000000000000000000000000000000000000000000000000000bb end: 0a`},
	{Chunk{[]byte{1, 2, 3}}, `kind: 02000000 rank: 00000000 length: 00000003 data: 010203 end: 0a`},
	{Signal{Rank: 5, Number: 15}, `kind: 04000000 rank: 00000005 length: 00000004 number: 0000000f end: 0a`},
	{Stop{}, `kind: 05000000 rank: 00000000 length: 00000000 end: 0a`},
	{Input{[]byte{9}}, `kind: 06000000 rank: 00000000 length: 00000001 data: 09 end: 0a`},
	{Input{[]byte{}}, `kind: 06000000 rank: 00000000 length: 00000000 end: 0a`},
	{Mute{Stderr}, `kind: 07000000 rank: 00000000 length: 00000001 stream: 02 end: 0a`},
	{Ping{}, `kind: 08000000 rank: 00000000 length: 00000000 end: 0a`},
	{Started{Ranks: 16, More: true}, `kind: 09000000 rank: 00000000 length: 0000000a
		ranks: 00000010 more: 01 failure: 00 number: 00000000 end: 0a`},
	{Started{Ranks: 2, Failure: NotFound, Number: 6, Text: "no"}, `kind: 09000000 rank: 00000000 length: 0000000c
		ranks: 00000002 more: 00 failure: 01 number: 00000006 text: 6e6f end: 0a`},
	{Exit{Rank: 7, Status: 137}, `kind: 0a000000 rank: 00000007 length: 00000004 status: 00000089 end: 0a`},
	{Output{Stdout, []byte("hi\n")}, `kind: 0b000000 rank: 00000000 length: 00000004 stream: 01 data: 68690a end: 0a`},
	{Taken{1024}, `kind: 0c000000 rank: 00000000 length: 00000004 bytes: 00000400 end: 0a`},
	{Pong{}, `kind: 0d000000 rank: 00000000 length: 00000000 end: 0a`},
	{Done{"x"}, `kind: 0e000000 rank: 00000000 length: 00000001 text: 78 end: 0a`},
	{Setup{
		Size: 8, Prefix: true, Input: true, Stderr: true, Bind: 1, Job: "j", Secret: []byte{0xde, 0xad}, Server: "a:1",
		Programs: []Program{{Args: []string{"p", ""}, Env: []string{"A=b"}, Dir: "/d", MustDir: true, File: NoFile}},
		Ranks:    []Rank{{0, 0}, {3, 0}},
	}, `kind: 03000000 rank: 00000000 length: 00000055
		size:    00000008
		flags:   15 bind: 01 zero: 0000
		job:     00000001 6a
		secret:  00000002 dead
		server:  00000003 613a31
		programs:00000001
		args:    00000002 00000001 70 00000000
		env:     00000001 00000003 413d62
		dir:     00000002 2f64 must: 01
		file:    ffffffff
		ranks:   00000002 00000000 00000000 00000003 00000000 end: 0a`},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var digits strings.Builder
	for _, word := range strings.Fields(s) {
		if _, rest, ok := strings.Cut(word, ":"); ok {
			word = rest
		}
		digits.WriteString(word)
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	return b
}

func TestGolden(t *testing.T) {
	seen := map[Kind]bool{}
	for _, g := range golden {
		want := unhex(t, g.wire)
		require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(g.m.Append(nil)), "%T", g.m)
		m, err := Read(bytes.NewReader(want))
		require.NoError(t, err)
		require.Equal(t, g.m, m)
		seen[Kind(want[0])] = true
		for cut := range want {
			_, err := Read(bytes.NewReader(want[:cut]))
			if cut == 0 {
				require.ErrorIs(t, err, io.EOF)
				continue
			}
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	}
	for k := KindFile; k < kinds; k++ {
		require.True(t, seen[k], "%v", k)
	}
}

// Lengths and counts that do not fit are refused before anything of that size is made.
func TestRefused(t *testing.T) {
	for name, s := range map[string]string{
		"kind 0":             `00000000 00000000 00000000`,
		"kind 15":            `0f000000 00000000 00000000`,
		"flags":              `05000001 00000000 00000000`,
		"rank of a stop":     `05000000 00000001 00000000`,
		"rank":               `0a000000 00100000 00000004 00000000`,
		"long output":        `0b000000 00000000 00200002`,
		"long setup":         `03000000 00000000 01000001`,
		"signal 0":           `04000000 00000000 00000004 00000000`,
		"signal 65":          `04000000 00000000 00000004 00000041`,
		"stream":             `07000000 00000000 00000001 03`,
		"taken":              `0c000000 00000000 00000004 00020001`,
		"more and failure":   `09000000 00000000 0000000a 00000000 01 01 00000000`,
		"text of no failure": `09000000 00000000 0000000b 00000000 00 00 00000000 61`,
		"no end":             `05000000 00000000 00000000 0b`,
		"setup: short":       `03000000 00000000 00000003 000000`,
		"setup: job":         `03000000 00000000 0000000c 00000001 00000000 ffffffff`,
		"setup: programs":    `03000000 00000000 00000018 00000001 00000000 00000000 00000000 00000000 ffffffff`,
		"setup: no ranks":    `03000000 00000000 0000001c 00000001 00000000 00000000 00000000 00000000 00000000 00000000`,
	} {
		b := unhex(t, s)
		_, err := Read(io.MultiReader(bytes.NewReader(b), newlines{}))
		require.ErrorIs(t, err, ErrProtocol, name)
	}
	good := Setup{Size: 4, Programs: []Program{{Args: []string{"p"}}}, Ranks: []Rank{{1, 0}, {2, 0}}}
	for name, change := range map[string]func(*Setup){
		"rank twice": func(s *Setup) { s.Ranks = []Rank{{1, 0}, {1, 0}} },
		"rank":       func(s *Setup) { s.Ranks = []Rank{{4, 0}} },
		"program":    func(s *Setup) { s.Ranks = []Rank{{0, 1}} },
		"no args":    func(s *Setup) { s.Programs = []Program{{}} },
		"input":      func(s *Setup) { s.Input = true },
		"size":       func(s *Setup) { s.Size = MaxRank + 1 },
	} {
		s := good
		change(&s)
		_, err := Read(bytes.NewReader(s.Append(nil)))
		require.ErrorIs(t, err, ErrProtocol, name)
	}
}

// newlines never end.
type newlines struct{}

func (newlines) Read(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte{end}, len(b))), nil }

func TestPreamble(t *testing.T) {
	require.Equal(t, "00736c756963652d6167656e740000010a", hex.EncodeToString(Preamble()))
	await := func(s string) (string, error) {
		noise, err := Await(bufio.NewReader(strings.NewReader(s)))
		return string(noise), err
	}
	noise, err := await(string(Preamble()))
	require.NoError(t, err)
	require.Empty(t, noise)
	noise, err = await("Welcome to b\n" + string(Preamble()) + "rest")
	require.NoError(t, err)
	require.Equal(t, "Welcome to b\n", noise)
	noise, err = await("sh: no such file\n")
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "sh: no such file\n", noise)
	_, err = await("\x00sluice-agent\x00\x00\x02\n")
	require.ErrorIs(t, err, ErrVersion)
	_, err = await(strings.Repeat("x", MaxNoise+1))
	require.ErrorIs(t, err, ErrNoise)
}

// FuzzRead: whatever one side writes, the other reads a message or an error; a message that is read is
// written again as the same bytes.
func FuzzRead(f *testing.F) {
	for _, g := range golden {
		f.Add(g.m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			at := len(b) - r.Len()
			m, err := Read(r)
			if err != nil {
				return
			}
			require.Equal(t, b[at:len(b)-r.Len()], m.Append(nil))
		}
	})
}
