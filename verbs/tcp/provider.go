package tcp

import (
	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
)

func init() { verbs.Register(provider{}) }

// The proof of the job's secret is bound to protocolName and to the version, which is
// that of the wire format.
const (
	providerName = "tcp"
	protocolName = "sluice-tcp"
	wireMajor    = 1
	wireMinor    = 0
)

type provider struct{}

func (provider) Name() string { return providerName }
func (provider) Rank() int    { return 100 }

// Probe looks for an interface that is up and has an address.
func (provider) Probe() verbs.Probe { return nic.Probe() }

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nic.Devices(providerName) }

func (provider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	const op = "open"
	n, err := nic.Find(providerName, device, &cfg)
	if err != nil {
		return nil, err
	}
	switch {
	case len(cfg.Secret) == 0 && !cfg.Insecure:
		return nil, verbs.Errorf(device, op, verbs.ErrSecret, "Config sets neither Secret nor Insecure; set one of them")
	case len(cfg.Secret) != 0 && cfg.Insecure:
		return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "Config sets both Secret and Insecure; set only one")
	}
	return openContext(device, n, cfg)
}

// activeMTU returns the largest MTU code that fits the MTU of an interface.
func activeMTU(n *nic.NIC) verbs.MTU {
	m := verbs.MTU256
	for m < verbs.MTU4096 && (m+1).Bytes() <= n.MTU {
		m++
	}
	return m
}
