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

// soakStream is that of the messages of channels; package qmp takes those from 0 on.
const soakStream = 40000

// soakSizes are those of messages of channels: inline, in the ring, straight, in chunks.
var soakSizes = []int{1, 8, 56, 1000, 4096, 9000, 70_000, 1 << 20}

// soakRank is one rank of a job: mixed traffic on all layers until rank 0 says that
// d is over, or an error ends it. What it has done goes to w.
func soakRank(ctx context.Context, w io.Writer, d time.Duration, seed uint64) error {
	held := leak.Watch()
	s := soaker{record: soakRecord{Operations: map[string]int64{}}, rng: rand.New(rand.NewPCG(seed, 1)), up: func() error {
		_, err := io.WriteString(w, soakUp)
		return err
	}}
	err := s.run(ctx, d)
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

	sends, receives []*channel.Handle // of each size, in memory of Alloc, then of the heap
	out, in         [][]byte
	turn            uint64

	up func() error // tells that all connections have been made
}

// soakUp is what a rank writes first, when it is connected with all others.
const soakUp = "up\n"

// run joins, makes traffic, and takes all down.
func (s *soaker) run(ctx context.Context, d time.Duration) (err error) {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if s.node, err = channel.Join(ctx, channel.WithLogger(quiet)); err != nil {
		return err
	}
	s.record.Rank = s.node.Rank()
	defer func() {
		// After a death there is nobody to say goodbye to: that is no news.
		if e := s.node.Close(); e != nil && err == nil {
			err = fmt.Errorf("close the node: %w", e)
		}
	}()
	if s.world, err = s.node.World(ctx); err != nil {
		return err
	}
	if s.qmp, err = qmp.New(s.node, nil, qmp.WithContext(ctx)); err != nil {
		return err
	}
	defer func() {
		if e := s.qmp.Finalize(); e != nil && err == nil {
			err = fmt.Errorf("finalize: %w", e)
		}
	}()
	if s.impi, err = impi.FromNode(ctx, s.node, impi.Config{Log: quiet}); err != nil {
		return err
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), soakClose)
		defer cancel()
		if e := s.impi.Close(within); e != nil && err == nil {
			err = fmt.Errorf("close the job of impi: %w", e)
		}
	}()
	if err := s.declare(); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	until := time.Now().Add(d)
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
			if err := s.operation(ctx); err != nil {
				return err
			}
		}
	}
}

