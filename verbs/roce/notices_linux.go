package roce

import "time"

// noticeWriter logs notices, and packets for queue pairs that are not there. The driver alone
// uses it.
type noticeWriter struct {
	*notices
	strange   uint64 // packets when they were logged last
	strangeAt int64
}

// strangeEvery is the least time between two logs of packets for queue pairs that are not there:
// their senders decide how many come.
const strangeEvery = int64(time.Second)

// write logs what there is; strange is how many packets of strangers have come so far.
func (n *noticeWriter) write(strange uint64, now int64) {
	if strange != n.strange && (n.strange == 0 || now-n.strangeAt >= strangeEvery) {
		n.out.Info("roce: packets for queue pairs that are not there", "count", strange-n.strange)
		n.strange, n.strangeAt = strange, now
	}
	if !n.some.Swap(false) {
		return
	}
	n.mu.Lock()
	lost, more := n.lost, n.more
	n.lost, n.more = nil, 0
	n.mu.Unlock()
	for _, l := range lost {
		reason := "silent"
		if l.vendor == vendorGone {
			reason = "gone"
		}
		n.out.Warn("roce: peer lost", "qp", l.num, "peer", l.peer.addr, "peer_qp", l.peer.num, "reason", reason, "silent", l.silent)
	}
	if more > 0 {
		n.out.Warn("roce: more peers lost", "count", more)
	}
}
