package wait

import "errors"

// ErrNoBarrier: the system, or a filter, does not grant barriers (membarrier(2) of Linux).
var ErrNoBarrier = errors.New("no membarrier")
