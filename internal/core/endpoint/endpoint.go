package endpoint

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Window is how many messages of a stream a sender may have sent that have not been taken.
const Window = 64

// maxUnknown bounds the paths that a peer may have fenced before they were added here.
const maxUnknown = 64

// maxKept is up to how many bytes the copy of a payload is used again for later messages.
const maxKept = 4 << 10

// Handler runs for a message that has arrived. The payload is its own only until it returns.
// An error is the peer's fault: the endpoint dies of it.
type Handler func(e *Endpoint, stream uint32, arg uint64, payload []byte) error

// Config is what an endpoint needs to know.
type Config struct {
	Handlers []Handler           // by the number that a message has
	Room     func(stream uint32) // may be nil; a message of a stream that had no room has room now
	Changed  func(State, error)  // may be nil; the state has changed; the error is why
}

// State is that of an endpoint. See the package's documentation for how they follow each
// other.
type State uint8

// States of an endpoint.
const (
	Waiting State = iota // for a path
	Up
	Left
	Dead
	Closed
)

func (s State) String() string {
	return [...]string{"waiting for a path", "up", "left", "dead", "closed"}[s]
}

// Message is what [Endpoint.Send] sends. What is passed may be used again when Send has
// returned.
type Message struct {
	Stream  uint32
	Handler uint8
	Arg     uint64
	Payload []byte
	// Buffered: the payload is not copied, but left as it is until the message is done.
	Buffered bool
	// Done is called when the handler has run, or never will: with what the endpoint has
	// died of, ErrLeft or ErrClosed. May be nil.
	Done func(error)
}

// Endpoint is this process's end of its connection with a peer.
type Endpoint struct {
	cfg Config

	mu      sync.Mutex
	state   State
	err     error // why it is Left, Dead or Closed
	paths   []*way
	past    map[uint32]*way // fenced, until the peer has said so, too
	gone    map[uint32]bool // numbers of paths that are
	unknown map[uint32]bool // of them, those that have not been added here
	streams map[uint32]*stream
	gets    map[uint64]*get
	token   uint64
	notices []*notice // that the peer has not heard
	heard   []heard   // that the peer is to be told so
	leaving func(error)
	asked   []*stream // whose watermark the peer has asked for
	later   []func()  // to be called when the lock is free
}

// way is a path, and what becomes of it.
type way struct {
	number uint32
	path   Path
	fenced bool
	busy   bool // a frame of it is being handled
	owed   bool // RESUME is to be sent when that is over
}

// stream is both directions of a number.
type stream struct {
	number uint32

	out      *way          // that it is bound to
	held     bool          // until the peer has said RESUME for the way that it was bound to
	sent     uint32        // number of the last message
	acked    uint32        // of the last that is known to have been taken
	posted   uint32        // of the last on the way that it is bound to; at least acked
	kept     *[Window]kept // by their numbers: from acked to sent
	full     bool          // Send has answered that there is no room
	question bool          // the watermark is to be asked for when all is posted

	in    *way   // of the last message taken
	taken uint32 // number of it
	asked bool
}

// kept is a message that may have to be sent again.
type kept struct {
	header  Header
	payload []byte
	from    *Local // of a put
	to      *Remote
	done    func(error)
	room    []byte // for copies of payloads
}

// waits is how many messages of the stream are not known to have been taken.
func (s *stream) waits() uint32 { return s.sent - s.acked }

// message is what is kept of one of them.
func (s *stream) message(number uint32) *kept { return &s.kept[number%Window] }

type get struct {
	into   *Local
	from   *Remote
	done   func(error)
	way    *way
	posted bool
}

// notice is a frame of no stream, which is sent again on another path until it is heard.
type notice struct {
	header Header
	marks  []mark
	way    *way // nil: not sent
}

// heard is an answer to a notice, which goes the way that the notice came: if that breaks,
// the notice comes again.
type heard struct {
	way *way
	arg uint64
}

// New makes an endpoint without a path.
func New(cfg Config) *Endpoint {
	return &Endpoint{cfg: cfg, past: map[uint32]*way{}, gone: map[uint32]bool{}, unknown: map[uint32]bool{}, streams: map[uint32]*stream{}, gets: map[uint64]*get{}}
}

// do runs f with the lock held, and afterwards, without it, what f has put off: calls of
// the user's functions.
func (e *Endpoint) do(f func()) {
	e.mu.Lock()
	f()
	later := e.later
	e.later = nil
	e.mu.Unlock()
	for _, g := range later {
		g()
	}
}

