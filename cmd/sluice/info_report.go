package main

import (
	"crypto/rand"
	"os"
	"runtime"
	"slices"

	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/ibv"
)

// The JSON names are documented in infoHelp, so they must not change.

// infoSchema names the shape of the JSON output.
const infoSchema = "sluice-info/1"

type infoReport struct {
	Schema    string          `json:"schema"`
	Host      hostEntry       `json:"host"`
	Providers []providerEntry `json:"providers"`
	Devices   []deviceEntry   `json:"devices"`
	Errors    []string        `json:"errors,omitempty"`
}

// hostEntry explains why there is no RDMA, or no memory to pin for it.
type hostEntry struct {
	Name            string          `json:"name,omitempty"`
	OS              string          `json:"os"`
	Arch            string          `json:"arch"`
	Kernel          string          `json:"kernel,omitempty"`
	CPUs            int             `json:"cpus"`
	AllowedCPUs     []int           `json:"allowed_cpus,omitempty"`
	MemlockBytes    *int64          `json:"memlock_bytes,omitempty"`
	MemlockMaxBytes *int64          `json:"memlock_max_bytes,omitempty"`
	DevInfiniband   bool            `json:"dev_infiniband"`
	RDMADevices     []string        `json:"rdma_devices,omitempty"`
	HugePages       []hugePageEntry `json:"huge_pages,omitempty"`
	SharedHuge      string          `json:"shared_huge_pages,omitempty"` // of memory of Alloc: never, advise, …
	Transport       string          `json:"transport,omitempty"`
}

type hugePageEntry struct {
	SizeBytes int64 `json:"size_bytes"`
	Total     int64 `json:"total"`
	Free      int64 `json:"free"`
}

type providerEntry struct {
	Name      string `json:"name"`
	Available string `json:"available"`
	Reason    string `json:"reason,omitempty"`
}

type deviceEntry struct {
	Provider    string            `json:"provider"`
	Name        string            `json:"name"`
	Netdev      string            `json:"netdev,omitempty"`
	RDMADevice  string            `json:"rdma_device,omitempty"`
	Firmware    string            `json:"firmware,omitempty"`
	CharDevices []charDeviceEntry `json:"char_devices,omitempty"`
	NUMANode    *int              `json:"numa_node,omitempty"`
	LocalCPUs   []int             `json:"local_cpus,omitempty"`
	Limits      *limitEntry       `json:"limits,omitempty"`
	Strides     *abilityEntry     `json:"hardware_strides,omitempty"`
	Ports       []portEntry       `json:"ports,omitempty"`
	NotOpened   string            `json:"not_opened,omitempty"`
	Error       string            `json:"error,omitempty"`
}

// abilityEntry says whether a device has a feature.
type abilityEntry struct {
	Available string `json:"available"`
	Reason    string `json:"reason,omitempty"`
}

type charDeviceEntry struct {
	Path  string `json:"path"`
	Error string `json:"error,omitempty"`
}

// limitEntry is verbs.DeviceAttr.
type limitEntry struct {
	MaxMRSize       uint64 `json:"max_mr_size_bytes"`
	MaxMsgSize      uint32 `json:"max_msg_size_bytes"`
	MaxQP           int    `json:"max_qp"`
	MaxQPWR         int    `json:"max_qp_wr"`
	MaxSGE          int    `json:"max_sge"`
	MaxSGERd        int    `json:"max_sge_rd"`
	MaxInlineData   int    `json:"max_inline_data_bytes"`
	MaxCQ           int    `json:"max_cq"`
	MaxCQE          int    `json:"max_cqe"`
	MaxMR           int    `json:"max_mr"`
	MaxPD           int    `json:"max_pd"`
	MaxSRQ          int    `json:"max_srq"`
	MaxSRQWR        int    `json:"max_srq_wr"`
	MaxQPRdAtomic   int    `json:"max_qp_rd_atomic"`
	MaxQPInitRdAtom int    `json:"max_qp_init_rd_atom"`
	AtomicCap       string `json:"atomic_cap"`
	LoadStore       bool   `json:"load_store"`
	OnDemandPaging  bool   `json:"on_demand_paging"`
}

type portEntry struct {
	Port           int        `json:"port"`
	State          string     `json:"state,omitempty"`
	LinkLayer      string     `json:"link_layer,omitempty"`
	MaxMTUBytes    int        `json:"max_mtu_bytes,omitempty"`
	ActiveMTUBytes int        `json:"active_mtu_bytes,omitempty"`
	LID            uint16     `json:"lid,omitempty"`
	PKeyTableLen   int        `json:"pkey_table_len"`
	GIDTableLen    int        `json:"gid_table_len"`
	Netdev         string     `json:"netdev,omitempty"`
	GIDs           []gidEntry `json:"gids,omitempty"`
	Error          string     `json:"error,omitempty"`
}

type gidEntry struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type,omitempty"`
	Netdev string `json:"netdev,omitempty"`
}

