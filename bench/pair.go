package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// exchanger is what a measurement needs of the job: who we are, and a slow way
// to talk outside the measured loops. [boot.Job] is one.
type exchanger interface {
	Rank() int
	Size() int
	Exchange(ctx context.Context, data []byte) ([][]byte, error)
}

// PeerError is an error that another rank met.
type PeerError struct {
	Rank int
	Text string
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// share gives every rank the values of all. A rank that comes with an error
// makes all fail: itself with that error, the others with a [*PeerError]. So
// nobody goes on alone, or waits for one who did not.
func share[T any](ctx context.Context, job exchanger, v T, failed error) ([]T, error) {
	type message struct {
		Value T      `json:"value"`
		Error string `json:"error,omitempty"`
	}
	m := message{Value: v}
	if failed != nil {
		m.Error = failed.Error()
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	all, err := job.Exchange(ctx, b)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	vs := make([]T, len(all))
	for rank, b := range all {
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("rank %d sent what is no message of this bench: %w", rank, err)
		}
		switch {
		case m.Error == "":
			vs[rank] = m.Value
		case rank == job.Rank():
			return nil, failed
		case failed == nil || failed.Error() == m.Error: // the same at several is the first's to tell
			return nil, &PeerError{rank, m.Error}
		}
	}
	return vs, nil
}

// agree gives every rank what rank 0 decided.
func agree[T any](ctx context.Context, job exchanger, v T) (T, error) {
	all, err := share(ctx, job, v, nil)
	if err != nil {
		return v, err
	}
	return all[0], nil
}

// pairOptions say how two ranks are connected.
type pairOptions struct {
	device    string // name of a device or of a provider
	portable  bool
	heap      bool // buffers are Go memory, registered; else the provider's own
	inline    int  // most bytes that are given inline; negative: as the device likes
	events    bool // wait for completions by sleeping on a completion channel
	maxBytes  int  // of a message
	sendDepth int  // work requests
	recvDepth int
	secret    []byte
	job       string
}

// pair is one side of two connected ranks, with a buffer to send from and one
// to receive into.
type pair struct {
	job  exchanger
	rank int

	ctx     *verbs.Context
	attr    verbs.DeviceAttr
	entry   DeviceEntry
	channel *verbs.CompChannel // nil: waiting is spinning
	armed   bool               // the queues will send an event
	sendCQ  *verbs.CQ
	recvCQ  *verbs.CQ
	qp      *verbs.QP
	send    *verbs.MR
	recv    *verbs.MR
	remote  remoteBuffers
	depth   int   // receives that are posted when nothing is under way
	yielded int64 // when breathe last did, by nanos
	looks   int   // at a queue in one call, while there is nothing else to do; 0: one, at all times
	inline  int   // bytes that may be given inline
}

// remoteBuffers is what a peer needs to know to reach our buffers.
type remoteBuffers struct {
	SendAddr uint64 `json:"send_addr"`
	RecvAddr uint64 `json:"recv_addr"`
	SendRKey uint32 `json:"send_rkey"`
	RecvRKey uint32 `json:"recv_rkey"`
}

// connect opens the device and connects with the other rank; all receives are
// posted when it returns. Both ranks call it.
func connect(ctx context.Context, job exchanger, opt pairOptions) (p *pair, err error) {
	p = &pair{job: job, rank: job.Rank(), depth: opt.recvDepth}
	type hello struct {
		Provider string        `json:"provider"`
		Endpoint []byte        `json:"endpoint"`
		Buffers  remoteBuffers `json:"buffers"`
	}
	var me hello
	err = p.open(opt)
	if err == nil {
		me.Provider = p.entry.Provider
		me.Buffers = remoteBuffers{SendAddr: p.send.Addr(), RecvAddr: p.recv.Addr(), SendRKey: p.send.RKey(), RecvRKey: p.recv.RKey()}
		me.Endpoint, err = p.endpoint()
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
			p = nil
		}
	}()
	all, err := share(ctx, job, me, err)
	if err != nil {
		return p, err
	}
	other := all[1-p.rank]
	p.remote = other.Buffers
	err = p.join(other.Endpoint)
	// Neither may send before both have posted their receives.
	_, err = share(ctx, job, struct{}{}, err)
	return p, err
}

// open makes the objects of one side.
func (p *pair) open(opt pairOptions) error {
	dev, err := verbs.Find(opt.device)
	if err != nil {
		return err
	}
	p.ctx, err = dev.Open(verbs.Config{Secret: opt.secret, Insecure: len(opt.secret) == 0, Job: opt.job, Portable: opt.portable})
	if err != nil {
		return err
	}
	if p.attr, err = p.ctx.QueryDevice(); err != nil {
		return err
	}
	if p.entry, err = describeDevice(p.ctx, opt.portable); err != nil {
		return err
	}
	if p.autonomous() && !opt.events {
		p.looks = spinLooks
	}
	if uint64(opt.maxBytes) > uint64(p.attr.MaxMsgSize) {
		return usagef("device %s moves messages of at most %d bytes, not %d", dev.Name(), p.attr.MaxMsgSize, opt.maxBytes)
	}
	pd, err := p.ctx.AllocPD()
	if err != nil {
		return err
	}
	if opt.events {
		if p.channel, err = p.ctx.CreateCompChannel(); err != nil {
			return err
		}
	}
	if p.sendCQ, err = p.ctx.CreateCQ(opt.sendDepth, p.channel); err != nil {
		return err
	}
	if p.recvCQ, err = p.ctx.CreateCQ(opt.recvDepth, p.channel); err != nil {
		return err
	}
	for _, mr := range []**verbs.MR{&p.send, &p.recv} {
		if *mr, err = newMR(pd, bufferSize(opt.maxBytes), opt.heap); err != nil {
			return err
		}
	}
	if p.inline, err = inlineBytes(opt.inline, &p.attr); err != nil {
		return err
	}
	p.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: p.sendCQ, RecvCQ: p.recvCQ, Cap: verbs.QPCap{
		MaxSendWR: opt.sendDepth, MaxRecvWR: opt.recvDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: p.inline}})
	return err
}

