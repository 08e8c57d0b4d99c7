package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestMain(m *testing.M) { leak.Main(m) }

// limit bounds a job; what takes longer hangs.
const limit = 120 * time.Second

// TestLAM is the part of the processes of Go in a job with LAM/MPI, which run
// starts. It says in
//
//	SLUICE_INTEROP_SERVER   the address of the server
//	SLUICE_INTEROP_CLIENTS  for each client of Go how many processes it has: "2", "1 1 1 1"
//	SLUICE_INTEROP_FIRST    the rank of the first of them
//	SLUICE_INTEROP_PHASES   what is exchanged, as testdata/exchange.c has it
//	IMPI_AUTH_KEY           the key, if the server wants one
//
// Each client has an address of its own: LAM/MPI knows hosts by these.
func TestLAM(t *testing.T) {
	const variable = "SLUICE_INTEROP_SERVER"
	server := os.Getenv(variable)
	var none error
	if server == "" {
		none = fmt.Errorf("%s is not set: impi/interop/run starts such jobs", variable)
	}
	need.Probe(t, "a job with LAM/MPI", none)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var wg sync.WaitGroup
	clients := strings.Fields(os.Getenv("SLUICE_INTEROP_CLIENTS"))
	first, err := strconv.Atoi(os.Getenv("SLUICE_INTEROP_FIRST"))
	require.NoError(t, err)
	var key uint64
	if text := os.Getenv("IMPI_AUTH_KEY"); text != "" {
		key, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	errs := make([]error, len(clients))
	for i, n := range clients {
		processes, err := strconv.Atoi(n)
		require.NoError(t, err)
		c := impi.Config{
			Client: first + i, Key: key, Processes: processes, Addr: netip.AddrFrom4([4]byte{127, 0, 0, byte(3 + i)}),
		}
		wg.Go(func() { errs[i] = client(ctx, server, c, strings.Fields(os.Getenv("SLUICE_INTEROP_PHASES"))) })
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err, "client %d", first+i)
	}
}

// client takes part in a job, from beginning to end.
func client(ctx context.Context, server string, c impi.Config, phases []string) error {
	j, err := impi.Join(ctx, server, c)
	if err != nil {
		return err
	}
	errs := make([]error, c.Processes)
	var wg sync.WaitGroup
	for i, w := range j.Worlds() {
		wg.Go(func() {
			p := process{ctx: ctx, Comm: w, buf: make([]byte, maxLen+1)}
			errs[i] = p.run(phases)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // the job of the others ends when their time is up
		}
	}
	err = j.Close(ctx)
	if slices.Contains(phases, "die") {
		if err == nil || ctx.Err() != nil {
			return fmt.Errorf("closed, although the first process has died: %w", errors.Join(err, ctx.Err()))
		}
		return nil
	}
	return err
}

const (
	packetLen = 65536 // of LAM/MPI
	maxLen    = 1 << 20
	hiWater   = 20 // of LAM/MPI
	// syncTag is one that LAM/MPI can send under synchronously; see docs/impi.md.
	syncTag = 0x00010100
)

// process is one of a job. What it does is what exchange.c does, function by function.
type process struct {
	ctx context.Context
	*impi.Comm
	buf []byte
}

func (p *process) run(phases []string) error {
	for _, name := range phases {
		phase, ok := map[string]func() error{
			"short":     p.pairs(p.shortOut, p.shortIn),
			"long":      p.pairs(p.longOut, p.longIn),
			"number":    p.pairs(p.numberOut, p.numberIn),
			"sync":      p.pairs(p.syncOut, p.syncIn),
			"probe":     p.pairs(p.probeOut, p.probeIn),
			"flood":     p.pairs(p.floodOut, p.floodIn),
			"flow":      p.flow,
			"wildcard":  p.wildcard,
			"cancel":    p.cancel,
			"die":       p.die,
			"barrier":   p.barriers,
			"bcast":     p.bcast,
			"reduce":    p.reduce,
			"ordered":   p.ordered,
			"allreduce": p.allreduce,
			"fan-first": func() error { return p.fanOut(0) },
			"fan-last":  func() error { return p.fanOut(p.Size() - 1) },
		}[name]
		if !ok {
			return fmt.Errorf("no phase %s", name)
		}
		if err := phase(); err != nil {
			return fmt.Errorf("rank %d: %s: %w", p.Rank(), name, err)
		}
		fmt.Printf("rank %d of %d: %s\n", p.Rank(), p.Size(), name)
	}
	return nil
}

// content is a message of n bytes from a rank under a tag.
func content(rank, tag, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rank*101 + tag*37 + i*7 + (i>>8)*13)
	}
	return b
}

