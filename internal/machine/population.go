package machine

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"

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

// Sharing says whether each process has a CPU to itself now.
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
	case len(p) > Count(sets...):
		return wait.Crowded
	case float64(together) > quotas().CPUs():
		return wait.Limited
	}
	return wait.Apart
}

func quotas() limits.Quota { return limits.Host{FS: os.DirFS("/")}.Quota() }
