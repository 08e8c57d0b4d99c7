package main

import (
	"github.com/spf13/pflag"
)

// Flags that several commands have: each command's options embed those that it has.

// jobFlags say what job is measured.
type jobFlags struct {
	provider string
	ranks    int
}

// addProvider adds --provider, of whose meaning there is more to say in also.
func (o *jobFlags) addProvider(f *pflag.FlagSet, also string) {
	f.StringVar(&o.provider, "provider", "", "provider: shm, tcp, ... (default the best there is)"+also)
}

// addRanks adds --ranks.
func (o *jobFlags) addRanks(f *pflag.FlagSet, usual int) {
	f.IntVarP(&o.ranks, "ranks", "n", usual, "ranks to start; a job has its own number")
}

// memoryFlags say whose memory messages lie in.
type memoryFlags struct {
	memory   string
	memories []string // by check
}

// addMemory adds --memory; alloc is what the command calls the library's.
func (o *memoryFlags) addMemory(f *pflag.FlagSet, alloc string) {
	f.StringVar(&o.memory, "memory", memoryAlloc, "buffers: alloc ("+alloc+"), heap (Go memory, pinned where the network needs it), or both in a list")
}

func (o *memoryFlags) checkMemory() (err error) {
	o.memories, err = parseList("memory", o.memory, memoryAlloc, memoryHeap)
	return err
}

// sizeFlags say how long messages are.
type sizeFlags struct {
	sizes string
	bytes []int // by check
}

// listForm is the form of a list of sizes.
const listForm = "MIN:MAX (powers of two between) or a list; k, M, G are binary"

// patternSizes is the default where a pattern has bounds of its own.
const patternSizes = "0:4M as far as the pattern allows"

// addSizes adds --sizes of what; usual is the default where the flag is empty.
func (o *sizeFlags) addSizes(f *pflag.FlagSet, what, usual string) {
	f.StringVar(&o.sizes, "sizes", "", what+": "+listForm+" (default "+usual+")")
}

// checkSizes reads the sizes that have been given; else they are those of an operation
// in a pattern. Each must be possible there.
func (o *sizeFlags) checkSizes(op operation, pattern string) (err error) {
	if o.sizes == "" {
		o.bytes = op.defaultSizes(pattern)
	} else if o.bytes, err = parseSizes(o.sizes); err != nil {
		return err
	}
	for _, n := range o.bytes {
		if err := op.checkSize(pattern, n); err != nil {
			return err
		}
	}
	return nil
}

// inDoubles says whether sizes are whole doubles.
func inDoubles(sizes []int) error {
	for _, n := range sizes {
		if n%doubleBytes != 0 {
			return usagef("--sizes %s: want whole doubles, of %d bytes", formatSize(int64(n)), doubleBytes)
		}
	}
	return nil
}
