package verbstest

import (
	"context"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/verbs"
)

// command is something to do with a node. Its fields are all it needs, so that
// it can travel to another process; what it returns travels back.
type command interface {
	run(ctx context.Context, n *node) (any, error)
}

func init() {
	for _, v := range []any{
		allocCmd{}, fillCmd{}, pokeCmd{}, dumpCmd{}, digestCmd{}, stopCmd{}, pourCmd{}, closeCmd{}, openCmd{}, infoCmd{}, srqCmd{}, connectCmd{}, modifyCmd{},
		queryCmd{}, postCmd{}, recvCmd{}, srqRecvCmd{}, awaitCmd{}, pollCmd{}, eventCmd{}, spinCmd{}, trickleCmd{}, floodCmd{},
		addCmd{}, markCmd(0), releaseCmd{}, yardCmd(0), startCmd{}, tearCmd{}, batchCmd{},
		memInfo{}, qpInfo{}, yardInfo{}, []sum(nil), []batchReply(nil), []byte(nil), int(0), []verbs.WC(nil), verbs.QPAttr{},
	} {
		gob.Register(v)
	}
}

type sum [sha256.Size]byte

// memInfo identifies a region to its users.
type memInfo struct {
	ID         int
	Addr       uint64
	LKey, RKey uint32
}

// allocCmd registers Size bytes: of the Go heap, or of what the device prefers.
type allocCmd struct {
	Size   int
	Access verbs.AccessFlags
	Heap   bool
	Other  bool // in the other protection domain
}

func (c allocCmd) run(_ context.Context, n *node) (any, error) {
	pd, err := n.domain(c.Other)
	if err != nil {
		return nil, err
	}
	var o object
	if c.Heap {
		var buf []byte
		if buf, o.free, err = userMemory(c.Size); err != nil {
			return nil, err
		}
		o.mr, err = pd.RegMR(buf, c.Access)
	} else {
		o.mr, err = pd.AllocMR(c.Size, c.Access)
	}
	if err != nil {
		return nil, err
	}
	mr := o.mr
	return memInfo{ID: n.add(o), Addr: mr.Addr(), LKey: mr.LKey(), RKey: mr.RKey()}, nil
}

// fillCmd writes a pattern over a region.
type fillCmd struct {
	ID   int
	Seed uint64
}

func (c fillCmd) run(_ context.Context, n *node) (any, error) {
	pattern(n.objs[c.ID].mr.Bytes(), c.Seed)
	return nil, nil
}

// pokeCmd writes Data into a region.
type pokeCmd struct {
	ID, Off int
	Data    []byte
}

func (c pokeCmd) run(_ context.Context, n *node) (any, error) {
	copy(n.objs[c.ID].mr.Bytes()[c.Off:], c.Data)
	return nil, nil
}

// dumpCmd returns the bytes of a region.
type dumpCmd struct{ ID int }

func (c dumpCmd) run(_ context.Context, n *node) (any, error) {
	return n.objs[c.ID].mr.Bytes(), nil
}

// digestCmd returns a checksum of each of these regions.
type digestCmd struct{ IDs []int }

func (c digestCmd) run(_ context.Context, n *node) (any, error) {
	sums := make([]sum, len(c.IDs))
	for i, id := range c.IDs {
		sums[i] = sha256.Sum256(n.objs[id].mr.Bytes())
	}
	return sums, nil
}

// closeCmd closes an object.
type closeCmd struct{ ID int }

func (c closeCmd) run(_ context.Context, n *node) (any, error) {
	o := n.objs[c.ID]
	switch {
	case o.qp != nil:
		return nil, o.qp.Close()
	case o.srq != nil:
		return nil, o.srq.Close()
	default:
		return nil, o.closeMR()
	}
}

// qpInfo identifies a queue pair to its users and its peer.
type qpInfo struct {
	ID       int
	QPNum    uint32
	Endpoint []byte
	Cap      verbs.QPCap // as granted
}

// openCmd creates a queue pair.
type openCmd struct{ Spec qpSpec }

