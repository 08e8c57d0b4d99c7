package verbs

import "context"

// fakeContext is a device whose objects do only what a test makes them do.
type fakeContext struct {
	closeMR func() error      // nil: succeeds
	grant   func(QPCap) QPCap // nil: what was asked for
	gids    int               // entries of the GID table
	fails   error             // why QPs fail in RTR; nil: they do not
	polled  func()            // a CQ is polled
	blocked func()            // Block is called
}

// openFake opens a device of it.
func openFake(f *fakeContext) (*Context, error) {
	attr, _ := f.QueryDevice()
	return newContext(&Device{prov: fakeProvider{name: "fake"}, info: DeviceInfo{Name: "fake0"}}, f, attr), nil
}

func (f *fakeContext) QueryDevice() (DeviceAttr, error) {
	return DeviceAttr{MaxMRSize: 1 << 30, MaxQPWR: 100, MaxSGE: 10, MaxInlineData: 100, MaxCQE: 100, PhysPortCnt: 1}, nil
}
func (f *fakeContext) QueryPort(int) (PortAttr, error)                 { return PortAttr{GIDTblLen: f.gids}, nil }
func (f *fakeContext) QueryGID(int, int) (GID, error)                  { return GID{}, nil }
func (f *fakeContext) AllocPD() (ProviderPD, error)                    { return &fakePD{f: f}, nil }
func (f *fakeContext) CreateCompChannel() (ProviderCompChannel, error) { return nil, ErrNotSupported }
func (f *fakeContext) CreateCQ(int, ProviderCompChannel) (ProviderCQ, error) {
	return &fakeCQ{f: f}, nil
}
func (f *fakeContext) AsyncEvent(context.Context) (ProviderEvent, error) {
	return ProviderEvent{}, ErrNotSupported
}
func (f *fakeContext) Close() error { return nil }

type fakePD struct{ f *fakeContext }

func (p *fakePD) RegMR(buf []byte, _ AccessFlags) (ProviderMR, error) {
	return &fakeMR{f: p.f, buf: buf}, nil
}
func (p *fakePD) CreateQP(a ProviderQPInit) (ProviderQP, error) {
	if p.f.grant != nil {
		a.Cap = p.f.grant(a.Cap)
	}
	return &fakeQP{f: p.f, cap: a.Cap}, nil
}
func (p *fakePD) CreateSRQ(SRQAttr) (ProviderSRQ, error) { return nil, ErrNotSupported }
func (p *fakePD) Close() error                           { return nil }

type fakeMR struct {
	f   *fakeContext
	buf []byte
}

func (m *fakeMR) Addr() uint64  { return 0 }
func (m *fakeMR) Bytes() []byte { return m.buf }
func (m *fakeMR) LKey() uint32  { return 1 }
func (m *fakeMR) RKey() uint32  { return 1 }
func (m *fakeMR) Close() error {
	if m.f.closeMR != nil {
		return m.f.closeMR()
	}
	return nil
}

type fakeCQ struct{ f *fakeContext }

func (q *fakeCQ) Poll([]WC) (int, error) {
	if q.f.polled != nil {
		q.f.polled()
	}
	return 0, nil
}
func (*fakeCQ) ReqNotify(bool) error { return nil }
func (q *fakeCQ) Block(context.Context) error {
	if q.f.blocked != nil {
		q.f.blocked()
	}
	return nil
}
func (*fakeCQ) Close() error { return nil }

type fakeQP struct {
	f   *fakeContext
	cap QPCap
}

func (*fakeQP) QPNum() uint32  { return 2 }
func (q *fakeQP) Cap() QPCap   { return q.cap }
func (q *fakeQP) Cause() error { return q.f.fails }
func (q *fakeQP) Modify(a *QPAttr, _ QPAttrMask) error {
	if a.QPState == QPRTS && q.f.fails != nil {
		return ErrState
	}
	return nil
}
func (q *fakeQP) Query() (QPAttr, error)          { return QPAttr{Cap: q.cap}, nil }
func (*fakeQP) State() QPState                    { return QPReset }
func (*fakeQP) PostSend(w []SendWR) (int, error)  { return len(w), nil }
func (*fakeQP) PostRecv(wr []RecvWR) (int, error) { return len(wr), nil }
func (*fakeQP) Close() error                      { return nil }
