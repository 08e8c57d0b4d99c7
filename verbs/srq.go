package verbs

import "io"

// SRQAttr describes a shared receive queue (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int // work requests that the queue holds
	MaxSGE int // SGEs of one work request
	// Limit arms EventSRQLimitReached. When fewer than Limit receives are posted,
	// the event is sent once, and Limit is reset to 0. Zero: not armed.
	Limit int
}

// SRQ is a shared receive queue (struct ibv_srq): several QPs take receives from it.
type SRQ struct {
	object
	prov ProviderSRQ
	pd   *PD
}

// PostRecv posts receives (ibv_post_srq_recv); see [QP.PostRecv].
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) {
	const op = "post SRQ receive"
	if s.closed.Load() {
		return 0, s.ctx.errorf(op, ErrClosed, "SRQ")
	}
	for i := range wrs {
		if e := refused(wrs[i].SGList); e != nil {
			n, err := s.prov.PostRecv(wrs[:i])
			return n, e.refusal(s.ctx, op, i, n, err)
		}
	}
	return s.prov.PostRecv(wrs)
}

// ModifyLimit sets the limit below which EventSRQLimitReached is sent (ibv_modify_srq);
// see [SRQAttr].
func (s *SRQ) ModifyLimit(limit int) error {
	if s.closed.Load() {
		return s.ctx.errorf("modify SRQ", ErrClosed, "SRQ")
	}
	return s.prov.Modify(limit)
}

// Query returns the attributes, with the current Limit (ibv_query_srq).
func (s *SRQ) Query() (SRQAttr, error) {
	if s.closed.Load() {
		return SRQAttr{}, s.ctx.errorf("query SRQ", ErrClosed, "SRQ")
	}
	return s.prov.Query()
}

// Close destroys the queue (ibv_destroy_srq). It returns [ErrBusy] while QPs use it.
func (s *SRQ) Close() error { return end("close SRQ", s) }

func (s *SRQ) rank() int           { return rankSRQ }
func (s *SRQ) provider() io.Closer { return s.prov }
func (s *SRQ) letGo()              { s.pd.users-- }
