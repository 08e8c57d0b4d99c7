//go:build !linux

package shm

import (
	"runtime"

	"github.com/sluice-hpc/sluice/verbs"
)

func (provider) Probe() verbs.Probe {
	return verbs.Probe{Answer: verbs.No, Reason: "needs Linux (memfd, futex), this is " + runtime.GOOS}
}

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (p provider) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	return nil, verbs.Errorf(device, "open", verbs.ErrNotSupported, "%s", p.Probe().Reason)
}
