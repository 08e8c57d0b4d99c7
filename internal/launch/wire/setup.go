package wire

import (
	"encoding/binary"
	"fmt"
)

// Setup is the part of a job that one host has. Its body:
//
//	0  4  size of the job
//	4  1  flags: 1 prefix, 2 oversubscribe, 4 input, 8 standard output, 16 standard error
//	5  1  binding
//	6  2  zero
//	8     job, secret, address of the rendezvous: strings
//	      number of programs (4), programs
//	      number of ranks (4), for each rank its number (4) and program (4)
//
// A program is its arguments and its environment, each a number (4) and strings, its directory, a string,
// 1 if it must be there (1), and the index of its file (4), 2³²-1 if none was sent. A string is its length
// (4) and its bytes. The environment is what the host's own has besides.
type Setup struct {
	Size           uint32
	Prefix         bool // before each line of output
	Oversubscribe  bool
	Input          bool // for rank 0, which is among the ranks
	Stdout, Stderr bool // are wanted
	Bind           uint8

	Job, Server string
	Secret      []byte
	Programs    []Program
	Ranks       []Rank
}

// Program is a program and its surroundings.
type Program struct {
	Args, Env []string
	Dir       string
	MustDir   bool   // an error if Dir is not there
	File      uint32 // index, or NoFile
}

// NoFile says that a program was not sent.
const NoFile = 1<<32 - 1

// Rank is a rank and the index of its program.
type Rank struct{ Number, Program uint32 }

const setupFlags = 5

func (m *Setup) flags() [setupFlags]*bool {
	return [...]*bool{&m.Prefix, &m.Oversubscribe, &m.Input, &m.Stdout, &m.Stderr}
}

// Append appends the wire form to b.
func (m Setup) Append(b []byte) []byte {
	start := len(b)
	b = header(b, KindSetup, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Size)
	var flags byte
	for i, f := range m.flags() {
		flags |= flag(*f) << i
	}
	b = append(b, flags, m.Bind, 0, 0)
	b = appendText(b, m.Job)
	b = appendText(b, m.Secret)
	b = appendText(b, m.Server)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Programs)))
	for _, p := range m.Programs {
		for _, list := range [][]string{p.Args, p.Env} {
			b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
			for _, s := range list {
				b = appendText(b, s)
			}
		}
		b = append(appendText(b, p.Dir), flag(p.MustDir))
		b = binary.BigEndian.AppendUint32(b, p.File)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Ranks)))
	for _, r := range m.Ranks {
		b = binary.BigEndian.AppendUint32(b, r.Number)
		b = binary.BigEndian.AppendUint32(b, r.Program)
	}
	binary.BigEndian.PutUint32(b[start+8:], uint32(len(b)-start-headerSize))
	return append(b, end)
}

func appendText[T string | []byte](b []byte, s T) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// parser reads the parts of a body until one is wrong.
type parser struct {
	b   []byte
	err error
}

func (p *parser) fail(format string, a ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: %v: %s", ErrProtocol, KindSetup, fmt.Sprintf(format, a...))
	}
	p.b = nil
}

func (p *parser) take(n uint64) []byte {
	if n > uint64(len(p.b)) {
		p.fail("%d bytes where %d are left", n, len(p.b))
		return nil
	}
	part := p.b[:n:n]
	p.b = p.b[n:]
	return part
}

func (p *parser) number() uint32 {
	if part := p.take(4); part != nil {
		return binary.BigEndian.Uint32(part)
	}
	return 0
}

func (p *parser) bit() bool {
	part := p.take(1)
	if part != nil && part[0] > 1 {
		p.fail("flag %d", part[0])
	}
	return part != nil && part[0] == 1
}

func (p *parser) text() []byte { return p.take(uint64(p.number())) }

// count reads the length of a list whose items have at least so many bytes each, so that a list of that
// length may be made.
func (p *parser) count(least uint64) uint32 {
	n := p.number()
	if uint64(n)*least > uint64(len(p.b)) {
		p.fail("%d items where %d bytes are left", n, len(p.b))
		return 0
	}
	return n
}

func (p *parser) texts() []string {
	list := make([]string, p.count(4))
	for i := range list {
		list[i] = string(p.text())
	}
	return list
}

func parseSetup(body []byte) (Message, error) {
	p := &parser{b: body}
	m := Setup{Size: p.number()}
	if fixed := p.take(4); fixed != nil {
		if fixed[0]>>setupFlags != 0 || fixed[2] != 0 || fixed[3] != 0 {
			p.fail("unknown flags")
		}
		for i, f := range m.flags() {
			*f = fixed[0]>>i&1 == 1
		}
		m.Bind = fixed[1]
	}
	m.Job = string(p.text())
	m.Secret = p.text()
	m.Server = string(p.text())
	m.Programs = make([]Program, p.count(17))
	for i := range m.Programs {
		m.Programs[i] = Program{Args: p.texts(), Env: p.texts(), Dir: string(p.text()), MustDir: p.bit(), File: p.number()}
		if len(m.Programs[i].Args) == 0 {
			p.fail("program %d has no name", i)
		}
	}
	m.Ranks = make([]Rank, p.count(8))
	before := -1
	for i := range m.Ranks {
		r := Rank{p.number(), p.number()}
		if r.Number >= m.Size || int(r.Number) <= before || uint64(r.Program) >= uint64(len(m.Programs)) {
			p.fail("rank %d of %d, after %d, of program %d of %d", r.Number, m.Size, before, r.Program, len(m.Programs))
			break
		}
		before = int(r.Number)
		m.Ranks[i] = r
	}
	switch {
	case p.err != nil:
		return nil, p.err
	case len(p.b) != 0:
		p.fail("%d bytes too many", len(p.b))
	case m.Size > MaxRank || len(m.Ranks) == 0:
		p.fail("%d ranks of %d", len(m.Ranks), m.Size)
	case m.Input && m.Ranks[0].Number != 0:
		p.fail("input for a host without rank 0")
	}
	return m, p.err
}
