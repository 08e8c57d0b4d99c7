package roce

import (
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-hpc/sluice/verbs"
)

// What the environment asks for; see the package's documentation.
const (
	envShare = "SLUICE_ROCE_SHARE"
	envAck   = "SLUICE_ROCE_ACK"
)

// sharing is how many contexts are to share an address, and its port; 0: none.
func sharing() (int, error) {
	v := os.Getenv(envShare)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > maxShare {
		return 0, fmt.Errorf("%w: %s=%s: a number from 0 to %d", verbs.ErrInvalid, envShare, v, maxShare)
	}
	return n, nil
}

// acknowledging says whether each message is to be acknowledged by itself.
func acknowledging() (each bool, err error) {
	switch v := os.Getenv(envAck); v {
	case "", "lazy":
		return false, nil
	case "message":
		return true, nil
	default:
		return false, fmt.Errorf("%w: %s=%s: lazy or message", verbs.ErrInvalid, envAck, v)
	}
}