func (c openCmd) run(ctx context.Context, n *node) (any, error) {
	id, err := n.openQP(c.Spec)
	if err != nil {
		return nil, err
	}
	return infoCmd{id}.run(ctx, n)
}

// infoCmd describes a queue pair as it is now: it has another endpoint after
// RESET.
type infoCmd struct{ ID int }

func (c infoCmd) run(_ context.Context, n *node) (any, error) {
	qp := n.objs[c.ID].qp
	ep, err := qp.Endpoint()
	if err != nil {
		return nil, err
	}
	b, err := ep.MarshalBinary()
	if err != nil {
		return nil, err
	}
	attr, err := qp.Query()
	if err != nil {
		return nil, err
	}
	return qpInfo{ID: c.ID, QPNum: qp.QPNum(), Endpoint: b, Cap: attr.Cap}, nil
}

// srqCmd creates a shared receive queue.
type srqCmd struct{ Attr verbs.SRQAttr }

func (c srqCmd) run(_ context.Context, n *node) (any, error) {
	srq, err := n.pd.CreateSRQ(c.Attr)
	if err != nil {
		return nil, err
	}
	return n.add(object{srq: srq}), nil
}

// connectCmd connects a queue pair.
type connectCmd struct {
	ID       int
	Endpoint []byte
	Spec     connSpec
}

func (c connectCmd) run(_ context.Context, n *node) (any, error) {
	ep, err := verbs.ParseEndpoint(c.Endpoint)
	if err != nil {
		return nil, err
	}
	return nil, n.objs[c.ID].qp.Connect(ep, c.Spec.attr())
}

// modifyCmd changes attributes of a queue pair.
type modifyCmd struct {
	ID   int
	Attr verbs.QPAttr
	Mask verbs.QPAttrMask
}

func (c modifyCmd) run(_ context.Context, n *node) (any, error) {
	return nil, n.objs[c.ID].qp.Modify(&c.Attr, c.Mask)
}

// queryCmd returns the attributes of a queue pair.
type queryCmd struct{ ID int }

func (c queryCmd) run(_ context.Context, n *node) (any, error) { return n.objs[c.ID].qp.Query() }

// postCmd posts sends and returns how many were taken.
type postCmd struct {
	ID  int
	WRs []verbs.SendWR
}

func (c postCmd) run(_ context.Context, n *node) (any, error) { return n.objs[c.ID].qp.PostSend(c.WRs) }

// recvCmd posts receives and returns how many were taken.
type recvCmd struct {
	ID  int
	WRs []verbs.RecvWR
}

func (c recvCmd) run(_ context.Context, n *node) (any, error) { return n.objs[c.ID].qp.PostRecv(c.WRs) }

// srqRecvCmd posts receives to a shared receive queue.
type srqRecvCmd struct {
	ID  int
	WRs []verbs.RecvWR
}

func (c srqRecvCmd) run(_ context.Context, n *node) (any, error) {
	return n.objs[c.ID].srq.PostRecv(c.WRs)
}

// which says the send or the receive side of a queue pair.
type which bool

const (
	sends which = false
	recvs which = true
)

func (w which) String() string {
	if w == recvs {
		return "receive"
	}
	return "send"
}

func (o object) cqOf(w which) *verbs.CQ {
	if w == recvs {
		return o.recv
	}
	return o.send
}

// awaitCmd takes Count completions.
type awaitCmd struct {
	ID    int
	Which which
	Count int
}

func (c awaitCmd) run(ctx context.Context, n *node) (any, error) {
	return await(ctx, n.objs[c.ID].cqOf(c.Which), c.Count)
}

// pollCmd polls once.
type pollCmd struct {
	ID    int
	Which which
}

func (c pollCmd) run(_ context.Context, n *node) (any, error) {
	wcs := make([]verbs.WC, 16)
	got, err := n.objs[c.ID].cqOf(c.Which).Poll(wcs)
	return wcs[:got], err
}

// eventCmd waits for an event of an object.
type eventCmd struct {
	ID   int
	Type verbs.EventType
}

