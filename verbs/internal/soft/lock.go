package soft

import "github.com/sluice-hpc/sluice/internal/wait"

// Lock guards the state of a QP, of a CQ or of a table.
type Lock = wait.Lock