func (p *process) send(to, tag, n int) error {
	return p.Send(p.ctx, content(p.Rank(), tag, n), to, tag)
}

// take receives a message, and checks its bytes and all that the status says.
func (p *process) take(from, tag, n int) error {
	for i := range p.buf[:n+1] {
		p.buf[i] = 0xee
	}
	st, err := p.Recv(p.ctx, p.buf[:n+1], from, tag)
	switch {
	case err != nil:
		return err
	case st != impi.Status{Source: from, Tag: tag, Len: n}:
		return fmt.Errorf("message from %d, tag %d, of %d bytes: %+v", from, tag, n, st)
	case !bytes.Equal(p.buf[:n], content(from, tag, n)) || p.buf[n] != 0xee:
		return fmt.Errorf("message from %d, tag %d, of %d bytes: it is another", from, tag, n)
	}
	return nil
}

// pairs has out send to each other process and in receive, lower ranks first.
func (p *process) pairs(out, in func(peer int) error) func() error {
	return func() error {
		for peer := range p.Size() {
			first, second := out, in
			switch {
			case peer == p.Rank():
				continue
			case peer < p.Rank():
				first, second = in, out
			}
			if err := first(peer); err != nil {
				return err
			}
			if err := second(peer); err != nil {
				return err
			}
		}
		return nil
	}
}

// each calls f for each length, with its tag.
func each(lens []int, tag int, f func(tag, n int) error) error {
	for i, n := range lens {
		if err := f(tag+i, n); err != nil {
			return err
		}
	}
	return nil
}

var (
	shorts = []int{0, 1, 7, 100, 1024, packetLen - 1, packetLen}
	longs  = []int{packetLen + 1, 2 * packetLen, 2*packetLen + 1, 3*packetLen + 17, maxLen}
	syncs  = []int{0, 5, packetLen, packetLen + 1, 3 * packetLen}
)

func (p *process) shortOut(to int) error {
	return each(shorts, 10, func(tag, n int) error { return p.send(to, tag, n) })
}

func (p *process) shortIn(from int) error {
	return each(shorts, 10, func(tag, n int) error { return p.take(from, tag, n) })
}

func (p *process) longOut(to int) error {
	return each(longs, 20, func(tag, n int) error { return p.send(to, tag, n) })
}

func (p *process) longIn(from int) error {
	return each(longs, 20, func(tag, n int) error { return p.take(from, tag, n) })
}