func (c eventCmd) run(ctx context.Context, n *node) (any, error) {
	o := n.objs[c.ID]
	_, err := n.event(ctx, func(e verbs.AsyncEvent) bool {
		return e.Type == c.Type && (o.qp != nil && e.QP == o.qp || o.srq != nil && e.SRQ == o.srq || o.cq != nil && e.CQ == o.cq)
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for event %v: %w", c.Type, err)
	}
	return nil, nil
}

// spinCmd spins on a word, without any call into the library, until a peer has written a value
// other than 0 there. The limit is for the case that this never happens; reading the clock is no
// call into the library either.
type spinCmd struct {
	ID, Off int
	Limit   time.Duration
}

func (c spinCmd) run(_ context.Context, n *node) (any, error) {
	w := word(n.objs[c.ID].mr, c.Off)
	for end := time.Now().Add(c.Limit); time.Now().Before(end); {
		for range 1 << 16 {
			if w.Load() != 0 {
				return nil, nil
			}
		}
	}
	return nil, errors.New("the peer did not write the flag that ends the busy loop")
}

// word is an aligned 8-byte word of a region that a peer writes.
func word(mr *verbs.MR, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mr.Bytes()[off : off+8][0]))
}

// trickleCmd sends Count empty messages at random moments, every third one
// unsolicited.
type trickleCmd struct {
	ID    int
	Count int
	Seed  uint64
}

func (c trickleCmd) run(ctx context.Context, n *node) (any, error) {
	rng := seeded(c.Seed, "trickle")
	o := n.objs[c.ID]
	for i := range c.Count {
		dither(rng)
		wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(i)}
		if i%3 != 0 || i == c.Count-1 {
			wr.Flags |= verbs.SendSolicited
		}
		if err := postAll(o.qp, wr); err != nil {
			return nil, err
		}
		if _, err := awaitSuccess(ctx, o.send, 1); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// dither lets a random, mostly short time pass: from nothing, when the peer is about to look, to
// some 100 µs, when it has long been asleep.
func dither(rng *rand.Rand) {
	for range rng.IntN(1 << rng.IntN(18)) {
		pauseSink.Add(1)
	}
	if rng.IntN(4) == 0 {
		runtime.Gosched()
	}
}

// pauseSink keeps the compiler from removing the loop of dither.
var pauseSink atomic.Uint64

// addCmd posts Count fetch-and-adds of 1, up to 8 at a time.
type addCmd struct {
	ID     int
	Local  verbs.SGE
	Remote uint64
	RKey   uint32
	Count  int
}

func (c addCmd) run(ctx context.Context, n *node) (any, error) {
	o := n.objs[c.ID]
	for left := c.Count; left > 0; {
		batch := min(left, 8)
		left -= batch
		for range batch {
			wr := verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{c.Local},
				RemoteAddr: c.Remote, RKey: c.RKey, CompareAdd: 1}
			if err := postAll(o.qp, wr); err != nil {
				return nil, err
			}
		}
		if _, err := awaitSuccess(ctx, o.send, batch); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// markCmd returns a mark for releaseCmd. (It is no struct, as gob takes no empty one.)
type markCmd uint8

func (markCmd) run(_ context.Context, n *node) (any, error) { return n.last, nil }

// releaseCmd closes all objects created after the mark.
type releaseCmd struct{ Mark int }

func (c releaseCmd) run(_ context.Context, n *node) (any, error) { return nil, n.release(c.Mark) }

// postAll posts sends that the queue must have room for.
func postAll(qp *verbs.QP, wrs ...verbs.SendWR) error {
	n, err := qp.PostSend(wrs)
	if err == nil && n < len(wrs) {
		err = fmt.Errorf("QP %#x accepted %d of %d sends", qp.QPNum(), n, len(wrs))
	}
	return err
}

// awaitSuccess takes count completions that must be successes.
func awaitSuccess(ctx context.Context, cq *verbs.CQ, count int) ([]verbs.WC, error) {
	wcs, err := await(ctx, cq, count)
	for i := range wcs {
		err = errors.Join(err, wcs[i].Err())
	}
	return wcs, err
}
