package roce

import "time"

// noticeWriter logs notices, and packets for queue pairs that do not exist. Only the driver uses
// it.
type noticeWriter struct {
	*notices
	strange   uint64 // count of such packets when they were last logged
	strangeAt int64
}

// strangeEvery is the shortest time between two records of packets for queue pairs that do not
// exist: their senders decide how many come.
const strangeEvery = int64(time.Second)

// write logs all notices; strange is the number of packets from strangers so far.
func (n *noticeWriter) write(strange uint64, now int64) {
	if strange != n.strange && (n.strange == 0 || now-n.strangeAt >= strangeEvery) {
		n.out.Info("roce: received packets for queue pairs that do not exist", "count", strange-n.strange)
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
