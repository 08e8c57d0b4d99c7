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

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/qmp"
)

// soakOptions are the flags of bench soak.
type soakOptions struct {
	time    time.Duration
	ranks   int
	seed    uint64
	network bool
}

// SoakError says that a soak has found errors.
type SoakError struct{ Unasked, Hangs, Corrupt, Leaks int64 }

func (e *SoakError) Error() string {
	return fmt.Sprintf("soak: %d unexplained errors, %d hangs, %d corruptions, %d leaks", e.Unasked, e.Hangs, e.Corrupt, e.Leaks)
}

func newSoakCommand(out *outputOptions) *cobra.Command {
	var o soakOptions
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Test with mixed traffic on all layers, with kills, stalls and cut links",
		Long: `Starts one job after the other, for some seconds each. In each job all ranks run operations
from a seed: messages of channels, collectives, messages of impi, and sums of qmp, each checked
byte by byte. One fault at a time is injected into a job: a rank is killed (SIGKILL) at a random
moment, or stopped and continued. As root, ranks are in two network namespaces, and the link
between them loses some or all packets for a while (nftables). Kills come at any time, even while
ranks join and connect; stalls and losses come when all are connected, because a provider has one
second to prove that it works.

The survivors of a killed rank must report it. No other rank may report an error, no rank may
hang, and nothing may be left when a rank has closed its node. Exit status 1: one of these was
violated.`,
		Args: noArgs,
		RunE: caught(func(cmd *cobra.Command, _ []string) {
			if o.seed == 0 {
				o.seed = uint64(time.Now().UnixNano())
			}
			out.check()
			inRange("ranks", o.ranks, 2, 64)
			switch {
			case out.listen != "" || out.html != "":
				must(usagef("soak takes neither --listen nor --html"))
			case o.time <= 0 || o.time > 1000*time.Hour:
				must(usagef("--time %v: want more than 0, at most 1000h", o.time))
			}
			o.run(cmd.Context(), out)
		}),
	}
	f := cmd.Flags()
	f.DurationVarP(&o.time, "time", "t", time.Minute, "how long to run")
	f.IntVarP(&o.ranks, "ranks", "n", 4, "ranks of each job")
	f.Uint64Var(&o.seed, "seed", 0, "seed: repeats the operations and the faults, but not their exact times (default: from the clock)")
	f.BoolVar(&o.network, "network", true, "as root: use two networks, with a link that can be cut")
	cmd.AddCommand(newSoakRankCommand())
	return cmd
}

func newSoakRankCommand() *cobra.Command {
	var d time.Duration
	var seed uint64
	cmd := &cobra.Command{
		Use: "rank", Hidden: true, Args: noArgs,
		RunE: caught(func(cmd *cobra.Command, _ []string) { soakRank(cmd.Context(), cmd.OutOrStdout(), d, seed) }),
	}
	cmd.Flags().DurationVar(&d, "time", 0, "")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "")
	return cmd
}

// soakRecord is the report of a rank at its end: one line of JSON.
type soakRecord struct {
	Rank       int              `json:"rank"`
	Operations map[string]int64 `json:"operations"` // by layer, each checked byte by byte
	Bytes      int64            `json:"bytes"`      // received
	Error      string           `json:"error,omitempty"`
	Mourned    bool             `json:"mourned,omitempty"` // the error reports a lost peer
	Corrupt    bool             `json:"corrupt,omitempty"` // the error reports wrong bytes
	Leaks      string           `json:"leaks,omitempty"`
	Late       uint64           `json:"late,omitempty"` // sleeps that no ring has ended, as channel.Stats has them
}

const (
	soakStream = 40000            // of the messages of channels; package qmp takes those from 0 on
	soakClose  = 20 * time.Second // bounds the end of the messages of a job whose peers may be gone
	soakUp     = "up\n"           // what a rank writes first, when it is connected with all others
)

