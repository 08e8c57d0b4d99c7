package soft

import (
	"github.com/sluice-hpc/sluice/verbs"
)

// SendEntry is a posted send work request, copied out of the caller's.
type SendEntry struct {
	WRID       uint64
	Opcode     verbs.Opcode
	Flags      verbs.SendFlags
	Imm        uint32
	RKey       uint32
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	SGEs       []verbs.SGE
	Inline     []byte // payload, if IsInline
	IsInline   bool
	Done       bool           // executed, or failed with Status
	Status     verbs.WCStatus // with Done; a status set before means: fail when its turn comes
	VendorErr  uint32
	Length     uint64 // of the payload in bytes
	Off        uint64 // for the provider: bytes moved so far
	First      uint32 // for the provider: position on the wire where the entry begins
	Mark       uint32 // position on the wire; the entry completes when the peer has passed it
}

// SendQueue is the ring of posted send work requests: those from head to next are started,
// those from next to tail wait. The QP's lock guards it.
type SendQueue struct {
	device           string
	cap              verbs.QPCap
	sigAll           bool
	maxMsg           uint64
	ents             []SendEntry
	mask             uint32
	head, next, tail uint32
	held             bool // state SQD: entries posted after hold do not start
	hold             uint32
	polled           Polled
}

// Init allocates everything that posting needs.
func (q *SendQueue) Init(device string, c verbs.QPCap, sigAll bool, maxMsg uint64) {
	n := uint32(1)
	for int(n) < c.MaxSendWR {
		n *= 2
	}
	q.device, q.cap, q.sigAll, q.maxMsg = device, c, sigAll, maxMsg
	q.ents, q.mask = make([]SendEntry, n), n-1
	sges := make([]verbs.SGE, int(n)*c.MaxSendSGE)
	inl := make([]byte, int(n)*c.MaxInlineData)
	for i := range q.ents {
		q.ents[i].SGEs = sges[i*c.MaxSendSGE : i*c.MaxSendSGE : (i+1)*c.MaxSendSGE]
		q.ents[i].Inline = inl[i*c.MaxInlineData : i*c.MaxInlineData : (i+1)*c.MaxInlineData]
	}
}

// Full reports whether the queue has no room for another entry.
func (q *SendQueue) Full() bool { return int(q.tail-q.polled.count()) >= q.cap.MaxSendWR }

// Idle reports whether everything posted is complete.
func (q *SendQueue) Idle() bool { return q.head == q.tail }

// Outstanding reports whether a started entry is not complete.
func (q *SendQueue) Outstanding() bool { return q.head != q.next }

// Waiting returns the next entry to start, or nil.
func (q *SendQueue) Waiting() *SendEntry {
	if q.next == q.tail || q.held && q.next == q.hold {
		return nil
	}
	return &q.ents[q.next&q.mask]
}

// Hold keeps entries posted from now on from starting (state SQD).
func (q *SendQueue) Hold() { q.held, q.hold = true, q.tail }

// Unhold ends Hold.
func (q *SendQueue) Unhold() { q.held = false }

// Draining reports whether an entry posted before Hold is not complete.
func (q *SendQueue) Draining() bool { return q.held && q.head != q.hold }

// Started moves on to the next waiting entry.
func (q *SendQueue) Started() { q.next++ }

// Oldest returns the oldest entry that is started but not retired, or nil.
func (q *SendQueue) Oldest() *SendEntry {
	if q.head == q.next {
		return nil
	}
	return &q.ents[q.head&q.mask]
}

// OutstandingEntries yields the entries that are started but not retired, oldest first.
func (q *SendQueue) OutstandingEntries(yield func(*SendEntry) bool) {
	for i := q.head; i != q.next; i++ {
		if !yield(&q.ents[i&q.mask]) {
			return
		}
	}
}

// Nth returns the nth started entry after the oldest that is not retired, or nil.
func (q *SendQueue) Nth(n uint32) *SendEntry {
	if n >= q.next-q.head {
		return nil
	}
	return &q.ents[(q.head+n)&q.mask]
}

// At returns the entry at a position in the queue. Positions count all entries ever posted:
// those from [SendQueue.Head] to [SendQueue.Next] are started and not retired.
func (q *SendQueue) At(position uint32) *SendEntry { return &q.ents[position&q.mask] }

// Head returns the position of the oldest entry that is not retired.
func (q *SendQueue) Head() uint32 { return q.head }

// Next returns the position after the last started entry.
func (q *SendQueue) Next() uint32 { return q.next }

// Reset discards all entries.
func (q *SendQueue) Reset() {
	q.head, q.next, q.held = q.tail, q.tail, false
	q.polled.all(q.tail)
}

// Check returns an error if wr must not be posted.
func (q *SendQueue) Check(wr *verbs.SendWR) error { return CheckSend(q.device, &q.cap, wr) }

