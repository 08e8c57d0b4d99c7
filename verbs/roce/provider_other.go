//go:build !linux

package roce

import (
	"runtime"

	"github.com/sluice-hpc/sluice/verbs"
)

func (provider) Probe() verbs.Probe {
	return verbs.Probe{Answer: verbs.No, Reason: "provider roce needs Linux, this is " + runtime.GOOS}
}

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (provider) Open(device string, _ verbs.Config) (verbs.ProviderContext, error) {
	return nil, verbs.Errorf(device, "open", verbs.ErrNotSupported, "provider roce needs Linux, this is %s", runtime.GOOS)
}