// soakSizes are the sizes of channel messages: inline, in the ring, direct, in chunks.
var soakSizes = []int{1, 8, 56, 1000, 4096, 9000, 70_000, 1 << 20}

// soakRank is one rank of a job: mixed traffic on all layers until rank 0 announces that d is over,
// or an error ends it. It writes its report to w.
func soakRank(ctx context.Context, w io.Writer, d time.Duration, seed uint64) {
	held := leak.Watch()
	s := soaker{record: soakRecord{Operations: map[string]int64{}}, rng: rand.New(rand.NewPCG(seed, 1))}
	r := &s.record
	if err := s.run(ctx, w, d); err != nil {
		var corrupt *CorruptError
		r.Error, r.Corrupt, r.Mourned = err.Error(), errors.As(err, &corrupt), mourns(err)
	}
	if err := held(); err != nil {
		r.Leaks = err.Error()
	}
	must(json.NewEncoder(w).Encode(r))
}

// mourns reports whether an error says that a peer is lost.
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
	rings  []*soakRing // for each size, in Alloc memory, then on the heap
	turn   int
}

func (s *soaker) run(ctx context.Context, w io.Writer, d time.Duration) (err error) {
	defer catch(&err)
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	// After a death there is no peer to say goodbye to: that is expected.
	end := func(what string, do func() error) {
		if e := do(); e != nil && err == nil {
			err = fmt.Errorf("%s: %w", what, e)
		}
	}
	s.node = must1(channel.Join(ctx, channel.WithLogger(quiet)))
	s.record.Rank = s.node.Rank()
	defer end("close the node", func() error {
		s.record.Late = s.node.Stats().Late
		return s.node.Close()
	})
	s.world = must1(s.node.World(ctx))
	s.qmp = must1(qmp.New(s.node, nil, qmp.WithContext(ctx)))
	defer end("finalize", s.qmp.Finalize)
	s.impi = must1(impi.FromNode(ctx, s.node, impi.Config{Log: quiet}))
	defer end("close the job of impi", func() error {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), soakClose)
		defer cancel()
		return s.impi.Close(within)
	})
	s.connect(ctx)
	must1(io.WriteString(w, soakUp))
	s.traffic(ctx, time.Now().Add(d))
	return nil
}

// connect makes every pair of ranks exchange messages on all layers: while a connection is being
// made, a provider has one second to prove that it works, and a lost packet may make that fail.
func (s *soaker) connect(ctx context.Context) {
	defer during(func() string { return "connect" })
	for _, memory := range memoryKinds[:2] {
		for i, size := range soakSizes {
			r := s.newRing(memory, size, soakStream+i)
			s.rings = append(s.rings, r)
			s.once(r)
		}
	}
	for k := range s.node.Size() {
		s.once(s.collective(coll.Broadcast.String(), 1000, k))
		s.shift(ctx, k, 1000, 0)
	}
	must(s.qmp.DefaultComm().Barrier())
}

// traffic runs one operation after the other until rank 0 finds that the time is over.
func (s *soaker) traffic(ctx context.Context, until time.Time) {
	layer := "collectives"
	defer during(func() string { return fmt.Sprintf("%s, operation %d", layer, s.turn) })
	for {
		over := []int64{0}
		if s.node.Rank() == 0 && !time.Now().Before(until) {
			over[0] = 1
		}
		layer = "collectives"
		must(s.world.Run(ctx, channel.Allreduce(channel.Max, over, over)))
		if over[0] != 0 {
			return
		}
		for range 20 {
			s.turn++
			var n int
			switch s.rng.IntN(6) { // the same at all ranks
			case 1, 2:
				layer, n = "collectives", s.anyCollective()
			case 3, 4:
				layer = layerIMPI
				size, tag, by := s.rng.IntN(100_000), s.rng.IntN(1000), s.rng.IntN(s.node.Size())
				if s.rng.IntN(2) == 0 {
					size %= 256
				}
				n = s.shift(ctx, by, size, tag)
			case 5:
				layer = layerQMP
				n = s.sum(1 + s.rng.IntN(300))
			default:
				layer = layerChannel
				r := s.rings[s.rng.IntN(len(s.rings))]
				r.op = fmt.Sprint("ring ", s.turn) // other bytes than before
				s.once(r)
				n = r.bytes
			}
			s.record.Operations[layer]++
			s.record.Bytes += int64(n)
		}
	}
}

