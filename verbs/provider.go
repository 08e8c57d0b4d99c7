package verbs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Answer is the result of a probe: yes, no, or unknown.
type Answer uint8

// Answers.
const (
	Unknown Answer = iota // the probe could not tell; only trying will
	Yes
	No
)

// String returns "yes", "no" or "could not tell".
func (a Answer) String() string {
	return enumName([]string{"could not tell", "yes", "no"}, int(a), "Answer")
}

// Probe says whether a provider is available. If the answer is not [Yes], it gives the reason.
type Probe struct {
	Answer Answer
	Reason string // empty with Yes
}

// ProviderInfo names a registered provider and says whether it is available here.
type ProviderInfo struct {
	Name      string
	Probe     Probe
	OnRequest bool // see [Device.OnRequest]
}

// Providers lists the registered providers, available or not, in order of preference.
func Providers() []ProviderInfo {
	var l []ProviderInfo
	for _, p := range registered() {
		l = append(l, ProviderInfo{p.Name(), p.Probe(), passedOver(p)})
	}
	return l
}

// The interfaces below connect this package to the providers beneath it. They are
// batch-first, have no behaviour of their own, and may change with the module:
// providers outside it have no stability guarantee.
//
// This package makes the checks common to all providers: lifetimes (it calls no
// method of a provider's object after its Close, and closes children before
// parents), limits against DeviceAttr, and that objects belong to one context. A
// provider checks what only it knows: keys, ranges, states, opcodes.

// Provider implements verbs over one kind of device or transport.
type Provider interface {
	Name() string // as in Endpoint.Provider
	// Rank orders providers by preference, lowest first.
	Rank() int
	Probe() Probe
	Devices() ([]DeviceInfo, error)
	Open(device string, cfg Config) (ProviderContext, error)
}

// OnRequester is an optional interface of a [Provider]; see [Device.OnRequest].
type OnRequester interface {
	OnRequest() bool
}

// DeviceInfo is what a provider knows of a device without opening it.
type DeviceInfo struct {
	Name   string
	Netdev string
}

// ProviderContext implements [Context].
type ProviderContext interface {
	QueryDevice() (DeviceAttr, error)
	QueryPort(port int) (PortAttr, error)
	QueryGID(port, index int) (GID, error)
	AllocPD() (ProviderPD, error)
	CreateCompChannel() (ProviderCompChannel, error)
	CreateCQ(cqe int, ch ProviderCompChannel) (ProviderCQ, error)
	// AsyncEvent blocks until there is an event, ctx ends, or Close is called.
	AsyncEvent(ctx context.Context) (ProviderEvent, error)
	Close() error
}

// Ender is an optional interface of a [ProviderContext]: [Context.Close] calls Ending before it closes the
// children. What peers have mapped ([RemoteMapper]) keeps its bytes from then on.
type Ender interface {
	Ending()
}

// ProviderEvent is an [AsyncEvent] before its object is looked up. Object is its
// ProviderQP, ProviderCQ or ProviderSRQ, nil for ports and devices.
type ProviderEvent struct {
	Type   EventType
	Object any
	Port   int
}

// ProviderPD implements [PD].
type ProviderPD interface {
	RegMR(buf []byte, access AccessFlags) (ProviderMR, error)
	CreateQP(attr ProviderQPInit) (ProviderQP, error)
	CreateSRQ(attr SRQAttr) (ProviderSRQ, error)
	Close() error
}

// MemoryAllocator is an optional interface of a [ProviderPD]: it allocates memory
// that the provider moves faster than any other.
type MemoryAllocator interface {
	AllocMR(size int, access AccessFlags) (ProviderMR, error)
}

// ProviderMR implements [MR].
type ProviderMR interface {
	Addr() uint64
	Bytes() []byte
	LKey() uint32
	RKey() uint32
	Close() error
}

// ProviderCompChannel implements [CompChannel].
type ProviderCompChannel interface {
	FD() (int, error)
	// Get blocks until an armed CQ has fired, ctx ends, or Close is called.
	Get(ctx context.Context) (ProviderCQ, error)
	Close() error
}

// ProviderCQ implements [CQ].
type ProviderCQ interface {
	Poll(wcs []WC) (int, error)
	ReqNotify(solicitedOnly bool) error
	// Block returns once a completion may have arrived since Poll last found the CQ
	// empty, or when ctx ends, with its error. It is only for CQs without a channel.
	Block(ctx context.Context) error
	Close() error
}

// SpinPoller is an optional interface of a [ProviderCQ] whose calls cost more than a
// poll: PollSpin polls up to looks times in one call.
type SpinPoller interface {
	PollSpin(wcs []WC, looks int) (int, error)
}

// ProviderQPInit is [QPInitAttr] with the provider's own objects. SRQ is nil without one.
type ProviderQPInit struct {
	SendCQ, RecvCQ ProviderCQ
	SRQ            ProviderSRQ
	Cap            QPCap
	SQSigAll       bool
}

// ProviderQP implements [QP].
type ProviderQP interface {
	QPNum() uint32
	// Cap returns the capabilities granted, at least those requested. It is called
	// once, at creation.
	Cap() QPCap
	Modify(attr *QPAttr, mask QPAttrMask) error
	Query() (QPAttr, error)
	State() QPState
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	Close() error
}

// RemoteMapper is an optional interface of a [ProviderQP]; see [QP.Map].
type RemoteMapper interface {
	Map(rkey uint32, addr uint64, length int) ([]byte, error)
}

// Explainer is an optional interface of a [ProviderQP]; see [QP.Cause].
type Explainer interface {
	Cause() error
}

// ProviderSRQ implements [SRQ].
type ProviderSRQ interface {
	PostRecv(wrs []RecvWR) (int, error)
	Modify(limit int) error
	Query() (SRQAttr, error)
	Close() error
}

var registry struct {
	sync.Mutex
	providers []Provider
}

// Register adds a provider; a provider's package calls it from init. It panics if
// the provider's name is malformed or taken.
func Register(p Provider) {
	registry.Lock()
	defer registry.Unlock()
	if !validProviderName(p.Name()) {
		panic(fmt.Sprintf("verbs: Register: provider name %q is malformed, want 1 to 16 of [a-z0-9_-]", p.Name()))
	}
	for _, q := range registry.providers {
		if q.Name() == p.Name() {
			panic(fmt.Sprintf("verbs: Register: provider %q is already registered", p.Name()))
		}
	}
	registry.providers = append(registry.providers, p)
	slices.SortStableFunc(registry.providers, func(a, b Provider) int { return a.Rank() - b.Rank() })
}

// Lookup returns the registered provider called name, or nil. It is for providers that
// are built on another one.
func Lookup(name string) Provider {
	for _, p := range registered() {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

func registered() []Provider {
	registry.Lock()
	defer registry.Unlock()
	return slices.Clone(registry.providers)
}

// debugOnly lowers every record to level Debug, the level for a library to log at
// without being asked.
type debugOnly struct{ slog.Handler }

func (d debugOnly) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d debugOnly) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d debugOnly) WithAttrs(as []slog.Attr) slog.Handler { return debugOnly{d.Handler.WithAttrs(as)} }
func (d debugOnly) WithGroup(n string) slog.Handler       { return debugOnly{d.Handler.WithGroup(n)} }
