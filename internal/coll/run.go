package coll

import (
	"errors"
	"fmt"
	"unsafe"
)

// Message is a message that is declared once and started many times. It may be used by one
// goroutine at a time.
type Message interface {
	// Start begins the message. It never blocks.
	Start() error
	// Test says whether the message is complete. It never blocks.
	Test() (bool, error)
	// Close releases its memory, even if the message is not complete.
	Close() error
}

// Carrier declares the messages of a group. Messages from one member to another match in the order
// in which they are started, without tags. The parts are sent as one message, and received into
// as many parts of the same lengths; their memory belongs to the message until it is complete. If
// a message and its receive differ in length, the receive fails.
type Carrier interface {
	DeclareSend(to int, parts ...[]byte) (Message, error)
	DeclareReceive(from int, parts ...[]byte) (Message, error)
}

// ErrActive means that the run to be started is still in progress.
var ErrActive = errors.New("coll: the run is in progress")

// ErrBroken means that the run to be started has failed: the members no longer agree on which
// messages have been sent. The only remaining call is Close.
var ErrBroken = errors.New("coll: the run has already failed")

// Run executes one schedule many times, over messages that it declares once. It may be used by one
// goroutine at a time.
//
// A run that fails tells the other members as far as the schedule allows: it starts all its
// remaining messages, marked as faulty, and returns its error without waiting. A member that
// receives such a message does the same. So every member that depends on the failed part gets an
// error instead of waiting forever; a member that has already finished gets none.
type Run struct {
	rounds  []runRound
	combine func(dst, a, b []byte)
	header  Header
	at      int  // round
	begun   bool // its messages are started
	left    int  // its messages that are not complete
	state   runState
}

type runState uint8

const (
	runIdle runState = iota
	runActive
	runBroken
	runClosed
)

type runRound struct {
	messages []runMessage // receives first
	local    []runStep
}

type runMessage struct {
	Message
	header  []byte // 16 bytes, before the payload
	peer    int
	receive bool
	started bool
	over    bool
}

type runStep struct {
	dst, a, b []byte // b is nil: a copy
}

// ScratchSize returns the bytes of scratch that [NewRun] needs for the schedule: its Tmp, and a
// header for each message.
func ScratchSize(s *Schedule) int {
	n := headersAt(s)
	for _, round := range s.Rounds {
		for i := range round {
			if round[i].Kind <= Receive {
				n += HeaderSize
			}
		}
	}
	return n
}

// headersAt is the offset of the headers in the scratch.
func headersAt(s *Schedule) int { return (s.Tmp + tmpAlign - 1) &^ (tmpAlign - 1) }