// anyCollective runs a collective of a random kind, size and root.
func (s *soaker) anyCollective() int {
	names := append(collectiveNames(), unevenNames...)
	name, doubles := names[s.rng.IntN(len(names))], 1+s.rng.IntN(20_000)
	s.once(s.collective(name, doubles*doubleBytes, s.rng.IntN(s.node.Size())))
	return doubles * doubleBytes
}

func (s *soaker) once(x series) {
	x.prepare()
	x.run(1, nil)
	x.check()
}

// soakRing sends a message to the next rank, and receives one from the rank before.
type soakRing struct{ messages }

func (s *soaker) newRing(memory string, size, stream int) *soakRing {
	left, right := neighbours(s.node)
	r := &soakRing{messages{declarations: declarations{node: s.node, stream: stream}, rank: s.node.Rank(), extent: extent{bytes: size}, into: extent{bytes: size}, op: "ring", from: left}}
	var buffers [2]buffer // of its own
	for i, list := range []*[][]byte{&r.outs, &r.ins} {
		*list = [][]byte{buffers[i].take(allocOf(s.node), memory, size+guard)}
	}
	r.send(r.layout(r.outs[0]), right)
	r.receive(r.into.layout(r.ins[0]), left)
	return r
}

func (r *soakRing) run(int, []int64) {
	startAll(r.handles...)
	must(channel.WaitAllContext(context.Background(), r.handles...))
}

// collective calls a collective of doubles.
func (s *soaker) collective(name string, bytes, root int) series {
	m := spec{pattern: findPattern(layerChannel, name), bytes: bytes, op: callCalled, ranks: s.node.Size()}
	src, dst := m.collectiveBytes(s.node.Rank())
	c := newCollective(s.world, m, make([]byte, src), make([]byte, dst+guard))
	c.root = root % c.roots
	return c
}

// shift sends with impi to a rank at a distance.
func (s *soaker) shift(ctx context.Context, by, size, tag int) int {
	c := s.impi.World()
	to, from := (c.Rank()+by)%c.Size(), (c.Rank()+c.Size()-by)%c.Size()
	seed := func(rank int) uint64 { return seedFor(rank, s.turn, "shift") }
	out, in := make([]byte, size), make([]byte, size+guard)
	fillPattern(out, seed(c.Rank()))
	fillGuard(in)
	q := must1(c.Irecv(in[:size], from, tag))
	must(c.Send(ctx, out, to, tag)) // if it fails, the receive ends with the job
	if st := must1(q.Wait(ctx)); st.Len != size {
		must(&CorruptError{Op: "impi", Bytes: size, Offset: st.Len})
	}
	must(checkPattern("impi", in, size, seed(from)))
	return size
}

// sum adds up doubles as QMP programs do, or broadcasts, or waits for all.
func (s *soaker) sum(doubles int) int {
	c, bytes := s.qmp.DefaultComm(), doubles*doubleBytes
	switch s.rng.IntN(3) {
	case 0:
		must(c.Barrier())
		return 0
	case 1:
		b, seed := make([]byte, bytes+guard), seedFor(0, s.turn, "qmp")
		fillGuard(b)
		if c.IsPrimaryNode() {
			fillPattern(b[:bytes], seed)
		}
		must(c.Broadcast(b[:bytes]))
		must(checkPattern("qmp broadcast", b, bytes, seed))
		return bytes
	}
	s.once(newSums(c, spec{bytes: bytes, op: qmpSumDoubleArray}, make([]byte, bytes+guard)))
	return bytes
}
