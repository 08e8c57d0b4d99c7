package verbs

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// Context is an open device (struct ibv_context). It owns all objects made from
// it; closing it closes them.
type Context struct {
	dev  *Device
	prov ProviderContext
	attr DeviceAttr

	mu     sync.Mutex // held for a few instructions, or while an object is made
	closed bool
	// byProv maps the provider's object to this package's; it lists all open
	// objects. It is changed only with mu held. A lookup, for an event, takes no
	// lock, so it never waits for the creation of an object.
	byProv sync.Map // of child
	// ending counts the children whose own Close is running. That happens without
	// mu: a provider may have to wait for a peer.
	ending sync.WaitGroup
}

// child is any object of a context.
type child interface {
	rank() int // order in which Context.Close closes it, lowest first
	base() *object
	provider() io.Closer
	// letGo removes the child from the user counts of the objects it depends on.
	// Context.mu is held.
	letGo()
}

// object is what all children have in common.
type object struct {
	ctx    *Context
	closed atomic.Bool // set with ctx.mu held
	users  int         // children that depend on it; guarded by ctx.mu
}

func (o *object) base() *object { return o }

func newContext(d *Device, p ProviderContext, a DeviceAttr) *Context {
	return &Context{dev: d, prov: p, attr: a}
}

// Device returns the device that was opened.
func (c *Context) Device() *Device { return c.dev }

// QueryDevice returns the device's limits (ibv_query_device).
func (c *Context) QueryDevice() (DeviceAttr, error) {
	if err := c.alive("query device"); err != nil {
		return DeviceAttr{}, err
	}
	return c.prov.QueryDevice()
}

// QueryPort returns the attributes of a port, counted from 1 (ibv_query_port).
func (c *Context) QueryPort(port int) (PortAttr, error) {
	if err := c.alive("query port"); err != nil {
		return PortAttr{}, err
	}
	if port < 1 || port > c.attr.PhysPortCnt {
		return PortAttr{}, c.errorf("query port", ErrInvalid, "port %d, device has ports 1 to %d", port, c.attr.PhysPortCnt)
	}
	return c.prov.QueryPort(port)
}

// QueryGID returns an entry of a port's GID table (ibv_query_gid).
func (c *Context) QueryGID(port, index int) (GID, error) {
	p, err := c.QueryPort(port)
	if err != nil {
		return GID{}, err
	}
	if index < 0 || index >= p.GIDTblLen {
		return GID{}, c.errorf("query GID", ErrInvalid, "index %d, table has %d", index, p.GIDTblLen)
	}
	return c.prov.QueryGID(port, index)
}

// AllocPD allocates a protection domain (ibv_alloc_pd).
func (c *Context) AllocPD() (*PD, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.errorf("alloc PD", ErrClosed, "")
	}
	pp, err := c.prov.AllocPD()
	if err != nil {
		return nil, err
	}
	pd := &PD{object: object{ctx: c}, prov: pp}
	c.byProv.Store(pp, pd)
	return pd, nil
}

// CreateCompChannel creates a completion channel (ibv_create_comp_channel).
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.errorf("create completion channel", ErrClosed, "")
	}
	pc, err := c.prov.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	ch := &CompChannel{object: object{ctx: c}, prov: pc}
	c.byProv.Store(pc, ch)
	return ch, nil
}

