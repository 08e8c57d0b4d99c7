package main

import (
	"slices"
	"strings"

	"github.com/sluice-hpc/sluice/verbs"
)

// operation is an operation of the verbs model as --op names it.
type operation struct {
	name   string
	opcode verbs.Opcode
	// recv: each message consumes a receive of the peer, who so learns of it.
	recv bool
	// fetch: the answer is part of the operation, the peer has no part in it.
	fetch  bool
	atomic bool
}

var operations = []operation{
	{name: "send", opcode: verbs.OpSend, recv: true},
	{name: "write", opcode: verbs.OpRDMAWrite},
	{name: "write-imm", opcode: verbs.OpRDMAWriteWithImm, recv: true},
	{name: "read", opcode: verbs.OpRDMARead, fetch: true},
	{name: "fetch-add", opcode: verbs.OpAtomicFetchAndAdd, fetch: true, atomic: true},
	{name: "cmp-swap", opcode: verbs.OpAtomicCmpAndSwp, fetch: true, atomic: true},
}

// remote: the operation names memory of the peer.
func (o operation) remote() bool { return o.opcode != verbs.OpSend }

func operationNames() string {
	var names []string
	for _, o := range operations {
		names = append(names, o.name)
	}
	return strings.Join(names, "|")
}

func findOperation(name string) (operation, error) {
	i := slices.IndexFunc(operations, func(o operation) bool { return o.name == name })
	if i < 0 {
		return operation{}, usagef("--op %q: want %s", name, operationNames())
	}
	return operations[i], nil
}

// atomicBytes is what an atomic works on.
const atomicBytes = 8

// checkSize says whether a measurement of pattern with this operation can have
// messages of so many bytes.
func (o operation) checkSize(pattern string, bytes int) error {
	switch {
	case o.atomic && bytes != atomicBytes:
		return usagef("%s has %d bytes, not %d", o.name, atomicBytes, bytes)
	case bytes == 0 && pattern == patternLat && !o.recv && !o.fetch:
		return usagef("%s of 0 bytes cannot be seen by the peer: latency needs 1", o.name)
	case bytes == 0 && (pattern == patternBW || pattern == patternBiBW):
		return &UsageError{"bandwidth of 0 bytes"}
	}
	return nil
}

// defaultSizes are the sizes measured where none are given.
func (o operation) defaultSizes(pattern string) []int {
	if o.atomic {
		return []int{atomicBytes}
	}
	hi := 4 << 20
	if pattern == patternRate {
		hi = 4 << 10
	}
	return slices.DeleteFunc(doubling(0, hi), func(n int) bool { return o.checkSize(pattern, n) != nil })
}
