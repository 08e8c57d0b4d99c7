// Package all registers every provider of this module; importing it is all it takes.
//
//	import _ "github.com/sluice-hpc/sluice/verbs/all"
//
//	channel.Main(work)               // chooses a provider for each pair of ranks, as qmp and impi do
//	device, err := verbs.Find("ibv") // or a program chooses
//
// SLUICE_TRANSPORT=ibv,tcp in the environment names the providers that channels may use, in order.
package all

import (
	_ "github.com/sluice-hpc/sluice/verbs/ibv"  // InfiniBand, RoCE and soft-RoCE
	_ "github.com/sluice-hpc/sluice/verbs/roce" // RoCEv2 in user space, used only if named
	_ "github.com/sluice-hpc/sluice/verbs/shm"  // ranks of one host
	_ "github.com/sluice-hpc/sluice/verbs/tcp"  // sockets
)
