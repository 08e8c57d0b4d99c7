package qmp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/channel"
)

// ThreadLevel says which threads may call the package (QMP_thread_level_t).
type ThreadLevel int

// The thread levels of MPI. The level provided is always ThreadMultiple, because goroutines move
// between threads. [Comm] and [Handle] state what the program must still ensure.
const (
	ThreadSingle ThreadLevel = iota
	ThreadFunneled
	ThreadSerialized
	ThreadMultiple
)

// Machine represents this process in its job: a node with its communicators. [Init] makes the
// machine that the functions of this package refer to; [New] makes others. Methods may be called by
// several goroutines at the same time.
//
// Methods of a nil Machine return zero values, -1 for numbers, and [StatusNotInited].
type Machine struct {
	node  *channel.Node
	owned bool // Finalize closes the node
	host  string
	hosts []int // by rank in the job
	args  arguments
	since time.Time

	whole, job, def atomic.Pointer[Comm]
	jobs            int // communicators that -qmp-job has made
	jobNumber       int
	origin          [2]*Comm // of Init: all nodes, and the job

	patience  atomic.Int64 // of Wait, ns
	watch     atomic.Uint32
	verbosity atomic.Int32
	profiling atomic.Int32
	spent     atomic.Int64 // ns in calls
	out       output

	finalized atomic.Bool
	mu        sync.Mutex
	comms     map[*Comm]struct{} // of Split
	blocks    blocks
}

// DefaultWaitTimeout is how long [Handle.Wait] waits unless [SetWaitTimeout] changes it (QMP 1.2,
// QMP_wait: "a very long time, e.g. 10 minutes").
const DefaultWaitTimeout = 10 * time.Minute

// current is the machine of Init.
var current atomic.Pointer[Machine]

var initializing sync.Mutex

// Init makes this process a node of its job, under any supported launcher (QMP_init_msg_passing).
// All processes of the job call it. It removes the options that begin with -qmp- from args, of
// which the first element is the name of the program; args may be nil. The level provided is
// ThreadMultiple whatever is required.
//
// Errors: [StatusInvalidOp] on a second call; [StatusInvalidArg] for an invalid option;
// [StatusInvalidTopology] for a grid that does not fit; [StatusNodeInfoErr] if [SMPOneAddress] is
// set and a host has several nodes; [StatusInitSvcErr] around the error of channel.Join.
func Init(args *[]string, required ThreadLevel, opts ...Option) (provided ThreadLevel, err error) {
	const op = "init msg passing"
	initializing.Lock()
	defer initializing.Unlock()
	if current.Load() != nil {
		return 0, invalid(op, StatusInvalidOp, "the second time")
	}
	if required < ThreadSingle || required > ThreadMultiple {
		return 0, invalid(op, StatusInvalidArg, "thread level %d", required)
	}
	o := newOptions(opts)
	a, rest, err := parseArguments(args)
	if err != nil {
		return 0, fail(op, StatusInvalidArg, err)
	}
	node, err := channel.Join(o.ctx, o.join...)
	if err != nil {
		return 0, fail(op, StatusInitSvcErr, err)
	}
	m, err := newMachine(o, node, a)
	if err != nil {
		return 0, failed(op, errors.Join(err, node.Close()))
	}
	m.owned = true
	if args != nil {
		*args = rest
	}
	current.Store(m)
	return ThreadMultiple, nil
}

// New makes a machine from a node that the program has joined itself: for a program that also uses
// package channel, or for tests with several nodes. All nodes of the job call it. Finalize leaves
// the node open. The machine uses the streams of the node from 0 upwards, 32 for each communicator.
// Args and errors are those of [Init].
func New(node *channel.Node, args *[]string, opts ...Option) (*Machine, error) {
	const op = "init msg passing"
	a, rest, err := parseArguments(args)
	if err != nil {
		return nil, fail(op, StatusInvalidArg, err)
	}
	m, err := newMachine(newOptions(opts), node, a)
	if err != nil {
		return nil, failed(op, err)
	}
	if args != nil {
		*args = rest
	}
	return m, nil
}

// newMachine makes the initial communicators: that of all nodes, and that of the job made by
// -qmp-job, which without the option is the same.
func newMachine(o options, node *channel.Node, a arguments) (*Machine, error) {
	m := &Machine{node: node, hosts: node.Hosts(), args: a, since: time.Now(), jobs: 1, comms: map[*Comm]struct{}{}}
	m.blocks.flip(0) // of all nodes
	m.patience.Store(int64(DefaultWaitTimeout))
	m.host, _ = os.Hostname()
	m.host = cmp.Or(m.host, "localhost")
	if o.smp == SMPOneAddress {
		if err := m.checkOneAddress(); err != nil {
			return nil, err
		}
	}
	whole, err := a.allocated(node.Size())
	if err != nil {
		return nil, err
	}
	world, err := node.World(o.ctx)
	if err != nil {
		return nil, &Error{Op: "world", Status: StatusInitSvcErr, Err: err}
	}
	all, err := newComm(m, world, 0)
	if err != nil {
		return nil, err
	}
	all.allocated = whole
	job := all
	if len(a.job) > 0 {
		part, err := a.divide(whole, node.Size(), node.Rank())
		if err != nil {
			return nil, err
		}
		if job, err = all.split(o.ctx, part.number, 0); err != nil {
			return nil, err
		}
		delete(m.comms, job)
		job.allocated, m.jobs, m.jobNumber = part.grid, part.count, part.number
	}
	m.origin = [2]*Comm{all, job}
	m.whole.Store(all)
	m.job.Store(job)
	m.def.Store(job)
	return m, nil
}

