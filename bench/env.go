package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/sluice-hpc/sluice/internal/launch"
	"github.com/sluice-hpc/sluice/verbs"
)

// Environment is where and how the figures were measured.
type Environment struct {
	Time       string            `json:"time"` // RFC 3339
	Bench      string            `json:"bench"`
	CPU        string            `json:"cpu"`
	Cores      int               `json:"cores,omitempty"` // physical, as the CPU tells; 0: not known
	CPUs       int               `json:"cpus"`            // logical, that this process may use
	Governor   string            `json:"governor,omitempty"`
	Virtual    bool              `json:"virtual,omitempty"` // a hypervisor is there
	OS         string            `json:"os"`
	Arch       string            `json:"arch"`
	Kernel     string            `json:"kernel,omitempty"`
	Go         string            `json:"go"`
	GOMAXPROCS int               `json:"gomaxprocs"`
	Ranks      []RankEnvironment `json:"ranks,omitempty"`
	Devices    []DeviceEntry     `json:"devices,omitempty"`
	Options    map[string]string `json:"options,omitempty"` // of the command line
}

// RankEnvironment is what differs between the ranks.
type RankEnvironment struct {
	Rank       int    `json:"rank"`
	Host       string `json:"host"`
	CPUs       []int  `json:"cpus,omitempty"` // that it is bound to; empty: not known
	Core       string `json:"core,omitempty"` // of a single CPU: all hardware threads of its core
	GOMAXPROCS int    `json:"gomaxprocs"`
}

// DeviceEntry is a device that was measured, as rank 0 sees it.
type DeviceEntry struct {
	Provider      string `json:"provider"`
	Device        string `json:"device"`
	Netdev        string `json:"netdev,omitempty"`
	Link          string `json:"link,omitempty"`
	MTU           int    `json:"mtu"` // bytes of the active path MTU
	GID           string `json:"gid,omitempty"`
	MaxInlineData int    `json:"max_inline_data"`
	MaxSGE        int    `json:"max_sge"`
	LoadStore     bool   `json:"load_store,omitempty"`
	Portable      bool   `json:"portable,omitempty"`
}

// addDevice adds a device, unless it is there or nothing is known of it.
func (e *Environment) addDevice(d DeviceEntry) {
	if d != (DeviceEntry{}) && !slices.Contains(e.Devices, d) {
		e.Devices = append(e.Devices, d)
	}
}

// takeEnvironment describes this process and its machine.
func takeEnvironment(options map[string]string) Environment {
	return Environment{
		Time:       time.Now().Format(time.RFC3339),
		Bench:      buildVersion(),
		CPU:        cpuModel(),
		Cores:      cpuid.CPU.PhysicalCores,
		CPUs:       runtime.NumCPU(),
		Governor:   governor(),
		Virtual:    cpuid.CPU.VM(),
		OS:         runtime.GOOS,
		Arch:       runtime.GOARCH,
		Kernel:     kernel(),
		Go:         runtime.Version(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		Options:    options,
	}
}

func takeRankEnvironment(rank int) RankEnvironment {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	e := RankEnvironment{Rank: rank, Host: host, CPUs: boundCPUs(), GOMAXPROCS: runtime.GOMAXPROCS(0)}
	if len(e.CPUs) == 1 {
		e.Core = launch.CoreOf(e.CPUs[0])
	}
	return e
}

// describeDevice reads what the environment block says of an open device.
func describeDevice(c *verbs.Context, portable bool) DeviceEntry {
	d := c.Device()
	e := DeviceEntry{Provider: d.Provider(), Device: d.Name(), Netdev: d.Netdev(), Portable: portable}
	attr := must1(c.QueryDevice())
	e.MaxInlineData, e.MaxSGE, e.LoadStore = attr.MaxInlineData, attr.MaxSGE, attr.LoadStore
	port := must1(c.QueryPort(1))
	e.MTU = port.ActiveMTU.Bytes()
	if port.LinkLayer != verbs.LinkLayerUnspecified {
		e.Link = port.LinkLayer.String()
	}
	if port.GIDTblLen > 0 && !e.LoadStore { // within a host it is of this process alone
		gid := must1(c.QueryGID(1, 0))
		if gid != (verbs.GID{}) {
			e.GID = gid.String()
		}
	}
	return e
}

// buildVersion is the module's version, or the commit that was built.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && version == "(devel)" {
			version = s.Value[:min(12, len(s.Value))]
		}
	}
	return version
}

func cpuModel() string {
	if name := strings.TrimSpace(cpuid.CPU.BrandName); name != "" {
		return name
	}
	// On arm64 the CPU itself does not tell a name.
	if name := systemCPUModel(); name != "" {
		return name
	}
	return runtime.GOARCH
}

// together says whether all ranks run on one host.
func together(ranks []RankEnvironment) bool {
	return !slices.ContainsFunc(ranks, func(r RankEnvironment) bool { return r.Host != ranks[0].Host })
}