// CreateCQ creates a completion queue of at least cqe entries (ibv_create_cq).
// With a channel, the CQ sends its events there once [CQ.ReqNotify] has armed it.
// Without one (nil), the caller polls, or blocks in [CQ.Wait], as the environment variable
// SLUICE_WAIT says; a value that it cannot have is [ErrInvalid].
func (c *Context) CreateCQ(cqe int, ch *CompChannel) (*CQ, error) {
	if cqe < 1 || cqe > c.attr.MaxCQE {
		return nil, c.errorf("create CQ", ErrInvalid, "%d entries, device has 1 to %d", cqe, c.attr.MaxCQE)
	}
	var how wait.Setting
	if ch == nil {
		var err error
		if how, err = wait.SettingOf("", os.Getenv(wait.EnvWait)); err != nil {
			return nil, c.errorf("create CQ", ErrInvalid, "%v", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.errorf("create CQ", ErrClosed, "")
	}
	var pch ProviderCompChannel
	if ch != nil {
		if err := c.ownsLocked("create CQ", "completion channel", &ch.object); err != nil {
			return nil, err
		}
		pch = ch.prov
	}
	pc, err := c.prov.CreateCQ(cqe, pch)
	if err != nil {
		return nil, err
	}
	if ch != nil {
		ch.users++
	}
	cq := &CQ{object: object{ctx: c}, prov: pc, channel: ch, cqe: cqe, how: how}
	c.byProv.Store(pc, cq)
	return cq, nil
}

// Close closes every object made from the context, queue pairs first, and then the
// device (ibv_close_device); all are closed when it returns. Outstanding work of
// the queue pairs ends. Memory that a live peer may still be writing is not freed,
// and the error says so. From the moment Close starts, every other call on the
// context and its objects, a second Close included, returns [ErrClosed].
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.errorf("close", ErrClosed, "")
	}
	c.closed = true
	var children []child
	for _, o := range c.byProv.Range {
		children = append(children, o.(child))
	}
	for _, ch := range children {
		ch.base().closed.Store(true)
	}
	c.byProv.Clear()
	c.mu.Unlock()
	c.ending.Wait() // children whose own Close is running
	slices.SortFunc(children, func(a, b child) int { return a.rank() - b.rank() })
	if e, ok := c.prov.(Ender); ok {
		e.Ending()
	}
	var errs []error
	for _, ch := range children {
		errs = append(errs, ch.provider().Close())
	}
	return errors.Join(append(errs, c.prov.Close())...)
}

// Order in which Context.Close closes children.
const (
	rankQP = iota
	rankSRQ
	rankMR
	rankCQ
	rankChannel
	rankPD
)

// AsyncEvent waits for the next asynchronous event (ibv_get_async_event), until ctx
// ends (the error is that of ctx) or the context is closed ([ErrClosed]).
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	if err := c.alive("get async event"); err != nil {
		return AsyncEvent{}, err
	}
	pe, err := c.prov.AsyncEvent(ctx)
	if err != nil {
		return AsyncEvent{}, err
	}
	e := AsyncEvent{Type: pe.Type, Port: pe.Port}
	if pe.Object != nil {
		o, _ := c.byProv.Load(pe.Object)
		switch o := o.(type) {
		case *QP:
			e.QP = o
		case *CQ:
			e.CQ = o
		case *SRQ:
			e.SRQ = o
		}
	}
	return e, nil
}

func (c *Context) alive(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.errorf(op, ErrClosed, "")
	}
	return nil
}

// ownsLocked checks that o is open and belongs to c.
func (c *Context) ownsLocked(op, what string, o *object) error {
	if o.ctx != c {
		return c.errorf(op, ErrInvalid, "%s belongs to another context", what)
	}
	if o.closed.Load() {
		return c.errorf(op, ErrClosed, "%s", what)
	}
	return nil
}

func (c *Context) errorf(op string, err error, format string, args ...any) error {
	return Errorf(c.dev.Name(), op, err, format, args...)
}

// end closes a child from its own Close: it checks that the child is open and
// unused, removes it from the context, and has the provider close it with no lock
// held. The objects that the child depends on stay busy until the provider is done.
func end(op string, self child) error {
	o := self.base()
	c := o.ctx
	c.mu.Lock()
	switch {
	case o.closed.Load():
		c.mu.Unlock()
		return c.errorf(op, ErrClosed, "")
	case o.users > 0:
		defer c.mu.Unlock()
		return c.errorf(op, ErrBusy, "%d objects depend on it", o.users)
	}
	o.closed.Store(true)
	c.byProv.Delete(self.provider())
	c.ending.Add(1)
	c.mu.Unlock()
	defer c.ending.Done()
	err := self.provider().Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	self.letGo()
	return err
}
