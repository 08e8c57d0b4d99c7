package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi"
)

// carrierTCP is the carrier of impi that is no provider of verbs: its own packets over
// the connections of a job.
const carrierTCP = "tcp"

// impiRun is one table of results: one pattern over one carrier.
type impiRun struct {
	rounds
	node    *node
	carrier string
	missing string // why there is no such carrier; empty: there is
}

func (r *impiRun) unavailable() string { return r.missing }

// CarrierError: messages would go over another carrier than is to be measured.
type CarrierError struct{ Got, Want string }

func (e *CarrierError) Error() string {
	return fmt.Sprintf("messages go over %s, not over %s", e.Got, e.Want)
}

// measure makes a job of the node's ranks, carries out the rounds, and gives the
// results.
func (r *impiRun) measure(ctx context.Context, job exchanger, w *writer, timer float64, progress func(string)) error {
	j, err := r.join(ctx)
	if _, err := share(ctx, job, struct{}{}, err); err != nil {
		return err
	}
	if d, ok := onlyDevice(r.carrier); ok && w.active {
		w.device(d)
	}
	ms, err := r.measureBy(func(m *measurement) error {
		progress(fmt.Sprint(r.carrier, " impi ", m.pattern, " ", formatSize(int64(m.bytes))))
		if err := takeChecked(ctx, job, m, newIMPISeries(j.World(), m)); err != nil {
			return fmt.Errorf("impi over %s: %s of %d bytes: %w", r.carrier, m.pattern, m.bytes, err)
		}
		return nil
	})
	if err != nil {
		return err // without closing: that would wait for a peer who may be waiting for us
	}
	results := make([]Result, len(ms))
	for i, m := range ms {
		results[i] = m.result(layerIMPI, r.carrier, timer)
		results[i].Suite = suiteIMPI
	}
	w.results(results)
	return j.Close(ctx)
}

// joinTries bounds how often a job is made anew because its queue pair has not proved
// itself in the time that it has for that: a rank may have got no CPU.
const joinTries = 5

// join makes the job, all of whose messages go over the carrier.
func (r *impiRun) join(ctx context.Context) (*impi.Job, error) {
	c := impi.Config{Providers: []string{}, Log: onlyWarnings()}
	if r.carrier != carrierTCP {
		c.Providers = []string{r.carrier}
	}
	for try := 1; ; try++ {
		if try == joinTries {
			c.Log = nil // it tells why
		}
		j, err := impi.FromNode(ctx, r.node.Node, c)
		if err != nil {
			return nil, err
		}
		// Either end has the same answer.
		got := cmp.Or(j.Provider(1-j.World().Rank()), carrierTCP)
		if got == r.carrier {
			return j, nil
		}
		if err := j.Close(ctx); err != nil || try == joinTries {
			return nil, errors.Join(&CarrierError{got, r.carrier}, err)
		}
	}
}

// Tags of messages and of what acknowledges a window of them.
const (
	impiTag    = 1
	impiAckTag = 2
)

// impiMessages is what this rank sends and receives: one buffer of each, which all
// messages of a window share, as in the programs of MPI.
type impiMessages struct {
	comm    *impi.Comm
	other   int
	op      string
	bytes   int
	out, in []byte // in with its guard
	arrives bool   // something comes in
}

// newIMPISeries makes the series of a measurement between two ranks.
func newIMPISeries(c *impi.Comm, m *measurement) channelSeries {
	s := impiMessages{comm: c, other: 1 - c.Rank(), op: m.op.name, bytes: m.bytes, arrives: true}
	// Of a page or more, both begin where a page does.
	s.out = make([]byte, roundUp(m.bytes, pageBytes))[:m.bytes]
	s.in = make([]byte, roundUp(m.bytes+guard, pageBytes))[:m.bytes+guard]
	if m.pattern == patternLat {
		return &impiPingPong{s}
	}
	w := &impiWindows{impiMessages: s, ack: make([]byte, 1)}
	if m.pattern == patternBiBW || c.Rank() == 0 {
		w.sends = make([]impi.Request, m.windowed)
	}
	if m.pattern == patternBiBW || c.Rank() == 1 {
		w.recvs = make([]impi.Request, m.windowed)
	}
	w.arrives = w.recvs != nil
	return w
}

func (s *impiMessages) prepare() {
	fillPattern(s.out, seedFor(s.comm.Rank(), s.bytes, s.op))
	fillGuard(s.in)
}

func (s *impiMessages) check() error {
	if !s.arrives {
		return nil
	}
	return checkPattern(s.op, s.in, s.bytes, seedFor(s.other, s.bytes, s.op))
}

// over, finish and close: nothing of a run is left when it returns.
func (s *impiMessages) over() error   { return nil }
func (s *impiMessages) finish() error { return nil }
func (s *impiMessages) close() error  { return nil }

// impiPingPong is a message to and fro, sent and received by blocking calls.
type impiPingPong struct{ impiMessages }

func (s *impiPingPong) run(n int, samples []int64) error {
	ctx := context.Background()
	in := s.in[:s.bytes]
	t := startLaps(samples)
	for i := range n {
		if s.comm.Rank() == 0 {
			if err := s.comm.Send(ctx, s.out, s.other, impiTag); err != nil {
				return err
			}
		}
		if _, err := s.comm.Recv(ctx, in, s.other, impiTag); err != nil {
			return err
		}
		if s.comm.Rank() != 0 {
			if err := s.comm.Send(ctx, s.out, s.other, impiTag); err != nil {
				return err
			}
		}
		t.lap(i)
	}
	return nil
}

// impiWindows starts a window of requests, one way or both, waits for all of them, and
// has rank 1 say that it has all: the last byte counts.
type impiWindows struct {
	impiMessages
	sends, recvs []impi.Request // nil: none that way
	ack          []byte
}

func (s *impiWindows) run(n int, _ []int64) error {
	ctx := context.Background()
	for range n {
		if err := s.window(ctx); err != nil {
			return err
		}
		if s.comm.Rank() == 1 {
			if err := s.comm.Send(ctx, s.ack, s.other, impiAckTag); err != nil {
				return err
			}
		} else if _, err := s.comm.Recv(ctx, s.ack, s.other, impiAckTag); err != nil {
			return err
		}
	}
	return nil
}

func (s *impiWindows) window(ctx context.Context) (err error) {
	in := s.in[:s.bytes]
	for i := range s.recvs {
		if s.recvs[i], err = s.comm.Irecv(in, s.other, impiTag); err != nil {
			return err
		}
	}
	for i := range s.sends {
		if s.sends[i], err = s.comm.Isend(s.out, s.other, impiTag); err != nil {
			return err
		}
	}
	if err := impi.WaitAll(ctx, nil, s.sends...); err != nil {
		return err
	}
	return impi.WaitAll(ctx, nil, s.recvs...)
}
