package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// LinkLayer of a port (IBV_LINK_LAYER_*, same numbers).
type LinkLayer uint8

// Link layers. Shared memory reports LinkLayerUnspecified.
const (
	LinkLayerUnspecified LinkLayer = 0
	LinkLayerInfiniBand  LinkLayer = 1
	LinkLayerEthernet    LinkLayer = 2
)

// String returns the libibverbs name without its prefix.
func (l LinkLayer) String() string {
	return enumName([]string{"UNSPECIFIED", "INFINIBAND", "ETHERNET"}, int(l), "LinkLayer")
}

// MTU is a path MTU code (enum ibv_mtu, same numbers).
type MTU uint8

// Path MTU codes.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the payload bytes of one packet, 0 for an unknown code.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PortState (enum ibv_port_state, same numbers).
type PortState uint8

// Port states.
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

// String returns the libibverbs name without its prefix.
func (s PortState) String() string {
	return enumName([]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}, int(s), "PortState")
}

// AtomicCap says towards whom atomics are atomic (enum ibv_atomic_cap, same numbers).
type AtomicCap uint8

// Atomic capabilities.
const (
	AtomicNone AtomicCap = 0 // no atomics
	AtomicHCA  AtomicCap = 1 // among operations through this device
	AtomicGlob AtomicCap = 2 // also with the CPU's own atomic operations
)

// String returns the libibverbs name without its prefix.
func (a AtomicCap) String() string {
	return enumName([]string{"NONE", "HCA", "GLOB"}, int(a), "AtomicCap")
}

// DeviceAttr holds the limits of a device (struct ibv_device_attr). Counts are
// numbers of objects, sizes are bytes. Zero means none, never "unlimited".
type DeviceAttr struct {
	FWVer           string // version of what implements the device
	MaxMRSize       uint64 // bytes of one region
	MaxMsgSize      uint32 // bytes of one message (ibv_port_attr.max_msg_sz)
	MaxQP           int
	MaxQPWR         int // work requests of one queue of a QP
	MaxSGE          int // SGEs of one work request
	MaxSGERd        int // SGEs of one RDMA_READ
	MaxInlineData   int // bytes; the most that QPCap.MaxInlineData may ask for
	MaxCQ           int
	MaxCQE          int // entries of one CQ
	MaxMR           int
	MaxPD           int
	MaxSRQ          int
	MaxSRQWR        int
	MaxQPRdAtomic   int // RDMA_READs and atomics answered at once, one QP
	MaxQPInitRdAtom int // RDMA_READs and atomics outstanding as the one who asks
	AtomicCap       AtomicCap
	PhysPortCnt     int
	// OnDemandPaging: regions may have AccessOnDemand: they are not pinned.
	OnDemandPaging bool
	// LoadStore: the peer's registered memory may be reached with plain loads and
	// stores, see [QP.Map].
	LoadStore bool
	// PrefersOwnMemory: memory from [PD.AllocMR] moves faster than memory given to [PD.RegMR].
	PrefersOwnMemory bool
}

// PortAttr describes a port (struct ibv_port_attr).
type PortAttr struct {
	State      PortState
	MaxMTU     MTU
	ActiveMTU  MTU
	LinkLayer  LinkLayer
	GIDTblLen  int
	PKeyTblLen int
	LID        uint16 // InfiniBand LID; tcp: the listening TCP port
	Netdev     string // network interface, empty where there is none
	// GRHRequired: packets need a global routing header, inside a subnet as well
	// (IBV_QPF_GRH_REQUIRED).
	GRHRequired bool
}

