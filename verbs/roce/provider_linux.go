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
	share, err := sharing()
	if err != nil {
		return nil, verbs.Errorf(device, op, err, "")
	}
	w, err := openUDP(n.Addrs[0], n.MTU, share)
	if err != nil {
		return nil, verbs.Errorf(device, op, err, "")
	}
	w.link = n.Name
	if w.maxMTU() < verbs.MTU256.Bytes() {
		w.close()
		return nil, verbs.Errorf(device, op, verbs.ErrInvalid, "the link's MTU of %d bytes is too small for packets with 256 bytes of payload", n.MTU)
	}
	began := time.Now().Add(-1)
	a := newAdapter(device, n.Name, cfg, w, func() int64 { return int64(time.Since(began)) })
	if a.ackEach, err = acknowledging(); err != nil {
		w.close()
		return nil, verbs.Errorf(device, op, err, "")
	}
	if w.group != nil {
		a.qps.Under(uint32(w.group.number), groupBits)
	}
	if err := startDriver(a, nil, w.fds()...); err != nil {
		w.close()
		return nil, verbs.Errorf(device, op, err, "")
	}
	return a, nil
}
