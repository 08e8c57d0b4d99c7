// Package all registers every provider of this module; importing it is all it takes.
package all

import (
	_ "github.com/sluice-hpc/sluice/verbs/ibv"  // InfiniBand, RoCE and soft-RoCE
	_ "github.com/sluice-hpc/sluice/verbs/roce" // RoCEv2 in user space, used only if named
	_ "github.com/sluice-hpc/sluice/verbs/shm"  // ranks of one host
	_ "github.com/sluice-hpc/sluice/verbs/tcp"  // sockets
)