// spinLooks bounds how long one call spins; then the CPU is given to others that
// wait for it. In soft-RoCE messages are moved by threads of the kernel that may be
// among them.
const spinLooks = 512

// autonomous: messages move while nobody polls.
func (p *pair) autonomous() bool { return p.entry.Provider == providerIBV }

// breathe has the runtime see every few milliseconds that this goroutine gives way.
// The runtime's monitor wants to preempt one that has not for 10 ms, takes the
// processor from the call into C that it then mostly is in, and for that looks every
// 20 µs for a while, on the CPU that polls. That costs a tenth of a bandwidth where
// posting takes a millisecond, as over soft-RoCE, which moves messages in the call that
// posts them. A second processor of the runtime's would cost more: each time that this
// gives way the runtime would wake a thread for it.
func (p *pair) breathe() {
	const often = 4e6 // ns
	if now := nanos(); now-p.yielded > often {
		p.yielded = now
		runtime.Gosched()
	}
}

// providerIBV is the provider of RDMA devices.
const providerIBV = "ibv"

// inlineBytes is the most that is given inline where wanted is asked for.
func inlineBytes(wanted int, device *verbs.DeviceAttr) (int, error) {
	// An adapter saves a trip over its bus for as much as fits a few of the
	// queue's 64-byte units. Where the peer's memory is reached by load and store
	// there is no such trip: more than goes with the flag into one cache line
	// would only be copied once more.
	usual := 256
	if device.LoadStore {
		usual = 32
	}
	switch {
	case wanted < 0:
		return min(usual, device.MaxInlineData), nil
	case wanted > device.MaxInlineData:
		return 0, usagef("--inline %d: the device takes at most %d", wanted, device.MaxInlineData)
	}
	return wanted, nil
}

// bufferSize is the size of a buffer for messages of at most so many bytes: an
// atomic fits, and the guard behind the longest.
func bufferSize(maxBytes int) int { return max(maxBytes, atomicBytes) + guard }

// newMR makes a buffer, and writes all of it: memory that nobody has written may
// be one page of zeros many times over, which fits every cache.
func newMR(pd *verbs.PD, size int, heap bool) (mr *verbs.MR, err error) {
	if heap {
		mr, err = pd.RegMR(make([]byte, size), verbs.AccessAll)
	} else {
		mr, err = pd.AllocMR(size, verbs.AccessAll)
	}
	if err != nil {
		return nil, err
	}
	fillGuard(mr.Bytes())
	return mr, nil
}

// endpoint takes the QP to INIT, where its port is known.
func (p *pair) endpoint() ([]byte, error) {
	attr := verbs.QPAttr{QPState: verbs.QPInit, PortNum: 1, AccessFlags: verbs.AccessAll}
	if err := p.qp.Modify(&attr, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags); err != nil {
		return nil, err
	}
	e, err := p.qp.Endpoint()
	if err != nil {
		return nil, err
	}
	return e.MarshalBinary()
}

// join connects with the peer's endpoint and posts all receives.
func (p *pair) join(peer []byte) error {
	e, err := verbs.ParseEndpoint(peer)
	if err != nil {
		return err
	}
	if err := p.qp.Connect(e, verbs.ConnectAttr{}); err != nil {
		return err
	}
	return p.postRecvs(p.recvWRs(p.depth))
}

// recvWRs makes n receives into the receive buffer. They all name the same
// memory: what it holds is looked at only when one message is under way.
func (p *pair) recvWRs(n int) []verbs.RecvWR {
	sge := []verbs.SGE{p.recv.SGE(0, p.recv.Len())}
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i].SGList = sge
	}
	return wrs
}

// Close takes all down; the peer's operations fail from then on.
func (p *pair) Close() error {
	if p.ctx == nil {
		return nil
	}
	return p.ctx.Close()
}

// errRecvFull: more receives were posted than the queue holds.
var errRecvFull = errors.New("receive queue is full")

func (p *pair) postRecvs(wrs []verbs.RecvWR) error {
	n, err := p.qp.PostRecv(wrs)
	if err == nil && n < len(wrs) {
		err = fmt.Errorf("%w: took %d of %d", errRecvFull, n, len(wrs))
	}
	return err
}

// pause is called when polling found nothing. Where waiting is spinning it
// returns at once, or where polling has spun yields. Else its first call arms the queues, so that the caller polls
// once more and misses nothing, and the next one sleeps until an event.
func (p *pair) pause() error {
	if p.channel == nil {
		if p.looks > 0 {
			wait.Yield()
		}
		return nil
	}
	return p.sleep()
}

func (p *pair) sleep() error {
	if p.armed {
		p.armed = false
		// Not bounded: a peer that dies makes completions, a user who is tired
		// of it ends the process.
		_, err := p.channel.Get(context.Background())
		return err
	}
	p.armed = true
	for _, cq := range []*verbs.CQ{p.sendCQ, p.recvCQ} {
		if err := cq.ReqNotify(false); err != nil {
			return err
		}
	}
	return nil
}