// NewRun declares the messages of the schedule. In, out and scratch are the buffers that the
// schedule refers to; scratch has [ScratchSize] bytes. They belong to the run from Start until it
// is complete, and after an error until Close. Combine sets dst to a op b, all of one length; dst
// is a, or b, or overlaps neither. It may be nil for a schedule that combines nothing. The
// schedule is not retained.
//
// Errors: [ErrShape] if a buffer is too short; those of the carrier. After an error nothing is
// declared.
func NewRun(c Carrier, s *Schedule, in, out, scratch []byte, combine func(dst, a, b []byte)) (*Run, error) {
	if need := ScratchSize(s); len(scratch) < need {
		return nil, fmt.Errorf("%w: %d bytes of scratch, need %d", ErrShape, len(scratch), need)
	}
	m := memory{buffers: [...][]byte{In: in, Out: out, Tmp: scratch[:s.Tmp]}, headers: scratch[headersAt(s):]}
	r := &Run{combine: combine, rounds: make([]runRound, len(s.Rounds))}
	for i, round := range s.Rounds {
		if err := r.rounds[i].compile(c, round, &m, combine != nil); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// memory resolves the references of a schedule.
type memory struct {
	buffers [3][]byte
	headers []byte // not assigned yet
}

func (m *memory) bytes(r Ref) ([]byte, error) {
	if r.Len == 0 {
		return nil, nil
	}
	buf := m.buffers[r.Buf]
	if r.Off < 0 || r.Len < 0 || r.Len > len(buf) || r.Off > len(buf)-r.Len {
		return nil, fmt.Errorf("%w: bytes %d to %d of %v, which has %d", ErrShape, r.Off, r.Off+r.Len, r.Buf, len(buf))
	}
	return buf[r.Off : r.Off+r.Len : r.Off+r.Len], nil
}

func (d *runRound) compile(c Carrier, round []Step, m *memory, combines bool) error {
	n := 0
	for i := range round {
		if round[i].Kind <= Receive {
			n++
		}
	}
	d.messages = make([]runMessage, 0, n)
	d.local = make([]runStep, 0, len(round)-n)
	// Receives first, so that senders find them started more often.
	for _, kind := range [...]StepKind{Receive, Send} {
		for i := range round {
			if round[i].Kind == kind {
				if err := d.declare(c, &round[i], m); err != nil {
					return err
				}
			}
		}
	}
	for i := range round {
		step := &round[i]
		if step.Kind <= Receive {
			continue
		}
		dst, errDst := m.bytes(step.Dst)
		a, errA := m.bytes(step.A)
		var b []byte
		var errB error
		if step.Kind == Combine {
			if b, errB = m.bytes(step.B); !combines {
				errB = fmt.Errorf("%w: no function to combine with", ErrShape)
			}
		}
		if err := errors.Join(errDst, errA, errB); err != nil {
			return err
		}
		if step.Kind == Copy && unsafe.SliceData(dst) == unsafe.SliceData(a) {
			continue // in place
		}
		d.local = append(d.local, runStep{dst, a, b})
	}
	return nil
}

// declare declares one message: the header, then the payload unless it is empty.
func (d *runRound) declare(c Carrier, step *Step, m *memory) error {
	ref, declare := step.A, c.DeclareSend
	if step.Kind == Receive {
		ref, declare = step.Dst, c.DeclareReceive
	}
	payload, err := m.bytes(ref)
	if err != nil {
		return err
	}
	header := m.headers[:HeaderSize:HeaderSize]
	m.headers = m.headers[HeaderSize:]
	var message Message
	if len(payload) == 0 {
		message, err = declare(step.Peer, header)
	} else {
		message, err = declare(step.Peer, header, payload)
	}
	if err != nil {
		return &PeerError{step.Kind, step.Peer, err}
	}
	d.messages = append(d.messages, runMessage{Message: message, header: header, peer: step.Peer, receive: step.Kind == Receive})
	return nil
}

// Start begins the collective by starting its first messages. The header's sequence and signature
// precede every message, and received messages must have the same; its fault is ignored. Errors:
// [ErrActive], [ErrBroken]; those of Step.
func (r *Run) Start(h Header) error {
	switch r.state {
	case runActive:
		return ErrActive
	case runBroken, runClosed:
		return ErrBroken
	}
	h.Fault = 0
	r.header, r.at, r.begun, r.state = h, 0, false, runActive
	_, err := r.Step()
	return err
}

// Step makes progress on the collective and says whether it is complete. It never blocks, and does
// not allocate unless it fails. After an error the run is broken. A run that has not been started
// is complete.
//
// Errors: [MismatchError], [PeerError].
func (r *Run) Step() (done bool, err error) {
	if r.state != runActive {
		return true, nil
	}
	for ; r.at < len(r.rounds); r.at++ {
		d := &r.rounds[r.at]
		if !r.begun {
			if err := r.begin(d); err != nil {
				return true, err
			}
		}
		if err := r.test(d); err != nil {
			return true, err
		}
		if r.left > 0 {
			return false, nil
		}
		for i := range d.local {
			s := &d.local[i]
			if s.b == nil {
				copy(s.dst, s.a)
			} else {
				r.combine(s.dst, s.a, s.b)
			}
		}
		r.begun = false
	}
	r.state = runIdle
	return true, nil
}

// begin starts the messages of a round.
func (r *Run) begin(d *runRound) error {
	r.begun, r.left = true, len(d.messages)
	for i := range d.messages {
		d.messages[i].started, d.messages[i].over = false, false
	}
	for i := range d.messages {
		m := &d.messages[i]
		if !m.receive {
			_, _ = r.header.AppendBinary(m.header[:0])
		}
		if err := m.Start(); err != nil {
			return r.fail(m, err)
		}
		m.started = true
	}
	return nil
}

// test tests the messages of a round that are not complete.
func (r *Run) test(d *runRound) error {
	if r.left == 0 {
		return nil
	}
	for i := range d.messages {
		m := &d.messages[i]
		if m.over {
			continue
		}
		over, err := m.Test()
		if err != nil {
			return r.fail(m, err)
		}
		if !over {
			continue
		}
		m.over = true
		r.left--
		if m.receive {
			if got, _ := ParseHeader(m.header); got != r.header {
				return r.mismatch(m, got)
			}
		}
	}
	return nil
}

// fail handles an error of the carrier.
func (r *Run) fail(m *runMessage, err error) error {
	op := Send
	if m.receive {
		op = Receive
	}
	failed := &PeerError{op, m.peer, err}
	r.abandon(Header{r.header.Sequence, uint32(m.peer) + 1, faultUnknown})
	return failed
}

// mismatch handles a header that differs from ours.
func (r *Run) mismatch(m *runMessage, got Header) error {
	e := &MismatchError{From: m.peer, Via: m.peer, Want: r.header, Got: got}
	fault := Header{got.Sequence, uint32(m.peer) + 1, got.Signature}
	switch {
	case got.Fault == 0:
	case got.Sequence == r.header.Sequence && got.Signature == r.header.Signature:
		// The call that the peer reports as wrong is ours too: the peer is the one that differs.
		e.Got.Signature = faultOther
		fault.Signature = faultOther
	default:
		e.From, e.Failed = int(got.Fault-1), got.Signature == faultUnknown
		fault = got
	}
	r.abandon(fault)
	return e
}

// abandon starts the rest of the schedule without waiting, so that the others need not wait either.
// Its errors are ignored, as they have the same cause.
func (r *Run) abandon(fault Header) {
	r.state = runBroken
	for ; r.at < len(r.rounds); r.at++ {
		d := &r.rounds[r.at]
		for i := range d.messages {
			m := &d.messages[i]
			if r.begun && m.started {
				continue
			}
			if !m.receive {
				_, _ = fault.AppendBinary(m.header[:0])
			}
			_ = m.Start() // the run has its error already
		}
		r.begun = false
	}
}

// Close closes all messages, including those in progress.
func (r *Run) Close() error {
	if r.state == runClosed {
		return nil
	}
	r.state = runClosed
	var errs []error
	for i := range r.rounds {
		for _, m := range r.rounds[i].messages {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
