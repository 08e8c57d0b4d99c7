//go:build !linux || !cgo

package ibv

import (
	"runtime"

	"github.com/sluice-hpc/sluice/verbs"
)

// why returns why this binary has no RDMA, whatever the host has.
func why() string {
	if runtime.GOOS != "linux" {
		return "no libibverbs on " + runtime.GOOS
	}
	return "built without cgo (CGO_ENABLED=0)"
}

func (provider) Probe() verbs.Probe { return verbs.Probe{Answer: verbs.No, Reason: why()} }

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (provider) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	return nil, verbs.Errorf(device, "open", verbs.ErrNoDevice, "%s", why())
}
