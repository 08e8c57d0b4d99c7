package endpoint

import (
	"errors"
	"fmt"
	"unsafe"
)

// wire is a path in memory between two endpoints, whose tests say when what happens. Frames
// go through their encoding.
type wire struct {
	number uint32
	ends   [2]*wireEnd
}

type wireEnd struct {
	w      *wire
	side   int
	e      *Endpoint
	queue  []frame // on their way to this end
	fenced bool
	broken bool // Broken has been said here
	room   int  // frames that may be on their way from here; 0: any number
	full   bool // a frame was refused
	reads  []read
}

type frame struct {
	b    []byte
	data []byte // of a put, and where it goes
	to   *Remote
}

type read struct {
	token uint64
	into  *Local
	from  *Remote
}

var errCut = errors.New("cut")

func newWire(number uint32, a, b *Endpoint) *wire {
	w := &wire{number: number}
	for i, e := range []*Endpoint{a, b} {
		w.ends[i] = &wireEnd{w: w, side: i, e: e}
	}
	return w
}

func (w *wire) add() error {
	return errors.Join(w.ends[0].e.Add(w.number, w.ends[0]), w.ends[1].e.Add(w.number, w.ends[1]))
}

func (p *wireEnd) peer() *wireEnd { return p.w.ends[1-p.side] }

func (p *wireEnd) Post(h *Header, payload []byte) bool { return p.post(h, payload, nil, nil) }

func (p *wireEnd) post(h *Header, payload, data []byte, to *Remote) bool {
	if p.fenced {
		panic("post behind the fence")
	}
	if p.room > 0 && len(p.peer().queue) >= p.room {
		p.full = true
		return false
	}
	b := make([]byte, HeaderLen, HeaderLen+len(payload))
	h.Put(b)
	p.peer().queue = append(p.peer().queue, frame{append(b, payload...), data, to})
	return true
}

func (p *wireEnd) Put(from *Local, to *Remote, h *Header, payload []byte) bool {
	return p.post(h, payload, gather(from), to)
}

func (p *wireEnd) Get(into *Local, from *Remote, token uint64) bool {
	p.reads = append(p.reads, read{token, into, from})
	return true
}

func (p *wireEnd) Map(r Region) []byte { return memoryOf(r) }
func (p *wireEnd) Fence()              { p.fenced = true }

// deliver hands over the oldest frame; false: there is none.
func (p *wireEnd) deliver() (bool, error) {
	if len(p.queue) == 0 || p.fenced {
		return false, nil
	}
	f := p.queue[0]
	p.queue = p.queue[1:]
	if p.peer().full && !p.peer().fenced {
		p.peer().full = false
		defer p.peer().e.Pump()
	}
	if f.to != nil {
		var there Local
		for _, r := range f.to.Pieces {
			there.Pieces = append(there.Pieces, memoryOf(r))
		}
		there.Parts = f.to.Parts
		scatter(&there, f.data)
	}
	h, err := ParseHeader(f.b)
	if err != nil {
		return true, err
	}
	return true, p.e.Arrived(p.w.number, &h, f.b[HeaderLen:])
}

// read finishes the oldest Get; false: there is none.
func (p *wireEnd) read() bool {
	if len(p.reads) == 0 || p.fenced || p.broken {
		return false
	}
	r := p.reads[0]
	p.reads = p.reads[1:]
	var there Local
	for _, g := range r.from.Pieces {
		there.Pieces = append(there.Pieces, memoryOf(g))
	}
	there.Parts = r.from.Parts
	scatter(r.into, gather(&there))
	p.e.Got(r.token)
	return true
}

// fail says at this end that the wire is broken; the other end has to see for itself, and
// what is on its way may still arrive there.
func (p *wireEnd) fail() bool {
	if p.broken || p.fenced {
		return false
	}
	p.broken = true
	p.e.Broken(p.w.number, errCut)
	return true
}

func memoryOf(r Region) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&r.Addr))), r.Length)
}

func expose(b []byte) Region {
	return Region{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint64(len(b))}
}

func (p *Part) block(i int, b []byte) []byte { return b[p.Offset+i*p.Stride:][:p.Block] }

func gather(l *Local) (b []byte) {
	for _, p := range l.Parts {
		for i := range p.Count {
			b = append(b, p.block(i, l.Pieces[p.Piece])...)
		}
	}
	return b
}

func scatter(l *Local, b []byte) {
	for _, p := range l.Parts {
		for i := range p.Count {
			b = b[copy(p.block(i, l.Pieces[p.Piece]), b):]
		}
	}
}

// pair is two endpoints, and what has happened to them.
type pair struct {
	ends  [2]*Endpoint
	wires []*wire
	ran   [2][]string // handlers, by end
	done  [2][]string // messages that are done, by their sender
	err   error
}

func newPair(handlers ...Handler) *pair {
	p := &pair{}
	for i := range p.ends {
		note := func(e *Endpoint, stream uint32, arg uint64, payload []byte) error {
			p.ran[i] = append(p.ran[i], fmt.Sprintf("%d:%d%s", stream, arg, payload))
			return nil
		}
		p.ends[i] = New(Config{Handlers: append([]Handler{note}, handlers...)})
	}
	return p
}

func (p *pair) wire() *wire {
	w := newWire(uint32(len(p.wires)), p.ends[0], p.ends[1])
	p.wires = append(p.wires, w)
	if err := w.add(); err != nil {
		p.err = errors.Join(p.err, err)
	}
	return w
}

func (p *pair) send(from int, stream uint32, arg uint64, payload string) bool {
	ok, err := p.ends[from].Send(&Message{Stream: stream, Arg: arg, Payload: []byte(payload), Done: func(err error) {
		p.done[from] = append(p.done[from], fmt.Sprintf("%d:%d %v", stream, arg, err))
	}})
	if err != nil {
		p.err = errors.Join(p.err, err)
	}
	return ok
}

// settle lets everything arrive that is on its way.
func (p *pair) settle() {
	for moved := true; moved; {
		moved = false
		for _, w := range p.wires {
			for _, e := range w.ends {
				for {
					some, err := e.deliver()
					if err != nil {
						p.err = errors.Join(p.err, err)
						return
					}
					if some = some || e.read(); !some {
						break
					}
					moved = true
				}
			}
		}
		for _, e := range p.ends {
			e.Quiet()
		}
	}
}