// takeReport makes the report of this host.
func takeReport() *infoReport {
	r := &infoReport{Schema: infoSchema, Host: takeHost(), Providers: []providerEntry{}, Devices: []deviceEntry{}}
	for _, p := range verbs.Providers() {
		r.Providers = append(r.Providers, providerEntry{p.Name, p.Probe.Answer.String(), p.Probe.Reason})
	}
	devices, err := verbs.Devices()
	if err != nil {
		r.Errors = append(r.Errors, err.Error())
	}
	for _, d := range devices {
		r.Devices = append(r.Devices, takeDevice(d))
	}
	return r
}

// opened reports whether any device could be opened.
func (r *infoReport) opened() bool {
	return slices.ContainsFunc(r.Devices, func(d deviceEntry) bool { return d.Limits != nil })
}

func takeHost() hostEntry {
	h := hostEntry{OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernelRelease(), CPUs: runtime.NumCPU(),
		AllowedCPUs: rdmadev.CPUs(), RDMADevices: rdmadev.Devices(), HugePages: hugePages(), SharedHuge: sharedHuge(), Transport: transport()}
	h.Name, _ = os.Hostname()
	h.MemlockBytes, h.MemlockMaxBytes = memlock()
	_, err := os.Stat("/dev/infiniband")
	h.DevInfiniband = err == nil
	return h
}

// takeDevice opens a device to query it. No peer can connect to it meanwhile, because the
// secret that it would have to prove is random and never shared.
func takeDevice(d *verbs.Device) deviceEntry {
	e := deviceEntry{Provider: d.Provider(), Name: d.Name(), Netdev: d.Netdev()}
	rdma := slices.Contains(rdmadev.Devices(), d.Name())
	if rdma {
		if node := rdmadev.NUMANode(d.Name()); node >= 0 {
			e.NUMANode = &node
		}
		e.LocalCPUs = rdmadev.LocalCPUs(d.Name())
		strides := ibv.HardwareStrides(d.Name())
		e.Strides = &abilityEntry{strides.Answer.String(), strides.Reason}
		for _, path := range rdmadev.CharDevices(d.Name()) {
			c := charDeviceEntry{Path: path}
			if err := accessible(path); err != nil {
				c.Error = err.Error()
			}
			e.CharDevices = append(e.CharDevices, c)
		}
	} else if d.Netdev() != "" {
		e.RDMADevice = rdmadev.OfNetdev(d.Netdev())
	}
	if d.Provider() == "xdp" {
		e.NotOpened = "opening it would attach a program to the interface"
		return e
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	c, err := d.Open(verbs.Config{Secret: secret})
	if err != nil {
		e.Error = err.Error()
		return e
	}
	a, err := c.QueryDevice()
	if err == nil {
		e.Firmware = a.FWVer
		e.Limits = &limitEntry{a.MaxMRSize, a.MaxMsgSize, a.MaxQP, a.MaxQPWR, a.MaxSGE, a.MaxSGERd, a.MaxInlineData, a.MaxCQ, a.MaxCQE,
			a.MaxMR, a.MaxPD, a.MaxSRQ, a.MaxSRQWR, a.MaxQPRdAtomic, a.MaxQPInitRdAtom, a.AtomicCap.String(), a.LoadStore, a.OnDemandPaging}
		for port := 1; port <= a.PhysPortCnt; port++ {
			e.Ports = append(e.Ports, takePort(c, port, rdma))
		}
	}
	for _, err := range []error{err, c.Close()} {
		if err != nil && e.Error == "" {
			e.Error = err.Error()
		}
	}
	return e
}

// takePort queries a port, and with rdma adds what sysfs knows about it.
func takePort(c *verbs.Context, port int, rdma bool) portEntry {
	e := portEntry{Port: port}
	a, err := c.QueryPort(port)
	if err != nil {
		e.Error = err.Error()
		return e
	}
	e.State, e.LinkLayer = a.State.String(), a.LinkLayer.String()
	e.MaxMTUBytes, e.ActiveMTUBytes = a.MaxMTU.Bytes(), a.ActiveMTU.Bytes()
	e.PKeyTableLen, e.GIDTableLen, e.Netdev = a.PKeyTblLen, a.GIDTblLen, a.Netdev
	if a.LinkLayer == verbs.LinkLayerInfiniBand {
		e.LID = a.LID
	}
	device := c.Device().Name()
	if rdma && e.Netdev == "" {
		e.Netdev = rdmadev.Netdev(device, port)
	}
	for i := range a.GIDTblLen {
		gid, err := c.QueryGID(port, i)
		switch {
		case err != nil && e.Error == "":
			e.Error = err.Error() // the first one; other entries may still be readable
		case err != nil, gid == verbs.GID{}: // not used
		default:
			g := gidEntry{Index: i, GID: gid.String()}
			if rdma && a.LinkLayer == verbs.LinkLayerEthernet {
				g.Type, g.Netdev = rdmadev.GIDType(device, port, i), rdmadev.GIDNetdev(device, port, i)
			}
			e.GIDs = append(e.GIDs, g)
		}
	}
	return e
}
