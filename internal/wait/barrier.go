package wait

import "errors"

// ErrNoBarrier: the system, or a seccomp filter, does not allow barriers (membarrier(2) of Linux).
var ErrNoBarrier = errors.New("membarrier(2) is not available")
