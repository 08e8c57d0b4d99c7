package channel

import "github.com/sluice-hpc/sluice/verbs"

// broken ends the queue and the peer. The QP leaves RTS first, so that the peer no longer
// accesses our memory when the operations end.
func (q *queue) broken(err error) {
	if q.failed {
		return
	}
	q.cut()
	q.peer.node.wg.Go(func() { q.peer.lost(err) })
}

func (q *queue) cut() {
	q.failed = true
	if err := q.link.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState); err != nil {
		q.peer.node.log.Warn("channel: cannot stop a queue pair", "peer", q.peer.rank, "error", err)
	}
	if q.outstanding.posted != q.outstanding.done && !q.outstanding.settling {
		if err := q.mark(); err != nil {
			q.peer.node.log.Info("channel: cannot return send buffers to the pool", "peer", q.peer.rank, "error", err)
		}
	}
	q.drain()
	q.note()
	q.link.dev.kick()
}

// drain returns to the pools what the queue pair, which is in ERR, has taken from them.
func (q *queue) drain() {
	if err := q.link.drain(q.over); err != nil {
		q.peer.node.log.Info("channel: cannot return receives to the pool", "peer", q.peer.rank, "error", err)
	}
}

// end receives what has arrived and cuts the connection: the peer has left or died.
func (q *queue) end() {
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.failed {
		q.poll()
	}
	if !q.failed {
		q.cut()
	}
}

// drained says whether everything that has completed or begun here has reached the other side.
func (q *queue) drained() bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.poll()
	moving := len(q.writes.moving) + len(q.writes.posted) + len(q.reads.moving) + len(q.reads.posted)
	q.settle()
	return q.failed || moving+len(q.control) == 0 && q.outstanding.posted == q.outstanding.done
}