// ints and doubles are as C has them in memory here.
func ints() []byte {
	var b []byte
	for _, v := range []int32{1, -2, 0x01020304} {
		b = binary.NativeEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func doubles() []byte {
	var b []byte
	for _, v := range []float64{1.5, -0.1} {
		b = binary.NativeEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

func (p *process) numberOut(to int) error {
	if err := p.Send(p.ctx, ints(), to, 30); err != nil {
		return err
	}
	return p.Send(p.ctx, doubles(), to, 31)
}

func (p *process) numberIn(from int) error {
	for i, want := range [][]byte{ints(), doubles()} {
		st, err := p.Recv(p.ctx, p.buf, from, 30+i)
		if err != nil {
			return err
		}
		if !bytes.Equal(p.buf[:st.Len], want) {
			return fmt.Errorf("numbers: %x, not %x", p.buf[:st.Len], want)
		}
	}
	return nil
}

func (p *process) syncOut(to int) error {
	return each(syncs, 0, func(_, n int) error { return p.Ssend(p.ctx, content(p.Rank(), syncTag, n), to, syncTag) })
}

func (p *process) syncIn(from int) error {
	return each(syncs, 0, func(_, n int) error { return p.take(from, syncTag, n) })
}

func (p *process) wildcard() error {
	for root := range p.Size() {
		if err := p.barrier(); err != nil {
			return err
		}
		if p.Rank() != root {
			for i := range 3 {
				if err := p.send(root, 50+i, 10*i+p.Rank()); err != nil {
					return err
				}
			}
			continue
		}
		next := make([]int, p.Size())
		for range 3 * (p.Size() - 1) {
			st, err := p.Recv(p.ctx, p.buf, impi.AnySource, impi.AnyTag)
			if err != nil {
				return err
			}
			i := next[st.Source]
			next[st.Source]++
			if want := (impi.Status{Source: st.Source, Tag: 50 + i, Len: 10*i + st.Source}); st != want {
				return fmt.Errorf("message of any: %+v, not %+v", st, want)
			}
			if !bytes.Equal(p.buf[:st.Len], content(st.Source, st.Tag, st.Len)) {
				return fmt.Errorf("message of any: %+v is another", st)
			}
		}
	}
	return p.barrier()
}

func (p *process) probeOut(to int) error {
	if err := p.send(to, 60, 123); err != nil {
		return err
	}
	return p.send(to, 61, 0)
}

func (p *process) probeIn(from int) error {
	st, err := p.Probe(p.ctx, from, impi.AnyTag)
	if err != nil {
		return err
	}
	if want := (impi.Status{Source: from, Tag: 60, Len: 123}); st != want {
		return fmt.Errorf("probed: %+v, not %+v", st, want)
	}
	if err := p.take(from, 60, 123); err != nil {
		return err
	}
	for there := false; !there; {
		if there, st, err = p.Iprobe(from, 61); err != nil {
			return err
		}
		if err := p.ctx.Err(); err != nil {
			return err
		}
	}
	if want := (impi.Status{Source: from, Tag: 61}); st != want {
		return fmt.Errorf("probed: %+v, not %+v", st, want)
	}
	return p.take(from, 61, 0)
}

// flow is the program that IMPI's flow control must handle.
func (p *process) flow() error {
	for peer := range p.Size() {
		var err error
		switch {
		case peer > p.Rank():
			err = p.flowAhead(peer)
		case peer < p.Rank():
			err = p.flowBack(peer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flowAhead sends as much as may be in flight, and then receives.
func (p *process) flowAhead(peer int) error {
	var sends []impi.Request
	for i := range hiWater {
		q, err := p.Isend(content(p.Rank(), 70+i, 8), peer, 70+i)
		if err != nil {
			return err
		}
		sends = append(sends, q)
	}
	if err := p.take(peer, syncTag, 9); err != nil {
		return err
	}
	return impi.WaitAll(p.ctx, nil, sends...)
}

// flowBack sends synchronously, and then receives.
func (p *process) flowBack(peer int) error {
	if err := p.Ssend(p.ctx, content(p.Rank(), syncTag, 9), peer, syncTag); err != nil {
		return err
	}
	for i := range hiWater {
		if err := p.take(peer, 70+i, 8); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) floodOut(to int) error {
	for i := range 200 {
		if err := p.send(to, 100+i, i%33); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) floodIn(from int) error {
	for i := range 200 {
		if err := p.take(from, 100+i, i%33); err != nil {
			return err
		}
	}
	return nil
}

// cancel asks a process of LAM/MPI for messages back, in vain.
func (p *process) cancel() error {
	if err := p.barrier(); err != nil {
		return err
	}
	if p.Rank() == p.Size()-1 {
		sync, err := p.Issend(content(p.Rank(), 80, 10), 0, 80)
		if err != nil {
			return err
		}
		eager, err := p.Isend(content(p.Rank(), 81, 10), 0, 81)
		if err != nil {
			return err
		}
		if err := sync.Cancel(); err != nil {
			return err
		}
		if err := eager.Cancel(); err != nil {
			return err
		}
		if err := p.send(0, 82, 5); err != nil {
			return err
		}
		var st [2]impi.Status
		if err := impi.WaitAll(p.ctx, st[:], sync, eager); err != nil {
			return err
		}
		if st[0].Cancelled || st[1].Cancelled {
			return fmt.Errorf("given back: %+v", st)
		}
	}
	return p.barrier()
}

// die: LAM/MPI, whose the first rank is, ends the job in the middle.
func (p *process) die() error {
	if _, err := p.Recv(p.ctx, p.buf, 0, 90); !errors.Is(err, impi.ErrPeerDied) {
		return fmt.Errorf("a receive from a process that has died: %w", err)
	}
	if err := p.Ssend(p.ctx, nil, 0, 90); !errors.Is(err, impi.ErrPeerDied) {
		return fmt.Errorf("a send to a process that has died: %w", err)
	}
	return nil
}

func (p *process) barrier() error { return p.Run(p.ctx, channel.Barrier()) }

func (p *process) barriers() error {
	for range 5 {
		if err := p.barrier(); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) bcast() error {
	for root := range p.Size() {
		for i, n := range []int{0, 1, 1000, packetLen} {
			buf := make([]byte, n)
			if p.Rank() == root {
				copy(buf, content(root, i, n))
			}
			if err := p.Run(p.ctx, channel.Broadcast(buf, root)); err != nil {
				return err
			}
			if !bytes.Equal(buf, content(root, i, n)) {
				return fmt.Errorf("%d bytes from %d: they are others", n, root)
			}
			if err := p.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// operands are what this process brings to a reduction.
func (p *process) operands(n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(p.Rank() + i)
	}
	return v
}

func (p *process) reduced(v []int32) error {
	for i, got := range v {
		if want := int32(p.Size()*(p.Size()-1)/2 + p.Size()*i); got != want {
			return fmt.Errorf("element %d of %d: %d, not %d", i, len(v), got, want)
		}
	}
	return nil
}

func (p *process) reduce() error {
	for root := range p.Size() {
		for _, n := range []int{1, 10, packetLen / 4, 40000} {
			var out []int32
			if p.Rank() == root {
				out = make([]int32, n)
			}
			if err := p.Run(p.ctx, channel.Reduce(channel.Sum, out, p.operands(n), root)); err != nil {
				return err
			}
			if err := p.reduced(out); err != nil {
				return err
			}
			if err := p.barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// mapsOf are maps x -> a*x + b that a rank brings to an operation which is not
// commutative: one after the other.
func mapsOf(rank int) []uint32 {
	var v []uint32
	for i := range uint32(10) {
		v = append(v, uint32(2*rank+3)+i, uint32(17*rank)+i)
	}
	return v
}

func compose(dst, a, b []uint32) {
	for i := 0; i < len(dst); i += 2 {
		dst[i], dst[i+1] = a[i]*b[i], a[i]*b[i+1]+a[i+1]
	}
}

// words are the elements of operations of the user: as they lie in memory.
func words(b []byte) []uint32 {
	v := make([]uint32, len(b)/4)
	for i := range v {
		v[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return v
}

func memory(v []uint32) []byte {
	var b []byte
	for _, w := range v {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

func (p *process) ordered() error {
	op := channel.UserReduction(8, false, func(dst, a, b []byte) {
		v := make([]uint32, len(dst)/4)
		compose(v, words(a), words(b))
		copy(dst, memory(v))
	})
	want := mapsOf(0)
	for rank := 1; rank < p.Size(); rank++ {
		compose(want, slices.Clone(want), mapsOf(rank))
	}
	for root := range p.Size() {
		in, out := memory(mapsOf(p.Rank())), []byte(nil)
		if p.Rank() == root {
			out = make([]byte, len(in))
		}
		if err := p.Run(p.ctx, channel.ReduceBytes(op, out, in, root)); err != nil {
			return err
		}
		if got := words(out); p.Rank() == root && !slices.Equal(got, want) {
			return fmt.Errorf("to %d: %d, not %d", root, got, want)
		}
		if err := p.barrier(); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) allreduce() error {
	for _, n := range []int{1, 10, packetLen / 4} {
		out := make([]int32, n)
		if err := p.Run(p.ctx, channel.Allreduce(channel.Sum, out, p.operands(n))); err != nil {
			return err
		}
		if err := p.reduced(out); err != nil {
			return err
		}
		if err := p.barrier(); err != nil {
			return err
		}
	}
	x, y := []float64{-1 - float64(p.Rank())}, []float64{0}
	if p.Rank() == p.Size()/2 {
		x[0] = 2.5
	}
	if err := p.Run(p.ctx, channel.Allreduce(channel.Max, y, x)); err != nil {
		return err
	}
	if y[0] != 2.5 {
		return fmt.Errorf("maximum: %v", y[0])
	}
	return p.barrier()
}
