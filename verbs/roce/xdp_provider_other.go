//go:build !linux

package roce

import (
	"runtime"

	"github.com/sluice-hpc/sluice/verbs"
)

func (xdpProvider) Probe() verbs.Probe {
	return verbs.Probe{Answer: verbs.No, Reason: "AF_XDP needs Linux, this is " + runtime.GOOS}
}

func (xdpProvider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (xdpProvider) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	return nil, verbs.Errorf(device, "open", verbs.ErrNotSupported, "AF_XDP needs Linux, this is %s", runtime.GOOS)
}