// after has f called when the lock is free.
func (e *Endpoint) after(f func()) { e.later = append(e.later, f) }

// Send sends a message. It answers false, and has done nothing, if the stream has no room
// now; Config.Room is called when it has.
func (e *Endpoint) Send(m *Message) (bool, error) { return e.send(m, nil, nil) }

// Put writes bytes to memory of the peer, and then sends a message, which runs when all of
// them can be seen. The layouts, which must be of the same length, and the memory of from
// stay as they are until the message is done.
func (e *Endpoint) Put(from *Local, to *Remote, m *Message) (bool, error) {
	if err := same(from, to); err != nil {
		return false, err
	}
	return e.send(m, from, to)
}

func same(here *Local, there *Remote) error {
	n, err := here.Length()
	if err != nil {
		return err
	}
	m, err := there.Length()
	if err == nil && n != m {
		err = fmt.Errorf("%w: %d bytes here, %d at the peer", ErrRange, n, m)
	}
	return err
}

func (e *Endpoint) send(m *Message, from *Local, to *Remote) (bool, error) {
	if m.Stream >= MaxStreams || len(m.Payload) > MaxPayload {
		return false, fmt.Errorf("%w: %d bytes on stream %d; a message has at most %d, and streams are below %d", ErrRange, len(m.Payload), m.Stream, MaxPayload, MaxStreams)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.over(); err != nil {
		return false, err
	}
	s := e.stream(m.Stream)
	if s.kept == nil {
		s.kept = new([Window]kept)
	}
	if s.waits() == Window {
		s.full = true
		return false, nil
	}
	flags := uint16(0)
	if m.Done != nil || s.waits() == Window/2 {
		flags = FlagAsk
	}
	s.sent++
	k := s.message(s.sent)
	k.header = Header{Kind: KindMessage, Handler: m.Handler, Flags: flags, Stream: m.Stream, Number: s.sent, Arg: m.Arg, Length: uint32(len(m.Payload))}
	k.from, k.to, k.done, k.payload = from, to, m.Done, m.Payload
	if !m.Buffered {
		k.room = append(k.room[:0], m.Payload...)
		k.payload = k.room
	}
	e.push(s)
	return true, nil
}

// over is the error of what is begun at the end.
func (e *Endpoint) over() error {
	switch {
	case e.state >= Left:
		return e.err
	case e.leaving != nil:
		return ErrClosed
	}
	return nil
}

func (e *Endpoint) stream(number uint32) *stream {
	s := e.streams[number]
	if s == nil {
		s = &stream{number: number}
		e.streams[number] = s
	}
	return s
}

// push posts what the stream has and its way has room for.
func (e *Endpoint) push(s *stream) {
	if s.held || s.posted == s.sent && !s.question {
		return
	}
	if s.out == nil || s.out.fenced {
		if len(e.paths) == 0 {
			return
		}
		s.out = e.paths[int(s.number)%len(e.paths)]
	}
	for s.posted != s.sent {
		k := s.message(s.posted + 1)
		k.header.Watermark = s.taken
		posted := false
		if k.from == nil {
			posted = s.out.path.Post(&k.header, k.payload)
		} else {
			posted = s.out.path.Put(k.from, k.to, &k.header, k.payload)
		}
		if !posted {
			return
		}
		s.posted++
		s.asked = false
	}
	if s.question && (s.waits() == 0 || s.out.path.Post(&Header{Kind: KindAck, Flags: FlagAsk, Stream: s.number, Watermark: s.taken}, nil)) {
		s.question = false
	}
}

// Get reads bytes from memory of the peer into memory of this process; the layouts, which
// must be of the same length, stay as they are until done is called.
func (e *Endpoint) Get(into *Local, from *Remote, done func(error)) error {
	err := same(into, from)
	if err != nil {
		return err
	}
	e.do(func() {
		if err = e.over(); err != nil {
			return
		}
		e.token++
		e.gets[e.token] = &get{into: into, from: from, done: done}
		e.pump()
	})
	return err
}

// Map returns memory of the peer that this process can load and store, or nil.
func (e *Endpoint) Map(r Region) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.paths {
		if b := w.path.Map(r); b != nil {
			return b
		}
	}
	return nil
}

