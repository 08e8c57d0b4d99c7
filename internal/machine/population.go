package machine

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"iter"
	"math/bits"
	"os"
	"slices"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Process is what processes of one kernel know about each other's CPUs.
type Process struct {
	CPUs  []byte // bit i: it may run on CPU i, or could when it began
	pid   uint32
	space uint64 // in which pid is a process; 0: not known
	group uint64 // the cgroup that may have a quota; 0: not known
}

// Self is this process.
func Self() Process {
	p := Process{CPUs: CPUs(), pid: uint32(os.Getpid()), group: quotas().Group()}
	if space, err := os.Readlink("/proc/self/ns/pid"); err == nil {
		h := fnv.New64a()
		h.Write([]byte(space))
		p.space = h.Sum64()
	}
	return p
}

// maxCPUBytes is the length of a set of CPUs, at most.
const maxCPUBytes = 1024

// Append encodes a process.
func (p *Process) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, p.pid)
	b = binary.BigEndian.AppendUint64(b, p.space)
	b = binary.BigEndian.AppendUint64(b, p.group)
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.CPUs)))
	return append(b, p.CPUs...)
}

// ErrProcess: the bytes are not those of a process.
var ErrProcess = errors.New("malformed description of a process")

const processHead = 22

// MaxProcess bounds the length of what Append encodes.
const MaxProcess = processHead + maxCPUBytes

// ParseProcess decodes what Append has encoded, and returns the rest. The set of CPUs is part of b.
func ParseProcess(b []byte) (p Process, rest []byte, err error) {
	if len(b) < processHead {
		return p, nil, ErrProcess
	}
	p.pid, p.space, p.group = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])
	n := int(binary.BigEndian.Uint16(b[20:]))
	b = b[processHead:]
	if n > maxCPUBytes || n > len(b) {
		return p, nil, ErrProcess
	}
	p.CPUs = b[:n]
	return p, b[n:], nil
}

// now is the set of CPUs that the process may run on now, as far as this one can find out.
func (p *Process) now(space uint64) []byte {
	if p.space != space || space == 0 {
		return p.CPUs
	}
	if set := cpusOf(int(p.pid)); set != nil {
		return set
	}
	return p.CPUs
}

// Population is the processes of a job that one kernel runs, this one first.
type Population []Process

// Count returns on how many CPUs the processes could run when they began.
func (p Population) Count() int {
	var sets [][]byte
	for i := range p {
		sets = append(sets, p[i].CPUs)
	}
	return Count(sets...)
}

// Sharing says whether this process has a CPU to itself now, however the scheduler spreads the others.
func (p Population) Sharing() wait.Sharing {
	sets := make([][]byte, len(p))
	together := 0 // under the quota of this process
	for i := range p {
		sets[i] = p[i].now(p[0].space)
		if p[i].group == p[0].group {
			together++
		}
	}
	switch {
	case !firstHasOne(sets):
		return wait.Crowded
	case float64(together) > quotas().CPUs():
		return wait.Limited
	}
	return wait.Apart
}

// firstHasOne says whether the first process has a CPU in each assignment of a CPU of its own to as many
// processes as possible. That is so if and only if it adds one to what can be assigned to the others.
func firstHasOne(sets [][]byte) bool {
	a := assignment{sets: sets, to: map[int]int{}}
	for i := len(sets) - 1; i > 0; i-- {
		a.add(i)
	}
	return a.add(0)
}

// assignment gives processes CPUs of their own: a matching that grows along augmenting paths.
type assignment struct {
	sets [][]byte    // the CPUs that each process may have
	to   map[int]int // CPU -> process
	seen []byte      // CPUs from which no free one can be reached
}

// add assigns a CPU to one process more, which may move others. It reports whether there is one.
func (a *assignment) add(i int) bool {
	before := a.seen
	a.seen = slices.Clone(before)
	if !a.place(i) {
		return false // nor will what has been seen ever lead to a free CPU
	}
	a.seen = before
	return true
}

func (a *assignment) place(i int) bool {
	free := func(cpu int) bool { _, taken := a.to[cpu]; return !taken }
	for cpu := range each(a.sets[i]) {
		if free(cpu) {
			a.to[cpu] = i
			return true
		}
	}
	for cpu := range each(a.sets[i]) {
		for len(a.seen) <= cpu/8 {
			a.seen = append(a.seen, 0)
		}
		if a.seen[cpu/8]>>(cpu%8)&1 != 0 {
			continue
		}
		a.seen[cpu/8] |= 1 << (cpu % 8)
		if a.place(a.to[cpu]) {
			a.to[cpu] = i
			return true
		}
	}
	return false
}

// each yields the CPUs of a set.
func each(set []byte) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, b := range set {
			for ; b != 0; b &= b - 1 {
				if !yield(8*i + bits.TrailingZeros8(b)) {
					return
				}
			}
		}
	}
}

func quotas() limits.Quota { return limits.Host{FS: os.DirFS("/")}.Quota() }
