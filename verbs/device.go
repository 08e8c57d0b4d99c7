package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// LinkLayer is the link layer of a port (IBV_LINK_LAYER_*, same numbers).
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

// PortState is the state of a port (enum ibv_port_state, same numbers).
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

// AtomicCap says with respect to which accesses atomics are atomic (enum
// ibv_atomic_cap, same numbers).
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
	FWVer           string // version of the firmware or software behind the device
	MaxMRSize       uint64 // bytes of one region
	MaxMsgSize      uint32 // bytes of one message (ibv_port_attr.max_msg_sz)
	MaxQP           int
	MaxQPWR         int // work requests of one queue of a QP
	MaxSGE          int // SGEs of one work request
	MaxSGERd        int // SGEs of one RDMA_READ
	MaxInlineData   int // bytes; upper limit of QPCap.MaxInlineData
	MaxCQ           int
	MaxCQE          int // entries of one CQ
	MaxMR           int
	MaxPD           int
	MaxSRQ          int
	MaxSRQWR        int
	MaxQPRdAtomic   int // RDMA_READs and atomics in progress as responder, one QP
	MaxQPInitRdAtom int // RDMA_READs and atomics outstanding as requester, one QP
	AtomicCap       AtomicCap
	PhysPortCnt     int
	// OnDemandPaging: regions may have AccessOnDemand and are then not pinned.
	OnDemandPaging bool
	// LoadStore: plain loads and stores can reach the peer's registered memory; see
	// [QP.Map].
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
	Netdev     string // network interface; empty if there is none
	// GRHRequired: packets need a global routing header even inside a subnet
	// (IBV_QPF_GRH_REQUIRED).
	GRHRequired bool
}

// Config says how a device is opened. The zero value is valid for shm; tcp also
// needs Insecure or Secret. A provider ignores the fields that it does not use.
type Config struct {
	// Secret is the job's secret. Both ends of a connection must prove that they
	// know it before any data is accepted. tcp needs it unless Insecure is set. The
	// context keeps the slice: do not change it.
	Secret []byte
	// Insecure admits peers without proof. Zero: they are refused.
	Insecure bool
	// Job is the job's id, at most 64 bytes; the proof covers it. Zero: "".
	Job string
	// Address is the local IP address to use. Zero: the device's first; for RDMA
	// over Ethernet the best GID: RoCEv2 over an IPv4 address, else a global one.
	Address string
	// Port is the port of the device to use. Zero: the first active one.
	Port int
	// PeerTimeout limits the wait for a silent peer: one that does not acknowledge
	// sent bytes, does not answer keep-alive probes, or does not finish an access
	// in flight when its memory is deregistered. One on this host is silent when its process
	// has ended. Zero: 10 s.
	PeerTimeout time.Duration
	// Portable restricts tcp to the net package, which every operating system has.
	// Where tcp has nothing faster, it does so anyway.
	Portable bool
	// Logger receives events that no call returns as an error: refused connections
	// of strangers, lost peers. Zero: slog.Default() at level Debug.
	Logger *slog.Logger
}

// DefaultPeerTimeout is used if [Config].PeerTimeout is zero.
const DefaultPeerTimeout = 10 * time.Second

// Device is a device that a provider offers. It is a plain value and need not be closed.
type Device struct {
	prov Provider
	info DeviceInfo
}

// Name returns the device's name, e.g. "shm0" or "tcp_lo". It is unique among all devices.
func (d *Device) Name() string { return d.info.Name }

// Provider returns the name of the device's provider, e.g. "shm".
func (d *Device) Provider() string { return d.prov.Name() }

// Netdev returns the network interface below the device; empty if there is none.
func (d *Device) Netdev() string { return d.info.Netdev }

// OnRequest reports whether the device is used only if it, or its provider, is named:
// a layer that picks a device by itself must skip it.
func (d *Device) OnRequest() bool {
	return passedOver(d.prov)
}

func passedOver(p Provider) bool {
	r, ok := p.(OnRequester)
	return ok && r.OnRequest()
}

// Open opens the device (ibv_open_device). The caller owns the context and must close
// it with [Context.Close].
func (d *Device) Open(cfg Config) (*Context, error) {
	if len(cfg.Job) > 64 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "job id has %d bytes, limit is 64", len(cfg.Job))
	}
	if cfg.PeerTimeout < 0 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "peer timeout %v is negative", cfg.PeerTimeout)
	}
	if cfg.Port < 0 {
		return nil, Errorf(d.Name(), "open", ErrInvalid, "port %d is negative", cfg.Port)
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
// order of preference (ibv_get_device_list). If a provider fails to list its devices,
// the error includes its error, and the list still has the devices of the others.
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

// Find returns the device called name, else the first device of the provider called
// name. An error wraps [ErrNoDevice]. If a provider has that name, it says why the
// provider is not available; otherwise it lists the devices that exist.
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
			why := "the provider is not available here: "
			if pr.Answer != No {
				why = "the provider finds none: "
			}
			return nil, Errorf(name, "find device", ErrNoDevice, "%s%s", why, pr.Reason)
		}
	}
	var have []string
	for _, d := range devs {
		have = append(have, d.Name())
	}
	return nil, errors.Join(Errorf("", "find device", ErrNoDevice, "%q; devices here: %q", name, have), err)
}
