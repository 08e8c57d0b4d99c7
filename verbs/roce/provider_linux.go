package roce

import (
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	"github.com/sluice-hpc/sluice/verbs/internal/nic"
)

// Probe looks for an interface that is up and has an address.
func (provider) Probe() verbs.Probe { return nic.Probe() }

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nic.Devices(providerName) }

func (provider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	const op = "open"
	n, err := nic.Find(providerName, device, &cfg)
	if err != nil {
		return nil, err
	}
	w, err := openUDP(n.Addrs[0], n.MTU)
	if err != nil {
		return nil, verbs.Errorf(device, op, err, "")
	}
	if w.maxMTU() < verbs.MTU256.Bytes() {
		w.close()
		return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "the link's MTU of %d bytes is too small for packets with 256 bytes of payload", n.MTU)
	}
	began := time.Now().Add(-1)
	a := newAdapter(device, n.Name, cfg, w, func() int64 { return int64(time.Since(began)) })
	if err := startDriver(a, nil, w.fd); err != nil {
		w.close()
		return nil, verbs.Errorf(device, op, err, "")
	}
	return a, nil
}
