package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/qmp"
)

// soakRecord is what a rank of a soak says of itself at its end: one line of JSON.
type soakRecord struct {
	Rank       int              `json:"rank"`
	Operations map[string]int64 `json:"operations"` // by layer, each checked byte by byte
	Bytes      int64            `json:"bytes"`      // received
	Error      string           `json:"error,omitempty"`
	Mourned    bool             `json:"mourned,omitempty"` // the error tells of a peer that is gone
	Corrupt    bool             `json:"corrupt,omitempty"` // it tells of wrong bytes
	Leaks      string           `json:"leaks,omitempty"`
}

const (
	soakStream = 40000            // of the messages of channels; package qmp takes those from 0 on
	soakClose  = 20 * time.Second // bounds the end of the messages of a job whose peers may be gone
	soakUp     = "up\n"           // what a rank writes first, when it is connected with all others
)

// soakSizes are those of messages of channels: inline, in the ring, straight, in chunks.
var soakSizes = []int{1, 8, 56, 1000, 4096, 9000, 70_000, 1 << 20}

// soakRank is one rank of a job: mixed traffic on all layers until rank 0 says that
// d is over, or an error ends it. What it has done goes to w.
func soakRank(ctx context.Context, w io.Writer, d time.Duration, seed uint64) error {
	held := leak.Watch()
	s := soaker{record: soakRecord{Operations: map[string]int64{}}, rng: rand.New(rand.NewPCG(seed, 1))}
	err := s.run(ctx, w, d)
	r := &s.record
	if err != nil {
		var corrupt *CorruptError
		r.Error, r.Corrupt, r.Mourned = err.Error(), errors.As(err, &corrupt), mourns(err)
	}
	if err := held(); err != nil {
		r.Leaks = err.Error()
	}
	return json.NewEncoder(w).Encode(r)
}

// mourns says whether an error tells that a peer is gone.
func mourns(err error) bool {
	for _, gone := range []error{channel.ErrPeerDied, channel.ErrPeerLeft, channel.ErrUnreachable, channel.ErrAborted, boot.ErrDied} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// soaker is a rank with all layers.
type soaker struct {
	record soakRecord
	rng    *rand.Rand // the same at all ranks
	node   *channel.Node
	world  *channel.Group
	impi   *impi.Job
	qmp    *qmp.Machine
	rings  []*soakRing // of each size, in memory of Alloc, then of the heap
	turn   int
}

// run joins, makes traffic, and takes all down.
func (s *soaker) run(ctx context.Context, w io.Writer, d time.Duration) (err error) {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	// After a death there is no peer to say goodbye to: that is no news.
	end := func(what string, do func() error) {
		if e := do(); e != nil && err == nil {
			err = fmt.Errorf("%s: %w", what, e)
		}
	}
	if s.node, err = channel.Join(ctx, channel.WithLogger(quiet)); err != nil {
		return err
	}
	s.record.Rank = s.node.Rank()
	defer end("close the node", s.node.Close)
	if s.world, err = s.node.World(ctx); err != nil {
		return err
	}
	if s.qmp, err = qmp.New(s.node, nil, qmp.WithContext(ctx)); err != nil {
		return err
	}
	defer end("finalize", s.qmp.Finalize)
	if s.impi, err = impi.FromNode(ctx, s.node, impi.Config{Log: quiet}); err != nil {
		return err
	}
	defer end("close the job of impi", func() error {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), soakClose)
		defer cancel()
		return s.impi.Close(within)
	})
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if _, err := io.WriteString(w, soakUp); err != nil {
		return err
	}
	return s.traffic(ctx, time.Now().Add(d))
}

// connect has every pair of ranks talk on all layers: while a connection is being made, which
// has a second for a provider to prove itself, a lost packet may mean that it does not.
func (s *soaker) connect(ctx context.Context) error {
	for _, memory := range memoryKinds[:2] {
		for i, size := range soakSizes {
			r, err := s.newRing(memory, size, soakStream+i)
			if err != nil {
				return err
			}
			s.rings = append(s.rings, r)
			if err := s.once(r); err != nil {
				return err
			}
		}
	}
	for k := range s.node.Size() {
		if err := s.once(s.collective(coll.Broadcast, 1000, k)); err != nil {
			return err
		}
		if _, err := s.shift(ctx, k, 1000, 0); err != nil {
			return err
		}
	}
	return s.qmp.DefaultComm().Barrier()
}

// traffic does one operation after the other until rank 0 finds that the time is over.
func (s *soaker) traffic(ctx context.Context, until time.Time) error {
	for {
		over := []int64{0}
		if s.node.Rank() == 0 && !time.Now().Before(until) {
			over[0] = 1
		}
		if err := s.world.Run(ctx, channel.Allreduce(channel.Max, over, over)); err != nil {
			return fmt.Errorf("collectives: allreduce: %w", err)
		}
		if over[0] != 0 {
			return nil
		}
		for range 20 {
			s.turn++
			layer, n, err := s.operation(ctx)
			if err != nil {
				return fmt.Errorf("%s, operation %d: %w", layer, s.turn, err)
			}
			s.record.Operations[layer]++
			s.record.Bytes += int64(n)
		}
	}
}

