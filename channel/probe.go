package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// connect connects to the peer's endpoint; from then on the peer may write. On Ethernet it may
// take about a second, while the kernel resolves the peer's address.
func (l *link) connect(e verbs.Endpoint, bound time.Duration) error {
	attr := l.dev.connectAttr(bound)
	attr.SGIDIndex = l.gid
	if err := l.qp.Connect(e, attr); err != nil || l.pool != nil {
		return err
	}
	if _, err := l.qp.PostRecv([]verbs.RecvWR{{WRID: queueRecvs}}); err != nil {
		return err
	}
	return l.postRecvs()
}

// post posts a write with immediate of no bytes, for probe.
func (l *link) post() error {
	_, err := l.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}})
	return err
}

// probe verifies that connected queue pairs work in both directions: got counts the completions
// of both ends' posts. A rank that gets no CPU could mistake a working network for a broken one: the
// bound is one of patience, and the last look comes after it.
func (l *link) probe(ctx context.Context, bound time.Duration, got *int) error {
	ctx, cancel := wait.Patience(ctx, bound)
	defer cancel()
	var wcs [2]verbs.WC
	var over error
	var pauses wait.Pauses
	for *got < 2 {
		k, err := l.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if k == 0 {
			if over != nil {
				return fmt.Errorf("no write with immediate has come through: %w", over)
			}
			over = pauses.Next(ctx)
		}
		var failed error
		for i := range wcs[:k] {
			if l.pool != nil && isReceive(&wcs[i]) {
				l.again(int(wcs[i].WRID))
			}
			failed = cmp.Or(failed, wcs[i].Err())
		}
		if failed != nil {
			return l.explain(failed)
		}
		if err := l.postRecvs(); err != nil {
			return err
		}
		*got += k
	}
	return nil
}

// connectAttr returns the attributes of a link whose probe takes at most bound.
func (d *device) connectAttr(bound time.Duration) verbs.ConnectAttr {
	var a verbs.ConnectAttr
	if d.rdma {
		a = d.node.opt.connect
		if a.RetryCnt == (verbs.RetryCount{}) {
			a.RetryCnt = verbs.Retries(tries - 1)
		}
	}
	switch {
	case d.mapped || d.provider() == "tcp": // they retransmit nothing, and the probe bounds the time to connect
		a.Timeout = 31
	case a.Timeout == 0:
		a.Timeout = ackTimeout(min(bound, max(probeTime, d.node.opt.connectTimeout/3)), d.node.opt.peerTimeout)
	}
	return a
}

// tries is how often a message is sent to a peer that does not answer. Soft-RoCE would treat 7
// retries, which make eight tries, as unlimited.
const tries = 7

// ackTimeout is the code of a local ACK timeout, of which tries must expire before the peer is
// given up. A device may take up to four times as long (IBA vol. 1, 9.7.6.1.3), which is still
// within most. The total is not shorter than bound, so that lost packets are retransmitted for
// as long as a probe takes.
func ackTimeout(bound, most time.Duration) uint8 {
	code := uint8(1)
	for ; code < 31 && (tries*verbs.AckTimeout(code) < bound || 4*tries*verbs.AckTimeout(code+1) <= most); code++ {
	}
	return code
}

// endpoint returns the endpoint to send to the peer, with the GID that the link uses, and with an
// MTU of at most the one that the program sets.
func (l *link) endpoint() (verbs.Endpoint, error) {
	e, err := l.qp.Endpoint()
	if err != nil {
		return e, err
	}
	if mtu := l.dev.node.opt.connect.PathMTU; l.dev.rdma && mtu != 0 {
		e.ActiveMTU = min(e.ActiveMTU, mtu)
	}
	if l.gid == 0 {
		return e, nil
	}
	a, err := l.qp.Query()
	if err == nil {
		e.GID, err = l.dev.ctx.QueryGID(int(a.PortNum), l.gid)
	}
	return e, err
}

// close closes a link, or as much of it as has been made.
func (l *link) close() error {
	var errs []error
	if l.qp != nil {
		if l.pool != nil && l.qp.State() != verbs.QPReset {
			errs = append(errs, l.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState), l.drain(func(*verbs.WC) {}))
		}
		errs = append(errs, l.qp.Close())
	}
	errs = append(errs, l.cq.Close())
	if l.recvs != nil {
		errs = append(errs, l.recvs.Close())
	}
	return errors.Join(errs...)
}
