package channel

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// link is a queue pair to a peer, through which its memory is mapped or messages are sent.
type link struct {
	dev *device
	gid int // index of the GID to use; 0: the device chooses
	qp  *verbs.QP
	cq  *verbs.CQ

	// Of a queue: buffers of one message each, to receive into.
	pool   *receivePool // the device's; nil: recvs
	recvs  *verbs.MR
	buffer int      // size of each
	batch  receives // receives to be posted
}

// shape maps the regions of a layout.
func (l *link) shape(info *layoutInfo) (s layout.Shape, err error) {
	bases := make([][]byte, len(info.regions))
	for i, r := range info.regions {
		if bases[i], err = l.qp.Map(r.rkey, r.addr, int(r.length)); err != nil {
			return s, err
		}
	}
	for _, q := range info.parts {
		if err := s.Add(q.over(bases[q.region])); err != nil {
			return layout.Shape{}, err
		}
	}
	return s, nil
}

// explain returns why the queue pair has gone to ERR if err only says that the peer is not reached.
func (l *link) explain(err error) error {
	if wc := (*verbs.WCError)(nil); errors.As(err, &wc) && wc.WC.Status != verbs.WCRetryExcErr && wc.WC.Status != verbs.WCGeneralErr && wc.WC.Status != verbs.WCWRFlushErr {
		return err
	}
	if cause := l.qp.Cause(); cause != nil {
		return fmt.Errorf("queue pair %#06x: %w", l.qp.QPNum(), cause)
	}
	return err
}

// view returns memory of the peer, n bytes, when its arena has arrived, which is waited for until ctx
// ends.
func (l *link) view(ctx context.Context, r region, n int) ([]byte, error) {
	if r.length != uint64(n) {
		return nil, fmt.Errorf("%w: region of %d bytes, want %d", ErrProtocol, r.length, n)
	}
	for pauses := (wait.Pauses{}); ; {
		b, err := l.qp.Map(r.rkey, r.addr, n)
		switch {
		case err == nil:
			return b, nil
		case l.qp.State() != verbs.QPRTS: // the peer has died since
			return nil, l.explain(err)
		case !errors.Is(err, verbs.ErrState):
			return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if err := pauses.Next(ctx); err != nil {
			return nil, err
		}
	}
}
