package need

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-hpc/sluice/verbs"
)

// RDMA skips a test that needs an RDMA device, of provider "ibv".
func RDMA(t testing.TB) {
	t.Helper()
	Provider(t, "ibv")
}

// Provider skips a test that needs a device of a provider of package verbs. What tests over
// several providers start as subtests for all of them: a provider that has no device here is
// a missing need, not a subtest less.
func Provider(t testing.TB, name string) {
	t.Helper()
	met, reason := device(name)
	check(t, DeviceOf(name), met, reason)
}

// DeviceOf is the need that [Provider] states.
func DeviceOf(provider string) string {
	if provider == "ibv" {
		return RDMADevice
	}
	return "a device of provider " + provider
}

// Needs that the guest of internal/vm meets: those of [RDMA], [SoftRoCE] and [Guest].
const (
	RDMADevice    = "an RDMA device"
	SoftRoCEAdded = "soft-RoCE devices to add"
	GuestOfVM     = "the guest of internal/vm"
)

// SoftRoCE skips a test that adds soft-RoCE devices to interfaces which it makes.
func SoftRoCE(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/sys/module/rdma_rxe")
	Probe(t, SoftRoCEAdded, err)
	Root(t)
	Program(t, "ip", "rdma")
}

// Guest skips a test that needs the guest of internal/vm, whose RDMA devices and network
// it may change: rxe0 on v0, and rxe1 on v1.
func Guest(t testing.TB) {
	t.Helper()
	check(t, GuestOfVM, os.Getenv("SLUICE_VM") == "run", "this is not one: internal/vm/vm run")
	Root(t)
}

// Capability skips a test of what the device under test does not have, which is no need of
// the machine: some device has it. CI fails if none has.
func Capability(t testing.TB, capability string, has bool) {
	t.Helper()
	outcome := Has
	if !has {
		outcome = Lacks
	}
	record(t, capability, outcome)
	if !has {
		t.Skipf("the device has no %s", capability)
	}
}

func device(provider string) (met bool, reason string) {
	p := verbs.Lookup(provider)
	if p == nil {
		return false, "the provider is not in this program"
	}
	if probe := p.Probe(); probe.Answer == verbs.No {
		return false, probe.Reason
	}
	list, err := p.Devices()
	return len(list) > 0, fmt.Sprintf("it has none: %v", err)
}
