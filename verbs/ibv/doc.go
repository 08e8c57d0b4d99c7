// Package ibv is the provider of package verbs for RDMA devices: InfiniBand,
// RoCE and soft-RoCE, through libibverbs. Devices of iWARP are listed last and not opened.
//
// Nothing is needed to build it but a C compiler. The part of libibverbs' stable
// ABI that is used is declared here (abi.h), and the library is opened when a
// device is first asked for: one binary runs on a laptop without RDMA and on the
// cluster. [EnvLibrary] names another library than libibverbs.so.1. Where there is
// none, or the binary was built with CGO_ENABLED=0, the provider's Probe says so.
//
// # What costs what
//
// One crossing into C posts a chain of up to 64 work requests, or polls as many
// completions; verbs.CQ.Wait spins inside. A post whose last work request is signalled
// takes the completions that are there already, unless the CQ has a channel, and the
// next Poll needs no crossing; where it finds none it looks ever more rarely. Others
// who poll that CQ wait for such a post. Work requests are written where the
// device's library reads them, in memory outside the Go heap: no pointer of Go's
// goes to C. Nothing allocates.
//
// A goroutine that polls for 10 ms without giving way, or calls that last 20 µs in a
// process with GOMAXPROCS=1, keep the Go runtime's monitor awake, on the same CPU
// where the process is bound to one: call runtime.Gosched every few milliseconds,
// as verbs.CQ.Wait does while there is nothing.
//
// # Devices
//
// A context takes the port and the GID that [verbs.Config] names, else the first
// active port and of its GIDs the best: on Ethernet RoCEv2 over an IPv4 address,
// else over a global one; on InfiniBand the first of the table, with packets routed
// by LID unless the subnets differ.
//
// Memory of [verbs.PD.AllocMR] is mapped for it, in huge pages where the kernel has
// them. Memory given to [verbs.PD.RegMR] is pinned. A registration that fails for
// want of locked memory names the limit (ulimit -l).
//
// Blocks at a stride go by lists of SGEs, and chains of work requests. That an adapter
// may move them as one region (UMR of mlx5) is not used; see [HardwareStrides].
//
// # iWARP
//
// A device of iWARP cannot do what package verbs says of all: immediate data
// does not exist (RFC 5040), a message to a receiver that is not ready breaks the
// connection instead of being tried again, a write is complete when its source may be
// changed and not when it is in the peer's memory, and a queue pair cannot be reset and
// connected again. It also connects by TCP, through librdmacm: one end waits for the
// other in the kernel, which neither returns at once nor tries again. Opening one is
// ErrNotSupported; provider tcp goes over the same network interface, and jobs take it.
// Cards that speak RoCEv2 as well can be switched to it, Intel's E800 by the parameters
// enable_iwarp and enable_roce of devlink-dev(8).
//
// # Errors
//
// A completion that failed has its Opcode, which libibverbs leaves undefined. A
// queue pair that a failed operation, or an event, has shown to be in ERR is asked
// to go there once more: soft-RoCE flushes what is posted after the error only then.
package ibv
