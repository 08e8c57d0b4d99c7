// Package ibv is the verbs provider for RDMA devices: InfiniBand, RoCE and soft-RoCE,
// through libibverbs. It lists iWARP devices last, and cannot open them.
//
//	import _ "github.com/sluice-hpc/sluice/verbs/ibv"
//
//	device, err := verbs.Find("mlx5_0")
//	context, err := device.Open(verbs.Config{}) // then as in package verbs: PD, CQ, QP, PostSend, Poll
//
// Building it needs only a C compiler. abi.h declares the part of libibverbs' stable
// ABI that the provider uses, and the library is loaded when devices are first needed:
// one binary runs on a laptop without RDMA and on a cluster. [EnvLibrary] names a
// library other than libibverbs.so.1. If there is none, or the binary was built with
// CGO_ENABLED=0, the provider's Probe says so.
//
// # Costs
//
// One call into C posts a chain of up to 64 work requests, or polls as many
// completions; verbs.CQ.Wait spins inside it. A post whose last work request is
// signalled also takes the completions that have arrived, unless the CQ has a channel,
// and the next Poll then makes no call; as long as such posts find none, they look ever
// more rarely. Concurrent polls of that CQ wait for such a post. Work requests are
// written where the device's library reads them, in memory outside the Go heap: no Go
// pointer is passed to C. Neither posting nor polling allocates.
//
// A goroutine that polls for 10 ms without yielding keeps the Go runtime's monitor
// thread awake, on the same CPU if the process is bound to one; so do calls of 20 µs
// with GOMAXPROCS=1. Call runtime.Gosched every few milliseconds, as verbs.CQ.Wait does
// while the queue is empty.
//
// # Devices
//
// A context uses the port and the GID that [verbs.Config] names, else the first active
// port and its best GID: on Ethernet RoCEv2 over an IPv4 address, else over a global
// one; on InfiniBand the first of the table, with packets routed by LID unless the
// subnets differ.
//
// [verbs.PD.AllocMR] maps new memory, in huge pages if the kernel has them. Memory given
// to [verbs.PD.RegMR] is pinned. If a registration fails for lack of locked memory, the
// error names the limit (RLIMIT_MEMLOCK, ulimit -l).
//
// Strided blocks are moved by lists of SGEs and chains of work requests. The provider
// does not use adapters' support for moving them as one region (UMR of mlx5); see
// [HardwareStrides].
//
// # iWARP
//
// An iWARP device does not have the semantics of package verbs. It has no immediate data
// (RFC 5040); a message to a receiver that is not ready breaks the connection instead of
// being retried; a write is complete when its source may be changed, not when it is in
// the peer's memory; and a queue pair cannot be reset and connected again. It also
// connects by TCP, through librdmacm, where one end waits for the other in the kernel,
// without retries. Opening one returns ErrNotSupported; jobs use provider tcp over the
// same network interface instead. Cards that also speak RoCEv2 can be switched to it,
// Intel's E800 by the parameters enable_iwarp and enable_roce of devlink-dev(8).
//
// # Errors
//
// A failed completion has its Opcode, which libibverbs leaves undefined. When a failed
// operation or an event shows that a queue pair is in ERR, the provider modifies it to
// ERR again: only then does soft-RoCE flush work posted after the error.
package ibv
