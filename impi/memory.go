package impi

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory from [Job.Alloc]. Its methods may be called from several goroutines.
type Memory struct {
	job    *Job
	buf    []byte
	regs   []registration // with the devices of the job
	free   func() error   // nil with devices, and for memory of the heap
	closed atomic.Bool    // set with the lock of the engine
}

// registration is a region of user memory that is registered with a device.
type registration struct {
	d  *rcDevice
	mr *verbs.MR
}

// Alloc returns size bytes of zeroed, page-aligned memory that is registered with all devices of
// the job. A long message sent from it or received into it is not copied through an intermediate
// buffer, and nothing is registered for it at that end; if both ends use such memory, nothing is
// registered at all. This holds for each piece of a message separately, provided that the piece
// lies entirely in one Memory. Short messages gain nothing. Over TCP and within the host it is like
// any other memory.
//
// [channel.Node.Alloc] memory is ordinary memory here: a job opens devices of its own, with which
// that memory is not registered.
//
// The Memory belongs to the caller and must be closed; closing the job also closes it. As long as
// the job lasts, peers that are processes of this package may write to it, as their messages
// require.
//
// Errors: [ErrInvalid], [ErrClosed], and those of [verbs.PD.AllocMR] and [verbs.PD.RegMR]. The memory
// is charged as [channel.Node.Alloc] says.
func (j *Job) Alloc(size int) (*Memory, error) {
	const op = "allocate"
	e := j.e
	if size <= 0 {
		return nil, jobError(op, fmt.Errorf("%w: %d bytes: want more than 0", ErrInvalid, size))
	}
	e.lock.Lock()
	closing := e.closing
	if !closing {
		e.wg.Add(1) // devices stay open
	}
	e.lock.Unlock()
	if closing {
		return nil, jobError(op, ErrClosed)
	}
	defer e.wg.Done()
	m := &Memory{job: j}
	if err := m.register(size); err != nil {
		return nil, jobError(op, errors.Join(err, m.deregister()))
	}
	e.lock.Lock()
	defer e.lock.Unlock()
	e.memories.Add(m.buf, m)
	return m, nil
}

// register allocates memory of the kind that the first device moves fastest and registers it with
// the other devices.
func (m *Memory) register(size int) error {
	for _, d := range m.job.devices {
		var mr *verbs.MR
		var err error
		if m.buf == nil {
			mr, err = d.pd.AllocMR(size, verbs.AccessAll)
		} else {
			mr, err = d.pd.RegMR(m.buf, verbs.AccessAll)
		}
		if err != nil {
			return err
		}
		m.regs = append(m.regs, registration{d, mr})
		if m.buf == nil {
			m.buf = mr.Bytes()
		}
	}
	if m.buf == nil {
		var err error
		if m.buf, m.free, err = retire.Alloc(size); err != nil {
			return fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
		}
	}
	return nil
}

// deregister closes the regions; the first, which owns the memory, comes last. If there is none, it
// frees the memory.
func (m *Memory) deregister() error {
	var errs []error
	for _, r := range slices.Backward(m.regs) {
		errs = append(errs, r.mr.Close())
	}
	if m.free != nil {
		errs = append(errs, m.free())
	}
	return errors.Join(errs...)
}

// Bytes returns the memory; nil after Close of the Memory or the job. Slices of it must not be used
// after that: another Memory may have the bytes. A send from it or a receive into it then fails
// with [ErrClosed]. Accessing a slice of memory that a device of the job has made has the effects
// that [channel.Memory.Bytes] describes for closed nodes, and likewise for other memory.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.buf
}

// Close frees the memory for the next Alloc. While an active request uses it, Close fails with
// [ErrBusy] and has no effect. Closing again does nothing.
//
// Close also returns [ErrBusy] if, within [Config.PeerTimeout], a peer that has stopped cannot be
// kept from writing to the memory. In that case the Memory is closed, and its bytes are never used
// again.
func (m *Memory) Close() error {
	const op = "close memory"
	e := m.job.e
	e.lock.Lock()
	switch {
	case m.closed.Load(), e.broken != nil: // the job does it
		e.lock.Unlock()
		return nil
	case e.usesMemory(m):
		e.lock.Unlock()
		return jobError(op, fmt.Errorf("%w: an active request uses the memory", ErrBusy))
	}
	e.dropMemory(m)
	e.wg.Add(1)
	e.lock.Unlock()
	defer e.wg.Done()
	if err := m.deregister(); err != nil {
		if errors.Is(err, verbs.ErrBusy) {
			err = fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return jobError(op, err)
	}
	return nil
}

// dropMemory removes memory from that which messages may use.
func (e *engine) dropMemory(m *Memory) {
	m.closed.Store(true)
	e.memories.Remove(m.buf, len(m.regs) > 0 || m.free != nil) // heap memory lives as long as a slice of it
}

// usesMemory says whether an active request uses m.
func (e *engine) usesMemory(m *Memory) bool {
	of := span.Set{span.Of(m.buf)}
	for _, r := range e.table {
		if (r.state == queued || r.state == moving) && slices.ContainsFunc(r.vec, func(b []byte) bool { return of.Meets(span.Of(b)) }) {
			return true
		}
	}
	return false
}

// allocated says whether a request's memory is Alloc memory throughout.
func (e *engine) allocated(r *request) bool {
	for _, b := range r.vec {
		if len(b) > 0 && e.memories.Find(b) == nil {
			return false
		}
	}
	return true
}

// usable returns the reason why messages may not use the memory. It is one comparison unless memory
// has been closed.
func (e *engine) usable(buf []byte, vec [][]byte) error {
	if !e.memories.Spoiled() {
		return nil
	}
	if err := e.stillThere(buf); err != nil {
		return err
	}
	for _, b := range vec {
		if err := e.stillThere(b); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) stillThere(b []byte) error {
	switch {
	case len(b) == 0 || !e.memories.Stale(b):
		return nil
	case e.memories.Find(b) != nil:
		return fmt.Errorf("%w: the memory cannot be used: a lost peer may still write to it", ErrBusy)
	}
	return fmt.Errorf("%w: the Memory that the buffer lies in has been closed", ErrClosed)
}

// keyed is a piece of the memory of a request, with its keys.
type keyed struct {
	addr       uint64
	length     uint64
	lkey, rkey uint32
}

// keyedOf returns b's keys if it lies in Alloc memory.
func (d *rcDevice) keyedOf(b []byte) (keyed, bool) {
	m := d.e.memories.Find(b)
	if m == nil {
		return keyed{}, false
	}
	i := slices.IndexFunc(m.regs, func(r registration) bool { return r.d == d })
	mr := m.regs[i].mr
	skip := uint64(span.Of(b).From - span.Of(m.buf).From)
	return keyed{mr.Addr() + skip, uint64(len(b)), mr.LKey(), mr.RKey()}, true
}

// Stats counts the work done for long messages between hosts.
type Stats struct {
	// Registered is how often user memory has been registered with a device for a single message.
	Registered uint64
	// Staged is how many bytes of messages have been copied through an intermediate buffer, in
	// either direction.
	Staged uint64
}

// Stats returns this host's counts since the job began.
func (j *Job) Stats() Stats {
	j.e.lock.Lock()
	defer j.e.lock.Unlock()
	return j.e.stats
}
