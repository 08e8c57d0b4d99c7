package roce

import (
	"cmp"
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-hpc/sluice/internal/variable"
	"github.com/sluice-hpc/sluice/verbs"
)

// Environment variables; see the package documentation.
const (
	envShare = "SLUICE_ROCE_SHARE"
	envAck   = "SLUICE_ROCE_ACK"
)

// Both are the same number: else this does not compile.
const _ = uint(maxShare-variable.ROCEMostShare) + uint(variable.ROCEMostShare-maxShare)

// sharing returns how many contexts may share an address and its port; 0: sharing is off.
func sharing() (int, error) {
	v := os.Getenv(envShare)
	if v == "" {
		return variable.ROCEShare, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > maxShare {
		return 0, fmt.Errorf("%w: %s=%s: want a number from 0 to %d", verbs.ErrInvalid, envShare, v, maxShare)
	}
	return n, nil
}

// acknowledging says whether each message is acknowledged on its own.
func acknowledging() (each bool, err error) {
	switch v := cmp.Or(os.Getenv(envAck), variable.ROCEAck); v {
	case "lazy":
		return false, nil
	case "message":
		return true, nil
	default:
		return false, fmt.Errorf("%w: %s=%s: want lazy or message", verbs.ErrInvalid, envAck, v)
	}
}