// CheckSend returns an error if wr must not be posted to a queue pair with capabilities c.
func CheckSend(device string, c *verbs.QPCap, wr *verbs.SendWR) error {
	if wr.Opcode > verbs.OpAtomicFetchAndAdd {
		return verbs.Errorf(device, "post send", verbs.ErrInvalid, "opcode %d", wr.Opcode)
	}
	if len(wr.SGList) > c.MaxSendSGE {
		return verbs.Errorf(device, "post send", verbs.ErrInvalid, "%d SGEs, limit of the QP is %d", len(wr.SGList), c.MaxSendSGE)
	}
	if wr.Flags&verbs.SendInline == 0 {
		if wr.Inline != nil {
			return verbs.Errorf(device, "post send", verbs.ErrInvalid, "Inline is set without the flag SendInline")
		}
		return nil
	}
	if wr.Opcode > verbs.OpSendWithImm {
		return verbs.Errorf(device, "post send", verbs.ErrInvalid, "%v cannot be inline", wr.Opcode)
	}
	n := len(wr.Inline)
	if wr.Inline == nil {
		for i := range wr.SGList {
			n += int(wr.SGList[i].Length)
		}
	} else if len(wr.SGList) > 0 {
		return verbs.Errorf(device, "post send", verbs.ErrInvalid, "both Inline and SGList are set")
	}
	if n > c.MaxInlineData {
		return verbs.Errorf(device, "post send", verbs.ErrInvalid, "%d inline bytes, limit of the QP is %d", n, c.MaxInlineData)
	}
	return nil
}

// Add appends wr, which has passed Check, to a queue that is not full. It checks the request's
// memory; a fault becomes the entry's status.
func (q *SendQueue) Add(wr *verbs.SendWR, t *MRTable, pd *PD) *SendEntry {
	e := &q.ents[q.tail&q.mask]
	q.tail++
	e.WRID, e.Opcode, e.Flags = wr.WRID, wr.Opcode, wr.Flags
	if q.sigAll {
		e.Flags |= verbs.SendSignaled
	}
	e.Imm, e.RKey, e.RemoteAddr = wr.Imm, wr.RKey, wr.RemoteAddr
	e.Done, e.Status, e.VendorErr, e.Off = false, verbs.WCSuccess, 0, 0
	e.IsInline = wr.Flags&verbs.SendInline != 0
	if wr.Inline != nil {
		e.Inline = e.Inline[:copy(e.Inline[:len(wr.Inline)], wr.Inline)]
		e.Length = uint64(len(wr.Inline))
		return e
	}
	var need verbs.AccessFlags
	if wr.Opcode >= verbs.OpRDMARead {
		need = verbs.AccessLocalWrite
		e.CompareAdd, e.Swap = wr.CompareAdd, wr.Swap
	}
	total, f := t.CheckSGEs(pd, wr.SGList, need)
	e.Length = total
	e.SGEs = e.SGEs[:copy(e.SGEs[:len(wr.SGList)], wr.SGList)]
	switch {
	case f != OK:
		e.Status = verbs.WCLocProtErr
	case total > q.maxMsg, wr.Opcode >= verbs.OpAtomicCmpAndSwp && total != 8:
		e.Status = verbs.WCLocLenErr
	case e.IsInline:
		e.Inline = e.Inline[:total]
		if t.Gather(pd, e.SGEs, 0, e.Inline) != OK {
			e.Status = verbs.WCLocProtErr
		}
	}
	return e
}

// Quick appends a request that starts at once: nothing waits in the queue and it is not full,
// the payload is already on the wire, and mark is its position there. It skips what Add does
// for requests that may have to wait.
func (q *SendQueue) Quick(wr *verbs.SendWR, length uint64, mark uint32) {
	e := &q.ents[q.tail&q.mask]
	q.tail++
	q.next++
	e.WRID, e.Opcode, e.Flags = wr.WRID, wr.Opcode, wr.Flags
	if q.sigAll {
		e.Flags |= verbs.SendSignaled
	}
	e.Done, e.Status, e.VendorErr, e.Off = false, verbs.WCSuccess, 0, 0
	e.Length, e.Mark = length, mark
}

// Straight reports whether an entry added now would be the next to start, and there is room
// for it.
func (q *SendQueue) Straight() bool {
	return q.next == q.tail && !q.held && !q.Full()
}

// Retire completes entries from the oldest on, and pushes their completions: entries that are
// done, and entries other than RDMA_READs and atomics whose mark the peer has passed. It
// returns false if the CQ overran.
func (q *SendQueue) Retire(passed uint32, cq *CQ, s *Sink, qpn, peer uint32) bool {
	ok := true
	for q.head != q.next {
		e := &q.ents[q.head&q.mask]
		if !e.Done && (e.Opcode >= verbs.OpRDMARead || int32(e.Mark-passed) > 0) {
			break
		}
		q.head++
		if e.Flags&verbs.SendSignaled == 0 && e.Status == verbs.WCSuccess {
			q.polled.add()
			continue
		}
		wc := verbs.WC{WRID: e.WRID, Status: e.Status, Opcode: e.Opcode.WCOpcode(), VendorErr: e.VendorErr, QPNum: qpn, SrcQP: peer}
		if e.Opcode >= verbs.OpRDMARead && e.Status == verbs.WCSuccess {
			wc.ByteLen = uint32(e.Length)
		}
		ok = cq.Push(s, &wc, false, &q.polled) && ok
	}
	return ok
}

// Flush fails the oldest entry that is not done with first, and flushes all after it, even
// those already done, since nothing succeeds after a failure. It starts all entries, so that
// Retire takes them. If first is WCSuccess, all are flushed.
func (q *SendQueue) Flush(first verbs.WCStatus, vendor uint32) {
	i := q.head
	for i != q.tail && q.ents[i&q.mask].Done {
		i++
	}
	for ; i != q.tail; i++ {
		e := &q.ents[i&q.mask]
		e.Done, e.Status = true, verbs.WCWRFlushErr
		if first != verbs.WCSuccess {
			e.Status, e.VendorErr = first, vendor
			first = verbs.WCSuccess
		}
	}
	q.next, q.held = q.tail, false
}
