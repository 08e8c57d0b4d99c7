package verbs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Answer of a probe: yes, no, or could not tell.
type Answer uint8

// Answers.
const (
	Unknown Answer = iota // could not tell; trying is the only way
	Yes
	No
)

// String is "yes", "no" or "could not tell".
func (a Answer) String() string {
	return enumName([]string{"could not tell", "yes", "no"}, int(a), "Answer")
}

// Probe says whether something is available, and why not or what could not be told.
type Probe struct {
	Answer Answer
	Reason string // empty with Yes
}

// ProviderInfo names a registered provider and says whether it is available here.
type ProviderInfo struct {
	Name      string
	Probe     Probe
	OnRequest bool // as [Device.OnRequest]
}

// Providers lists the registered providers, available or not, in order of preference.
func Providers() []ProviderInfo {
	var l []ProviderInfo
	for _, p := range registered() {
		l = append(l, ProviderInfo{p.Name(), p.Probe(), passedOver(p)})
	}
	return l
}

// The interfaces below are between this package and the providers beneath it.
// They are batch-first, carry no behaviour of their own, and grow with the
// module: no promise of stability is made to providers outside it.
//
// This package checks what is the same for all: lifetimes (nothing is called on
// a provider's object after its Close, children are closed before parents),
// limits against DeviceAttr, and that objects belong to one context. A provider
// checks what it alone knows: keys, ranges, states, opcodes.

// Provider is one way of moving bytes.
type Provider interface {
	Name() string // as in Endpoint.Provider
	// Rank orders providers by preference, lowest first.
	Rank() int
	Probe() Probe
	Devices() ([]DeviceInfo, error)
	Open(device string, cfg Config) (ProviderContext, error)
}

// OnRequester is an optional ability of a [Provider]: see [Device.OnRequest].
type OnRequester interface {
	OnRequest() bool
}

// DeviceInfo is what a provider tells of a device without opening it.
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
	// AsyncEvent blocks until an event, the end of ctx, or Close.
	AsyncEvent(ctx context.Context) (ProviderEvent, error)
	Close() error
}

// ProviderEvent is an [AsyncEvent] before its object is looked up. Object is the
// ProviderQP, ProviderCQ or ProviderSRQ concerned, nil for ports and devices.
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

// MemoryAllocator is an optional ability of a [ProviderPD]: memory that the
// provider moves faster than any other.
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
	// Get blocks until an armed CQ has fired, the end of ctx, or Close.
	Get(ctx context.Context) (ProviderCQ, error)
	Close() error
}

// ProviderCQ implements [CQ].
type ProviderCQ interface {
	Poll(wcs []WC) (int, error)
	ReqNotify(solicitedOnly bool) error
	// Block returns when a completion may have arrived since the CQ was last
	// seen empty by Poll, or with the error of ctx. Only for CQs without a channel.
	Block(ctx context.Context) error
	Close() error
}

// SpinPoller is an optional ability of a [ProviderCQ]: PollSpin is Poll that looks
// up to looks times, for a provider whose calls cost more than looking.
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
	// Cap is what was granted, at least what was asked for; asked once, at
	// creation.
	Cap() QPCap
	Modify(attr *QPAttr, mask QPAttrMask) error
	Query() (QPAttr, error)
	State() QPState
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	Close() error
}

// RemoteMapper is an optional ability of a [ProviderQP]: see [QP.Map].
type RemoteMapper interface {
	Map(rkey uint32, addr uint64, length int) ([]byte, error)
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

// Register adds a provider; a provider's package calls it from init. It panics
// on a name that is malformed or taken.
func Register(p Provider) {
	registry.Lock()
	defer registry.Unlock()
	if !validProviderName(p.Name()) {
		panic(fmt.Sprintf("verbs: Register: provider name %q", p.Name()))
	}
	for _, q := range registry.providers {
		if q.Name() == p.Name() {
			panic(fmt.Sprintf("verbs: Register: provider %q twice", p.Name()))
		}
	}
	registry.providers = append(registry.providers, p)
	slices.SortStableFunc(registry.providers, func(a, b Provider) int { return a.Rank() - b.Rank() })
}

// Lookup returns the registered provider called name, for one that stands on it; nil if
// there is none.
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

// debugOnly hands every record on at level Debug: what a library tells unasked.
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
