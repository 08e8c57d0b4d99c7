// Package all registers every provider of this module: import it for that.
package all

import (
	_ "github.com/sluice-hpc/sluice/verbs/ibv"  // InfiniBand, RoCE and soft-RoCE
	_ "github.com/sluice-hpc/sluice/verbs/roce" // RoCEv2 in user space, where it is asked for
	_ "github.com/sluice-hpc/sluice/verbs/shm"  // ranks of one host
	_ "github.com/sluice-hpc/sluice/verbs/tcp"  // sockets
)