// pump posts what waits.
func (e *Endpoint) pump() {
	if len(e.paths) == 0 {
		return
	}
	e.heard = slices.DeleteFunc(e.heard, func(h heard) bool {
		return h.way.fenced || h.way.path.Post(&Header{Kind: KindHeard, Arg: h.arg}, nil)
	})
	for _, n := range e.notices {
		if n.way != nil && !n.way.fenced {
			continue
		}
		n.way = nil
		for _, w := range e.paths {
			if w.path.Post(&n.header, appendMarks(nil, n.marks)) {
				n.way = w
				break
			}
		}
	}
	for _, token := range slices.Sorted(maps.Keys(e.gets)) {
		if g := e.gets[token]; !g.posted {
			g.way = e.paths[0]
			g.posted = g.way.path.Get(g.into, g.from, token)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(e.streams)) {
		e.push(e.streams[number])
	}
	e.depart()
}

// way returns the path of a number that is open.
func (e *Endpoint) way(number uint32) *way {
	for _, w := range e.paths {
		if w.number == number {
			return w
		}
	}
	return nil
}

// Pump is called by a driver that has room again for what it has refused.
func (e *Endpoint) Pump() { e.do(func() { e.pump() }) }

// Add gives the endpoint a path. Its number is the same at both ends, and was never that of
// another path of these two. It is an error, and the path is fenced, if the peer has already
// fenced it, or the endpoint is at its end.
func (e *Endpoint) Add(number uint32, p Path) (err error) {
	e.do(func() {
		switch {
		case e.state > Left: // to one that has left its BYE is still answered
			err = e.err
		case e.gone[number] || e.past[number] != nil || e.way(number) != nil:
			err = fmt.Errorf("%w: path %d has been there", ErrProtocol, number)
		}
		if err != nil {
			delete(e.unknown, number)
			p.Fence()
			return
		}
		e.paths = append(e.paths, &way{number: number, path: p})
		if e.state == Waiting {
			e.change(Up, nil)
		}
		e.pump()
	})
	return err
}

func (e *Endpoint) change(s State, err error) {
	e.state = s
	if s >= Left {
		e.err = err
	}
	if f := e.cfg.Changed; f != nil {
		e.after(func() { f(s, err) })
	}
}

// Broken says that a path carries nothing any more.
func (e *Endpoint) Broken(number uint32, why error) {
	e.do(func() {
		if w := e.way(number); w != nil {
			e.fence(w, why)
			e.pump()
		}
	})
}

// fence ends a path, and tells the peer as soon as no frame of it is being handled.
func (e *Endpoint) fence(w *way, why error) {
	w.fenced = true
	e.paths = slices.DeleteFunc(e.paths, func(o *way) bool { return o == w })
	e.past[w.number] = w
	w.path.Fence()
	for _, s := range e.streams {
		if s.out == w {
			s.posted, s.held = s.acked, s.waits() > 0
		}
	}
	for _, g := range e.gets {
		if g.way == w {
			g.way, g.posted = nil, false
		}
	}
	if e.state > Up {
		return
	}
	if len(e.paths) == 0 {
		e.change(Waiting, why)
	}
	if w.owed = w.busy; !w.owed {
		e.resume(w)
	}
}

// resume tells the peer that a path is fenced, and what has been taken.
func (e *Endpoint) resume(w *way) {
	w.owed = false
	n := &notice{}
	for _, number := range slices.Sorted(maps.Keys(e.streams)) {
		if s := e.streams[number]; s.in == w {
			n.marks = append(n.marks, mark{number, s.taken})
		}
	}
	n.header = Header{Kind: KindResume, Arg: uint64(w.number), Length: uint32(len(n.marks) * markLen)}
	e.notices = append(e.notices, n)
}

// resumed: the peer has fenced a path, and has taken what the marks say.
func (e *Endpoint) resumed(number uint32, marks []mark) error {
	if e.gone[number] {
		return nil // said again
	}
	w := e.past[number]
	if w == nil {
		if w = e.way(number); w != nil {
			e.fence(w, fmt.Errorf("path %d: fenced by the peer", number))
		} else { // it has not been added here, and will not be
			if len(e.unknown) == maxUnknown {
				return fmt.Errorf("%w: resume of path %d, and of %d others that are not known here", ErrProtocol, number, maxUnknown)
			}
			e.unknown[number] = true
			e.resume(&way{number: number})
		}
	}
	for _, m := range marks {
		s := e.streams[m.stream]
		if w == nil || s == nil || s.out != w && !s.settled(m.watermark) {
			return fmt.Errorf("%w: stream %d, which did not use path %d", ErrProtocol, m.stream, number)
		}
		if err := e.acknowledge(s, m.watermark); err != nil {
			return err
		}
	}
	for _, s := range e.streams {
		if w != nil && s.out == w {
			s.held = false
		}
	}
	delete(e.past, number)
	e.gone[number] = true
	return nil
}

// settled says whether everything up to a watermark is known to have been taken.
func (s *stream) settled(watermark uint32) bool {
	d := int32(watermark - s.acked)
	return d <= 0 && d > -1<<30
}

// acknowledge forgets the messages that the peer has taken.
func (e *Endpoint) acknowledge(s *stream, watermark uint32) error {
	if s.settled(watermark) {
		return nil // of a frame that was on its way for longer
	}
	if watermark-s.acked > s.waits() {
		return fmt.Errorf("%w: %d messages of stream %d taken, of which %d were sent", ErrProtocol, watermark, s.number, s.sent)
	}
	for s.acked != watermark {
		s.acked++
		if s.posted == s.acked-1 { // taken of another way
			s.posted = s.acked
		}
		k := s.message(s.acked)
		if done := k.done; done != nil {
			e.after(func() { done(nil) })
		}
		if cap(k.room) > maxKept {
			k.room = nil
		}
		*k = kept{room: k.room}
	}
	if s.full {
		s.full = false
		if f := e.cfg.Room; f != nil {
			e.after(func() { f(s.number) })
		}
	}
	return nil
}

// Arrived hands over a frame that has come on a path; the driver does not call it again for
// that path before it has returned. What it returns is the peer's fault, of which the
// endpoint has died: the driver may drop the path.
func (e *Endpoint) Arrived(number uint32, h *Header, payload []byte) (err error) {
	var run Handler
	var w *way
	e.do(func() {
		if w = e.way(number); w == nil {
			return // it came behind the fence
		}
		if e.state == Left {
			if h.Kind == KindBye || h.Kind == KindResume {
				e.heard = append(e.heard, heard{w, h.Arg})
				e.pump()
			}
			return
		}
		if run, err = e.accept(w, h, payload); err != nil {
			e.end(Dead, err)
		} else if run != nil {
			w.busy = true
		} else if h.Kind == KindAck {
			e.depart()
		} else {
			e.pump()
		}
	})
	if run == nil || err != nil {
		return err
	}
	err = run(e, h.Stream, h.Arg, payload)
	e.do(func() {
		w.busy = false
		if e.state >= Left {
			return
		}
		if err != nil {
			e.end(Dead, err)
			return
		}
		s := e.stream(h.Stream)
		s.taken, s.in = h.Number, w
		if h.Flags&FlagAsk != 0 {
			e.ask(s)
		}
		if w.owed {
			e.resume(w)
			e.pump()
		}
		e.depart()
	})
	return err
}

// accept takes a frame, and returns the handler that is to run for it.
func (e *Endpoint) accept(w *way, h *Header, payload []byte) (Handler, error) {
	switch h.Kind {
	case KindResume:
		marks, err := parseMarks(payload)
		if err == nil && h.Arg >= ArgBye {
			err = fmt.Errorf("%w: resume of path %#x", ErrProtocol, h.Arg)
		}
		if err == nil {
			err = e.resumed(uint32(h.Arg), marks)
		}
		e.heard = append(e.heard, heard{w, h.Arg})
		return nil, err
	case KindBye:
		e.heard = append(e.heard, heard{w, ArgBye})
		e.end(Left, ErrLeft)
		return nil, nil
	case KindHeard:
		e.notices = slices.DeleteFunc(e.notices, func(n *notice) bool {
			return n.header.Arg == h.Arg
		})
		if h.Arg == ArgBye && e.leaving != nil {
			done := e.leaving
			e.leaving = nil
			e.after(func() { done(nil) })
			e.end(Closed, ErrClosed)
		}
		return nil, nil
	}
	s := e.streams[h.Stream]
	if s == nil { // it is kept when one of its messages has been taken
		s = &stream{number: h.Stream}
	}
	if err := e.acknowledge(s, h.Watermark); err != nil {
		return nil, err
	}
	if h.Kind == KindAck {
		if h.Flags&FlagAsk != 0 && s.in != nil {
			e.ask(s)
		}
		return nil, nil
	}
	switch {
	case h.Number != s.taken+1:
		return nil, fmt.Errorf("%w: message %d of stream %d behind %d", ErrProtocol, h.Number, h.Stream, s.taken)
	case int(h.Handler) >= len(e.cfg.Handlers) || e.cfg.Handlers[h.Handler] == nil:
		return nil, fmt.Errorf("%w: message for handler %d, there are %d", ErrProtocol, h.Handler, len(e.cfg.Handlers))
	}
	return e.cfg.Handlers[h.Handler], nil
}

func (e *Endpoint) ask(s *stream) {
	if !s.asked {
		s.asked = true
		e.asked = append(e.asked, s)
	}
}

// Quiet is called by a driver that has handed over what has arrived for the moment: the
// watermarks that were asked for, and that no message has carried meanwhile, are told.
func (e *Endpoint) Quiet() {
	e.do(func() {
		e.asked = slices.DeleteFunc(e.asked, func(s *stream) bool {
			if !s.asked {
				return true
			}
			// The way that the message came: if that is fenced, RESUME tells.
			if s.in.fenced || s.in.path.Post(&Header{Kind: KindAck, Stream: s.number, Watermark: s.taken}, nil) {
				s.asked = false
				return true
			}
			return false
		})
	})
}

// Got says that what a Get has asked for is there.
func (e *Endpoint) Got(token uint64) {
	e.do(func() {
		if g := e.gets[token]; g != nil && g.posted {
			delete(e.gets, token)
			e.after(func() { g.done(nil) })
			e.depart()
		}
	})
}

// Leave ends the endpoint in order: when everything that was sent has been taken, the peer is
// told that nothing more will be, and done is called. What is begun from now on fails with
// [ErrClosed].
func (e *Endpoint) Leave(done func(error)) {
	e.do(func() {
		if err := e.over(); err != nil {
			if e.state == Left {
				err = nil
			}
			e.after(func() { done(err) })
			return
		}
		e.leaving = done
		for _, s := range e.streams {
			if s.waits() > 0 {
				s.question = true
				s.message(s.sent).header.Flags |= FlagAsk // if it is to be sent again
			}
		}
		e.depart()
		e.pump()
	})
}

// depart says BYE when nothing is under way.
func (e *Endpoint) depart() {
	if e.leaving == nil || len(e.gets) > 0 || slices.ContainsFunc(e.notices, func(n *notice) bool { return n.header.Kind == KindBye }) {
		return
	}
	for _, s := range e.streams {
		if s.waits() > 0 {
			return
		}
	}
	e.notices = append(e.notices, &notice{header: Header{Kind: KindBye, Arg: ArgBye}})
	e.pump()
}

// Fail ends the endpoint: the peer is dead, or no path has come for too long.
func (e *Endpoint) Fail(why error) { e.do(func() { e.end(Dead, why) }) }

// Close ends the endpoint at once; what is under way fails with [ErrClosed].
func (e *Endpoint) Close() { e.do(func() { e.end(Closed, ErrClosed) }) }

// end fences all paths, and fails what is under way.
func (e *Endpoint) end(s State, why error) {
	if e.state >= Left {
		if s == Closed && e.state != Closed {
			e.change(Closed, why)
			e.fenceAll()
		}
		return
	}
	leaving := e.leaving
	e.leaving = nil
	e.change(s, why)
	if s != Left { // otherwise the peer's BYE is still to be answered
		e.fenceAll()
		e.notices = nil
	}
	for _, number := range slices.Sorted(maps.Keys(e.streams)) {
		for s := e.streams[number]; s.acked != s.sent; {
			s.acked++
			if done := s.message(s.acked).done; done != nil {
				e.after(func() { done(why) })
			}
		}
	}
	for _, token := range slices.Sorted(maps.Keys(e.gets)) {
		g := e.gets[token]
		e.after(func() { g.done(why) })
	}
	e.streams, e.gets, e.asked = map[uint32]*stream{}, map[uint64]*get{}, nil
	if leaving != nil {
		if s == Left { // both at once
			why = nil
		}
		e.after(func() { leaving(why) })
	}
}

func (e *Endpoint) fenceAll() {
	for _, w := range e.paths {
		w.fenced = true
		w.path.Fence()
	}
	e.paths = nil
}

// State returns the state, and the error why it is Left, Dead or Closed.
func (e *Endpoint) State() (State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state, e.err
}
