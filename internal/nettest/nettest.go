// Package nettest has tests of messages run between network namespaces, over the wires of
// RoCE: jobs whose ranks are processes in two networks, and jobs of one process, each of
// whose ranks has a network of its own.
//
// Part "networks" of .ci/nightly sets [Env], and runs them. They need root.
package nettest

import "slices"

// Env is the variable of the environment that is set where tests are to run between
// networks, too.
const Env = "SLUICE_TEST_NETWORKS"

// EnvAddress tells a rank that [Start] starts which address its network has.
const EnvAddress = "SLUICE_TEST_ADDRESS"

// suffix is what the providers between networks are called after those that they stand on.
const suffix = "-networks"

// wires are the providers that [Providers] stand on.
var wires = []string{"roce", "xdp"}

// Providers returns the providers between networks of one process: "roce-networks" and
// "xdp-networks". They have devices if tests are to run there, which a test states by
// need.Provider.
func Providers() (list []string) {
	for _, w := range wires {
		list = append(list, w+suffix)
	}
	return list
}

// Wire returns what a provider between networks stands on.
func Wire(provider string) (wire string, ok bool) {
	i := slices.IndexFunc(wires, func(w string) bool { return w+suffix == provider })
	if i < 0 {
		return "", false
	}
	return wires[i], true
}
