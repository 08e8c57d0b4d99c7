package ibv

import (
	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
)

// HardwareStrides says whether a device can move strided blocks as one region, as adapters
// of mlx5 may (UMR, user-mode memory registration). Nothing uses it: channels move such
// messages by lists of SGEs, and the gain has not been measured, for lack of an adapter.
func HardwareStrides(device string) verbs.Probe {
	switch driver := rdmadev.Driver(device); {
	case rdmadev.Software(device):
		return verbs.Probe{Answer: verbs.No, Reason: "a software device"}
	case driver == "":
		return verbs.Probe{Answer: verbs.Unknown, Reason: "its driver is not known"}
	case driver == "mlx5_core":
		return verbs.Probe{Answer: verbs.Unknown, Reason: "adapters of mlx5_core may have UMR, which is not used: it could not be measured"}
	default:
		return verbs.Probe{Answer: verbs.No, Reason: "driver " + driver + " has no verbs for strided regions"}
	}
}