// Config says how a device is opened. The zero value is valid for shm and for
// tcp with Insecure or Secret set. Fields that a provider has no use for are
// ignored by it.
type Config struct {
	// Secret is the job's secret, which both ends of a connection must prove
	// before any byte counts. Needed by tcp unless Insecure. Kept by the
	// context; do not change it.
	Secret []byte
	// Insecure admits peers without proof. Zero: not admitted.
	Insecure bool
	// Job is the job's id, at most 64 bytes, bound into the proof. Zero: "".
	Job string
	// Address is the local IP address to use. Zero: the device's first; for RDMA
	// over Ethernet the best GID: RoCEv2 over an IPv4 address, else a global one.
	Address string
	// Port of the device to use. Zero: the first that is active.
	Port int
	// PeerTimeout bounds how long a silent peer is waited for: no
	// acknowledgement of sent bytes, no answer to keep-alive probes, no end to
	// an access in flight when its memory is deregistered. Zero: 10 s.
	PeerTimeout time.Duration
	// Portable makes tcp use only what every operating system has (the net
	// package), as it does anyway where there is nothing better.
	Portable bool
	// Logger receives what is worth knowing but no error of any call: refused
	// strangers, lost peers. Zero: slog.Default() at level Debug.
	Logger *slog.Logger
}

// DefaultPeerTimeout is what a zero [Config].PeerTimeout means.
const DefaultPeerTimeout = 10 * time.Second

// Device is a device that a provider offers. It is a plain value: nothing to close.
type Device struct {
	prov Provider
	info DeviceInfo
}

// Name is unique among all devices, e.g. "shm0", "tcp_lo".
func (d *Device) Name() string { return d.info.Name }

// Provider is the name of the provider, e.g. "shm".
func (d *Device) Provider() string { return d.prov.Name() }

// Netdev is the network interface below the device, empty where there is none.
func (d *Device) Netdev() string { return d.info.Netdev }

// OnRequest says that the device is to be used only where it, or its provider, is
// asked for by name: a layer that chooses by itself passes it over.
func (d *Device) OnRequest() bool {
	return passedOver(d.prov)
}

func passedOver(p Provider) bool {
	r, ok := p.(OnRequester)
	return ok && r.OnRequest()
}

// Open opens the device (ibv_open_device). The context belongs to the caller,
// who ends it with [Context.Close].
func (d *Device) Open(cfg Config) (*Context, error) {
	if len(cfg.Job) > 64 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "job id of %d bytes, at most 64", len(cfg.Job))
	}
	if cfg.PeerTimeout < 0 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "peer timeout %v", cfg.PeerTimeout)
	}
	if cfg.Port < 0 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "port %d", cfg.Port)
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = DefaultPeerTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(debugOnly{slog.Default().Handler()})
	}
	pc, err := d.prov.Open(d.info.Name, cfg)
	if err != nil {
		return nil, err
	}
	attr, err := pc.QueryDevice()
	if err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	return newContext(d, pc, attr), nil
}

// Devices lists the devices of all registered providers that are available, in
// order of preference (ibv_get_device_list). A provider that fails to list its
// devices contributes its error; the others are listed all the same.
func Devices() ([]*Device, error) {
	var all []*Device
	var errs []error
	for _, p := range registered() {
		if p.Probe().Answer == No {
			continue
		}
		infos, err := p.Devices()
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", p.Name(), err))
		}
		for _, in := range infos {
			all = append(all, &Device{p, in})
		}
	}
	return all, errors.Join(errs...)
}

// Find returns the device called name, or the first device of the provider
// called name. An error wraps [ErrNoDevice] and says what there is, and why a
// provider of that name is not available.
func Find(name string) (*Device, error) {
	devs, err := Devices()
	for _, d := range devs {
		if d.Name() == name {
			return d, nil
		}
	}
	for _, d := range devs {
		if d.Provider() == name {
			return d, nil
		}
	}
	for _, p := range registered() {
		if p.Name() == name {
			pr := p.Probe()
			return nil, Errorf(name, "find device", ErrNoDevice, "available: %v: %s", pr.Answer, pr.Reason)
		}
	}
	var have []string
	for _, d := range devs {
		have = append(have, d.Name())
	}
	return nil, errors.Join(Errorf("", "find device", ErrNoDevice, "%q; there are %q", name, have), err)
}