// operation is the next one, the same at all ranks.
func (s *soaker) operation(ctx context.Context) (layer string, bytes int, err error) {
	rng := s.rng
	switch rng.IntN(6) {
	case 1, 2:
		kind, doubles := coll.Barrier+coll.Kind(rng.IntN(int(coll.Alltoall-coll.Barrier)+1)), 1+rng.IntN(20_000)
		return "collectives", doubles * doubleBytes, s.once(s.collective(kind, doubles*doubleBytes, rng.IntN(s.node.Size())))
	case 3, 4:
		size, tag, by := rng.IntN(100_000), rng.IntN(1000), rng.IntN(s.node.Size())
		if rng.IntN(2) == 0 {
			size %= 256
		}
		bytes, err = s.shift(ctx, by, size, tag)
		return layerIMPI, bytes, err
	case 5:
		bytes, err = s.sum(1 + rng.IntN(300))
		return layerQMP, bytes, err
	}
	r := s.rings[rng.IntN(len(s.rings))]
	r.op = fmt.Sprint("ring ", s.turn) // other bytes than before
	return layerChannel, r.bytes, s.once(r)
}

// once makes one iteration, and checks it.
func (s *soaker) once(x series) error {
	x.prepare()
	if err := x.run(1, nil); err != nil {
		return err
	}
	return x.check()
}

// soakRing passes a message to the next rank, and takes one from the rank before.
type soakRing struct{ messages }

func (s *soaker) newRing(memory string, size, stream int) (*soakRing, error) {
	left, right := neighbours(s.node)
	r := &soakRing{messages{declarations: declarations{node: s.node, stream: stream}, extent: extent{bytes: size}, into: extent{bytes: size}, op: "ring", from: left}}
	var buffers [2]buffer // of its own
	for i, list := range []*[][]byte{&r.outs, &r.ins} {
		b, err := buffers[i].take(s.node, memory, size+guard)
		if err != nil {
			return nil, err
		}
		*list = [][]byte{b}
	}
	r.send(r.layout(r.outs[0]), right)
	r.receive(r.into.layout(r.ins[0]), left)
	return r, r.err
}

func (r *soakRing) run(int, []int64) error {
	if err := startAll(r.handles...); err != nil {
		return err
	}
	return channel.WaitAllContext(context.Background(), r.handles...)
}

// collective is one of doubles, which is called.
func (s *soaker) collective(kind coll.Kind, bytes, root int) series {
	src, dst := collectiveBlocks(kind, s.node.Size())
	m := spec{pattern: findPattern(layerChannel, kind.String()), bytes: bytes, op: callCalled}
	c := newCollective(s.world, m, make([]byte, src*bytes), make([]byte, dst*bytes+guard))
	c.root = root % c.roots
	return c
}

// shift sends by impi to a rank at a distance.
func (s *soaker) shift(ctx context.Context, by, size, tag int) (int, error) {
	c := s.impi.World()
	to, from := (c.Rank()+by)%c.Size(), (c.Rank()+c.Size()-by)%c.Size()
	seed := func(rank int) uint64 { return seedFor(rank, s.turn, "shift") }
	out, in := make([]byte, size), make([]byte, size+guard)
	fillPattern(out, seed(c.Rank()))
	fillGuard(in)
	q, err := c.Irecv(in[:size], from, tag)
	if err != nil {
		return 0, err
	}
	if err := c.Send(ctx, out, to, tag); err != nil {
		return 0, err // the receive ends with the job
	}
	st, err := q.Wait(ctx)
	if err == nil && st.Len != size {
		err = &CorruptError{Op: "impi", Bytes: size, Offset: st.Len}
	}
	if err != nil {
		return 0, err
	}
	return size, checkPattern("impi", in, size, seed(from))
}

// sum adds up doubles as QMP programs do, or broadcasts, or waits for all.
func (s *soaker) sum(doubles int) (int, error) {
	c, bytes := s.qmp.DefaultComm(), doubles*doubleBytes
	switch s.rng.IntN(3) {
	case 0:
		return 0, c.Barrier()
	case 1:
		b, seed := make([]byte, bytes+guard), seedFor(0, s.turn, "qmp")
		fillGuard(b)
		if c.IsPrimaryNode() {
			fillPattern(b[:bytes], seed)
		}
		if err := c.Broadcast(b[:bytes]); err != nil {
			return 0, err
		}
		return bytes, checkPattern("qmp broadcast", b, bytes, seed)
	}
	return bytes, s.once(newSums(c, spec{bytes: bytes, op: qmpSumDoubleArray}, make([]byte, bytes+guard)))
}
