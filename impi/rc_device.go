package impi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/verbs"
)

// rcDevice is an open device with what the queue pairs of all links share: a completion queue and
// the receives. There are enough receives that a message always finds one (no RNR): for each pair
// of processes as many packets as may be in flight, plus the acknowledgements, which do not count.
// Receives are reposted before any acknowledgement is sent.
type rcDevice struct {
	e       *engine
	name    string
	ctx     *verbs.Context
	pd      *verbs.PD
	regMR   func([]byte, verbs.AccessFlags) (*verbs.MR, error) // of pd
	ch      *verbs.CompChannel
	cq      *verbs.CQ
	srq     *verbs.SRQ // nil: each queue pair has its own receives, which is faster on shared memory
	slot    int        // bytes of a packet, with its header
	slots   uint32     // packets that a queue pair sends at a time, a power of 2
	connect verbs.ConnectAttr
	maps    bool // peers' memory can be written by plain stores
	recvs   *verbs.MR
	given   int // of recvs, to queue pairs
	sges    int

	links map[uint32]*rcCarrier // by queue pair
	lanes []*rcCarrier          // that have one
	turn  uint32                // polls of lanes alone
	hot   [hotLanes]*rcCarrier  // whose lanes have brought messages last; nil: none
	cold  int                   // where among lanes the next poll that is not of all begins
	swap  int                   // which of hot is replaced next
	kept  []*verbs.MR           // memory that peers of lost links may still store to
	last  *rcCarrier
	wcs   [64]verbs.WC
	again receives   // to be posted to the SRQ
	early []verbs.WC // completions that came while links were being connected
}

// How often completions are polled while lanes bring most of the messages: once in so many polls,
// and less often as they continue to.
const (
	turnIdle = 4
	turnBusy = 16
)

// Looking at a lane takes some cache lines, which a CPU does not keep for many peers. A poll that need not
// be of all looks at the lanes that have brought messages last, and at some of the others in turn.
const (
	hotLanes  = 8
	coldLanes = 16 // of up to so many each is looked at
)

// poll takes what has arrived in lanes and handles completions.
func (d *rcDevice) poll(all bool) bool {
	moved, lanes := false, d.lanes
	if !all && len(lanes) > coldLanes {
		moved = d.pollHot()
		lanes = d.nextCold()
	}
	for _, c := range lanes {
		if c.pollLane() {
			moved = true
			d.warm(c)
			c.goOn()
		}
	}
	if d.turn++; d.turn%turnIdle != 0 && len(d.lanes) > 0 || moved && d.turn%turnBusy != 0 {
		return moved
	}
	return d.pollCQ() || moved
}

// pollHot takes what has arrived in the lanes that have brought messages last.
func (d *rcDevice) pollHot() bool {
	moved := false
	for _, c := range d.hot {
		if c != nil && c.pollLane() {
			moved = true
			c.goOn()
		}
	}
	return moved
}

// nextCold returns the lanes that are next to be looked at.
func (d *rcDevice) nextCold() []*rcCarrier {
	n := len(d.lanes)
	if d.cold >= n {
		d.cold = 0
	}
	from := d.cold
	d.cold = min(from+coldLanes, n)
	return d.lanes[from:d.cold]
}

// warm puts a lane that has brought a message among the hot ones.
func (d *rcDevice) warm(c *rcCarrier) {
	if len(d.lanes) > coldLanes && !slices.Contains(d.hot[:], c) {
		d.hot[d.swap] = c
		d.swap = (d.swap + 1) % hotLanes
	}
}

// pollCQ handles completions.
func (d *rcDevice) pollCQ() bool {
	moved := false
	for len(d.early) > 0 {
		early := d.early
		d.early = nil
		d.handle(early)
		moved = true
	}
	n, err := d.cq.Poll(d.wcs[:])
	if n == 0 && err == nil {
		return moved
	}
	if err != nil {
		moved = len(d.links) > 0 // the first time
		for _, c := range d.links {
			c.l.lost(err)
		}
		return moved
	}
	d.handle(d.wcs[:n])
	return true
}

func (d *rcDevice) handle(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		c := d.last
		if c == nil || c.num != wc.QPNum {
			c = d.links[wc.QPNum]
		}
		recv := wc.Opcode >= verbs.WCRecv
		if c != nil && c.l.err == nil {
			d.last = c
			var err error
			switch {
			case wc.Status != verbs.WCSuccess:
				c.lastLines()
				err = wc.Err()
			case recv:
				err = c.received(wc)
			default:
				c.completed(uint32(wc.WRID))
			}
			if err != nil {
				c.l.lost(err)
			}
		}
		if recv {
			d.repost(c, int(wc.WRID))
		}
		if c != nil && (i+1 == len(wcs) || wcs[i+1].QPNum != wc.QPNum) {
			c.goOn()
		}
	}
}

// receives holds the receives to be reposted.
type receives struct {
	wrs  []verbs.RecvWR
	sges []verbs.SGE
}

// repostMost is how many receives are posted at a time; all are posted before any acknowledgement.
const repostMost = 8

func newReceives(n int) receives {
	return receives{make([]verbs.RecvWR, 0, n), make([]verbs.SGE, 0, n)}
}

func (r *receives) add(d *rcDevice, i int) {
	r.sges = append(r.sges, d.recvs.SGE(i*d.slot, d.slot))
	r.wrs = append(r.wrs, verbs.RecvWR{WRID: uint64(i), SGList: r.sges[len(r.sges)-1:]})
}

// post posts them all.
func (r *receives) post(post func([]verbs.RecvWR) (int, error)) error {
	if len(r.wrs) == 0 {
		return nil
	}
	n, err := post(r.wrs)
	if err == nil && n < len(r.wrs) {
		err = fmt.Errorf("only %d of %d receives were accepted", n, len(r.wrs))
	}
	r.wrs, r.sges = r.wrs[:0], r.sges[:0]
	return err
}

// repost adds a receive to those to be reposted, and posts them if there are many.
func (d *rcDevice) repost(c *rcCarrier, i int) {
	switch {
	case d.srq != nil:
		if d.again.add(d, i); len(d.again.wrs) >= repostMost {
			d.postRecvs(c)
		}
	case c != nil:
		if c.again.add(d, i); len(c.again.wrs) >= repostMost {
			d.postRecvs(c)
		}
	}
}

// postRecvs posts the receives to be reposted.
func (d *rcDevice) postRecvs(c *rcCarrier) {
	if d.srq != nil {
		if err := d.again.post(d.srq.PostRecv); err != nil {
			for _, c := range d.links {
				c.l.lost(err)
			}
		}
	} else if c != nil && c.qp != nil {
		if err := c.again.post(c.qp.PostRecv); err != nil {
			c.l.lost(err)
		}
	}
}

// block waits for completions.
func (d *rcDevice) block(ctx context.Context) error {
	d.e.lock.Lock()
	d.sleepLanes(true)
	err := d.cq.ReqNotify(false)
	moved := err == nil && (d.poll(true) || d.pollCQ())
	d.e.lock.Unlock()
	if err == nil && !moved {
		_, err = d.ch.Get(ctx)
	}
	d.e.lock.Lock()
	d.sleepLanes(false)
	d.e.lock.Unlock()
	return err
}

// close closes the device after its links.
func (d *rcDevice) close() error {
	var err error
	for _, mr := range d.kept {
		err = errors.Join(err, mr.Close())
	}
	d.kept = nil
	return errors.Join(err, d.ctx.Close())
}