// connect has every pair of ranks talk on all layers, and tells when that is done: while
// a connection is being made, which has a second for a provider to prove itself, a lost
// packet may mean that it does not.
func (s *soaker) connect(ctx context.Context) error {
	for k := range s.node.Size() {
		s.turn++
		if _, err := s.broadcastFrom(ctx, k, 1000); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		if _, err := s.shiftBy(ctx, k, 1000, 0); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	for i := range s.sends {
		if _, err := s.ringOf(ctx, i); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	if err := s.qmp.DefaultComm().Barrier(); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return s.up()
}

// soakClose bounds the end of the messages of a job whose peers may be gone.
const soakClose = 20 * time.Second

// declare declares a message to the next rank, and one from the one before, of each size.
func (s *soaker) declare() error {
	n := s.node
	next, last := (n.Rank()+1)%n.Size(), (n.Rank()+n.Size()-1)%n.Size()
	for _, heap := range []bool{false, true} {
		for i, size := range soakSizes {
			buffers := make([][]byte, 2)
			for k := range buffers {
				buffers[k] = make([]byte, size+guard)
				if !heap {
					m, err := n.Alloc(size + guard)
					if err != nil {
						return err
					}
					buffers[k] = m.Bytes()
				}
			}
			stream := channel.OnStream(soakStream + i)
			send, err := n.DeclareSend(channel.Contiguous(buffers[0][:size]), next, stream)
			if err != nil {
				return err
			}
			receive, err := n.DeclareReceive(channel.Contiguous(buffers[1][:size]), last, stream)
			if err != nil {
				return err
			}
			s.sends, s.receives = append(s.sends, send), append(s.receives, receive)
			s.out, s.in = append(s.out, buffers[0]), append(s.in, buffers[1])
		}
	}
	return nil
}

// operation is the next one, the same at all ranks.
func (s *soaker) operation(ctx context.Context) error {
	s.turn++
	layer, what := layerChannel, s.ring
	switch s.rng.IntN(6) {
	case 1:
		layer, what = "collectives", s.allreduce
	case 2:
		layer, what = "collectives", s.broadcast
	case 3, 4:
		layer, what = layerIMPI, s.shift
	case 5:
		layer, what = layerQMP, s.sum
	}
	n, err := what(ctx)
	if err != nil {
		return fmt.Errorf("%s, operation %d: %w", layer, s.turn, err)
	}
	s.record.Operations[layer]++
	s.record.Bytes += int64(n)
	return nil
}

// seedOf is that of what a rank sends in this turn.
func (s *soaker) seedOf(rank int) uint64 { return seedFor(rank, int(s.turn), "soak") }

// ring passes a message of one size to the next rank.
func (s *soaker) ring(ctx context.Context) (int, error) {
	return s.ringOf(ctx, s.rng.IntN(len(s.sends)))
}

func (s *soaker) ringOf(ctx context.Context, i int) (int, error) {
	size := soakSizes[i%len(soakSizes)]
	last := (s.node.Rank() + s.node.Size() - 1) % s.node.Size()
	fillPattern(s.out[i][:size], s.seedOf(s.node.Rank()))
	fillGuard(s.in[i])
	for _, h := range []*channel.Handle{s.receives[i], s.sends[i]} {
		if err := h.Start(); err != nil {
			return 0, err
		}
	}
	if err := channel.WaitAllContext(ctx, s.receives[i], s.sends[i]); err != nil {
		return 0, err
	}
	return size, checkPattern("ring", s.in[i], size, s.seedOf(last))
}

// allreduce sums up integers, whose sum is known.
func (s *soaker) allreduce(ctx context.Context) (int, error) {
	v := make([]int64, 1+s.rng.IntN(20_000))
	for i := range v {
		v[i] = int64(s.node.Rank()+1) * (int64(i) + int64(s.turn))
	}
	if err := s.world.Run(ctx, channel.Allreduce(channel.Sum, v, v)); err != nil {
		return 0, err
	}
	size := int64(s.node.Size())
	for i := range v {
		if want := size * (size + 1) / 2 * (int64(i) + int64(s.turn)); v[i] != want {
			return 0, &CorruptError{Op: "allreduce", Bytes: 8 * len(v), Offset: 8 * i, Got: byte(v[i]), Want: byte(want)}
		}
	}
	return 8 * len(v), nil
}

// broadcast sends from a random rank to all.
func (s *soaker) broadcast(ctx context.Context) (int, error) {
	size, root := 1+s.rng.IntN(200_000), s.rng.IntN(s.node.Size())
	return s.broadcastFrom(ctx, root, size)
}

func (s *soaker) broadcastFrom(ctx context.Context, root, size int) (int, error) {
	b := make([]byte, size+guard)
	fillGuard(b)
	if s.node.Rank() == root {
		fillPattern(b[:size], s.seedOf(root))
	}
	if err := s.world.Run(ctx, channel.Broadcast(b[:size], root)); err != nil {
		return 0, err
	}
	return size, checkPattern("broadcast", b, size, s.seedOf(root))
}

// shift sends by impi to a rank at a random distance, with a random tag.
func (s *soaker) shift(ctx context.Context) (int, error) {
	size, tag, by := s.rng.IntN(100_000), s.rng.IntN(1000), s.rng.IntN(s.node.Size())
	if s.rng.IntN(2) == 0 {
		size %= 256
	}
	return s.shiftBy(ctx, by, size, tag)
}

func (s *soaker) shiftBy(ctx context.Context, by, size, tag int) (int, error) {
	c := s.impi.World()
	to, from := (c.Rank()+by)%c.Size(), (c.Rank()+c.Size()-by)%c.Size()
	out, in := make([]byte, size), make([]byte, size+guard)
	fillPattern(out, s.seedOf(c.Rank()))
	fillGuard(in)
	q, err := c.Irecv(in[:size], from, tag)
	if err != nil {
		return 0, err
	}
	if err := c.Send(ctx, out, to, tag); err != nil {
		return 0, err // the receive ends with the job
	}
	st, err := q.Wait(ctx)
	if err != nil {
		return 0, err
	}
	if st.Len != size {
		return 0, &CorruptError{Op: "impi", Bytes: size, Offset: st.Len}
	}
	return size, checkPattern("impi", in, size, s.seedOf(from))
}

// sum adds up doubles as QMP programs do, or broadcasts, or waits for all.
func (s *soaker) sum(context.Context) (int, error) {
	c := s.qmp.DefaultComm()
	switch s.rng.IntN(3) {
	case 0:
		return 0, c.Barrier()
	case 1:
		b := make([]byte, 1+s.rng.IntN(5000))
		if c.IsPrimaryNode() {
			fillPattern(b, s.seedOf(0))
		}
		if err := c.Broadcast(b); err != nil {
			return 0, err
		}
		return len(b), checkPattern("qmp broadcast", b, len(b), s.seedOf(0))
	}
	v := make([]float64, 1+s.rng.IntN(300))
	for i := range v {
		v[i] = float64(c.NodeNumber() + i)
	}
	if err := c.SumDoubleArray(v); err != nil {
		return 0, err
	}
	n := c.NumberOfNodes()
	for i := range v {
		if want := float64(n*(n-1)/2 + n*i); v[i] != want {
			return 0, &CorruptError{Op: "qmp sum", Bytes: 8 * len(v), Offset: 8 * i}
		}
	}
	return 8 * len(v), nil
}