// checkOneAddress checks that every host has one node.
func (m *Machine) checkOneAddress() error {
	for rank, host := range m.hosts {
		if first := slices.Index(m.hosts, host); first != rank {
			return &Error{Op: "smp", Status: StatusNodeInfoErr, Err: fmt.Errorf("nodes %d and %d are on one host, but SMPOneAddress is set: start one process per host", first, rank)}
		}
	}
	return nil
}

// IsInitialized reports whether [Init] has been called and [Finalize] has not (QMP_is_initialized).
func IsInitialized() bool { return current.Load() != nil }

// Finalize ends message passing (QMP_finalize_msg_passing): it closes every communicator and
// handle, and the node. All nodes call it when they have finished. Before Init it does nothing.
// Memory of [AllocateMemory] is freed as well.
func Finalize() error {
	initializing.Lock()
	defer initializing.Unlock()
	m := current.Swap(nil)
	if m == nil {
		return nil
	}
	return m.Finalize()
}

// Finalize is [Finalize] for this machine; a second call does nothing. A node that the program has
// joined itself stays open, and so do handles.
func (m *Machine) Finalize() error {
	if m == nil || !m.finalized.CompareAndSwap(false, true) {
		return nil
	}
	current.CompareAndSwap(m, nil)
	m.mu.Lock()
	made := m.comms
	m.comms = nil
	m.mu.Unlock()
	var errs []error
	if m.owned {
		errs = append(errs, m.node.Close())
	} else {
		for c := range made {
			errs = append(errs, c.group.Close())
		}
		if m.origin[1] != m.origin[0] {
			errs = append(errs, m.origin[1].group.Close())
		}
		errs = append(errs, m.origin[0].barrier.Close())
	}
	return failed("finalize msg passing", errors.Join(errs...))
}

// Abort ends the whole job, with code as the exit status of the processes of all nodes (QMP_abort);
// see channel.Node.Abort. Before Init it ends only this process. It does not return.
func Abort(code int) { AbortString(code, "abort") }

// AbortString is [Abort] with a reason, which is printed and sent to all nodes (QMP_abort_string).
func AbortString(code int, why string) {
	m := current.Load()
	m.Errorf("%s (status %d)", why, code)
	if m != nil {
		m.node.Abort(code, why)
	}
	os.Exit(cmp.Or(code&0xff, 1))
}

// Node returns the machine's node of package channel. Its rank is the number in the whole
// allocation, whatever the communicator.
func (m *Machine) Node() *channel.Node {
	if m == nil {
		return nil
	}
	return m.node
}

// AllocatedComm returns the communicator of all nodes of the allocation (QMP_comm_get_allocated).
func (m *Machine) AllocatedComm() *Comm {
	if m == nil {
		return nil
	}
	return m.whole.Load()
}

// JobComm returns the communicator of the nodes of this job: all nodes, or the part made by
// -qmp-job (QMP_comm_get_job).
func (m *Machine) JobComm() *Comm {
	if m == nil {
		return nil
	}
	return m.job.Load()
}

// DefaultComm returns the communicator used by the functions of this package that do not name one
// (QMP_comm_get_default): initially that of the job.
func (m *Machine) DefaultComm() *Comm {
	if m == nil {
		return nil
	}
	return m.def.Load()
}

// SetAllocatedComm replaces the communicator of the allocation
// (QMP_comm_set_allocated).
func (m *Machine) SetAllocatedComm(c *Comm) error {
	return m.setComm("comm set allocated", c, func(c *Comm) { m.whole.Store(c) })
}

// SetJobComm replaces the communicator of the job (QMP_comm_set_job).
func (m *Machine) SetJobComm(c *Comm) error {
	return m.setComm("comm set job", c, func(c *Comm) { m.job.Store(c) })
}

// SetDefaultComm replaces the default communicator (QMP_comm_set_default).
func (m *Machine) SetDefaultComm(c *Comm) error {
	return m.setComm("comm set default", c, func(c *Comm) { m.def.Store(c) })
}

func (m *Machine) setComm(op string, c *Comm, set func(*Comm)) error {
	switch {
	case m == nil || m.finalized.Load():
		return fail(op, StatusNotInited, nil)
	case c == nil || c.m != m || c.closed.Load():
		return invalid(op, StatusInvalidArg, "not a communicator of this machine")
	}
	set(c)
	succeed()
	return nil
}

// SetWaitTimeout sets how long [Handle.Wait] waits and returns the previous value. Zero or less
// means no timeout.
func (m *Machine) SetWaitTimeout(d time.Duration) time.Duration {
	if m == nil {
		return 0
	}
	return time.Duration(m.patience.Swap(int64(d)))
}

var background = context.Background()
