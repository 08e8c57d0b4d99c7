package impi

import (
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory from [Job.Alloc]. Its methods may be called from several goroutines.
type Memory struct {
	job    *Job
	buf    []byte
	regs   memory.Regs[*rcDevice, *verbs.MR] // with the devices of the job
	mapped bool                              // peers load and store it, by devices that let them
	free   func() error                      // nil if a registration frees it, and for memory of the heap
	closed atomic.Bool                       // set with the lock of the engine
	shared *memory.Block                     // with the rest of the process
	others bool                              // it is not of this job: it has been joined
	stuck  error                             // why it cannot be deregistered
}

// Alloc returns size bytes of zeroed, page-aligned memory that is registered with all devices of
// the job. A long message sent from it or received into it is not copied through an intermediate
// buffer, and nothing is registered for it at that end; if both ends use such memory, nothing is
// registered at all. This holds for each piece of a message separately, provided that the piece
// lies entirely in one Memory. Short messages gain nothing. Over TCP and within the host it is like
// any other memory.
//
// Memory of [channel.Node.Alloc], and of other jobs of the process, is as good: the first long message
// of it registers it, for as long as it and the job last, or until the device needs the room while no message
// uses it. Nodes of this process use this memory likewise.
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
	m.shared = memory.Share(m.buf, memory.Kind{Mapped: m.mapped, Freed: m.freed()})
	e.memories.Add(m.buf, m)
	return m, nil
}

// register allocates memory of the kind that the first device moves fastest and registers it with all.
// What is not mapped by peers is allocated here: then it is known whether it is of the heap.
func (m *Memory) register(size int) (err error) {
	devices := m.job.devices
	if m.mapped = len(devices) > 0 && devices[0].maps; !m.mapped {
		if m.buf, m.free, err = retire.Alloc(size); err != nil {
			return fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
		}
	}
	for _, d := range devices {
		register := func() (*verbs.MR, error) {
			if m.buf == nil {
				return d.pd.AllocMR(size, verbs.AccessAll)
			}
			return d.regMR(m.buf, verbs.AccessAll)
		}
		mr, err := m.regs.Add(d, register)
		if errors.Is(err, verbs.ErrNoMemory) && d.spared(size) {
			mr, err = m.regs.Add(d, register)
		}
		if err != nil {
			return err
		}
		m.buf = mr.Bytes()
	}
	return nil
}

// deregister closes the registrations. Then it frees memory that nothing accesses any more.
func (m *Memory) deregister() error {
	err := m.regs.Close()
	if err == nil && m.free != nil {
		err = m.free()
	}
	return err
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

// Close frees the memory for the next Alloc. While an active request uses it, of this job or of another one
// of the process, or a handle of a node is declared over it, Close fails with [ErrBusy] and has no effect.
// Closing again does nothing.
//
// Close also returns [ErrBusy] if, within [Config.PeerTimeout], a peer that has stopped cannot be
// kept from writing to the memory. In that case the Memory is closed, and its bytes are never used
// again.
func (m *Memory) Close() error {
	const op = "close memory"
	e := m.job.e
	e.lock.Lock()
	ended := e.broken != nil // the job does it
	if !ended {
		e.wg.Add(1)
	}
	e.lock.Unlock()
	if ended {
		return nil
	}
	defer e.wg.Done()
	dropped := false
	stuck, err := m.shared.Close(func() error {
		e.lock.Lock()
		defer e.lock.Unlock()
		if m.closed.Load() {
			return nil
		}
		if e.uses(m.buf) {
			return errInUse
		}
		e.dropMemory(m)
		dropped = true
		return nil
	})
	switch {
	case err != nil:
		return jobError(op, fmt.Errorf("%w: %w", ErrBusy, err))
	case !dropped:
		return nil
	case stuck != nil:
		return jobError(op, fmt.Errorf("%w: %w", ErrBusy, stuck))
	}
	if err := m.deregister(); err != nil {
		if errors.Is(err, verbs.ErrBusy) {
			err = fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return jobError(op, err)
	}
	return nil
}

var errInUse = errors.New("an active request uses the memory")

// dropMemory removes memory from that which messages may use.
func (e *engine) dropMemory(m *Memory) {
	m.closed.Store(true)
	e.memories.Remove(m.buf, m.shared.Freed)
}

// freed says whether Close frees the memory. That of the heap lives as long as a slice of it.
func (m *Memory) freed() bool { return m.mapped || m.free != nil }

// uses says whether an active request has memory in common with b.
func (e *engine) uses(b []byte) bool {
	of := span.Set{span.Of(b)}
	for _, r := range e.table {
		if (r.state == queued || r.state == moving || r.state == unpacking) && r.meets(of) {
			return true
		}
	}
	return false
}

// find returns the Alloc memory that b lies in, be it of this job or of something else in the process; nil
// for none. The caller holds the lock.
func (e *engine) find(b []byte) *Memory {
	m := e.memories.Find(b)
	if m == nil || m.stuck != nil {
		if k := memory.Shared(b); k != nil && k.Open() && e.broken == nil && (m == nil || m.shared != k) {
			m = &Memory{buf: k.Bytes, mapped: k.Mapped, shared: k, others: true}
			m.regs.Size, m.regs.Idle = len(m.buf), func() bool { return !e.uses(m.buf) }
			e.memories.Add(m.buf, m)
		}
	}
	return m
}

// of returns the memory of a block; nil for none. What is found at the addresses of the block may be memory
// that an owner which has ended had there. The caller holds the lock.
func (e *engine) of(k *memory.Block) *Memory {
	if m := e.memories.Find(k.Bytes); m != nil && m.shared == k {
		return m
	}
	return nil
}

// user is the engine as a user of memory of others in the process.
type user struct{ e *engine }

// LetGo removes the memory from that which messages may use, and deregisters it.
func (u user) LetGo(k *memory.Block, wait bool) (busy bool, err error) {
	e := u.e
	e.lock.Lock()
	m := e.of(k)
	if m != nil && !m.others {
		e.lock.Unlock()
		return false, nil
	}
	if wait && e.closing && (m != nil || e.uses(k.Bytes)) {
		e.lock.Unlock()
		<-e.parted
		e.lock.Lock()
		m = e.of(k)
	}
	switch {
	case m != nil && m.stuck != nil:
		e.lock.Unlock()
		return false, m.stuck
	case e.uses(k.Bytes), m != nil && e.broken != nil: // the job is about to part
		e.lock.Unlock()
		return true, nil
	case m == nil:
		if k.Freed {
			e.memories.Spoil(k.Bytes)
		}
		e.lock.Unlock()
		return false, nil
	}
	e.dropMemory(m)
	e.wg.Add(1)
	e.lock.Unlock()
	defer e.wg.Done()
	return false, e.part(m)
}

// part deregisters memory of others, which has been dropped. If that fails, it is found again, and
// cannot be used.
func (e *engine) part(m *Memory) error {
	err := m.deregister()
	if err != nil {
		e.lock.Lock()
		defer e.lock.Unlock()
		m.stuck = err
		e.memories.Add(m.buf, m)
		e.memories.Spoil(m.buf)
	}
	return err
}

// partAll ends the use of all memory of others, in a job in which nothing moves any more. LetGo finds what has
// not been deregistered yet: its owner must not free it.
func (e *engine) partAll() (err error) {
	for m := range e.memories.All() {
		if !m.others || m.stuck != nil {
			continue
		}
		gone := m.deregister()
		err = errors.Join(err, gone)
		e.lock.Lock()
		if m.stuck = gone; gone == nil {
			e.dropMemory(m)
		}
		e.lock.Unlock()
	}
	close(e.parted)
	return err
}

// allocated says whether a request's memory is Alloc memory throughout, of the kind that the device
// is good at. The caller holds the lock.
func (d *rcDevice) allocated(r *request) bool {
	for _, b := range r.vec {
		if len(b) > 0 {
			if m := d.e.find(b); m == nil || d.maps && !m.mapped {
				return false
			}
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
	if len(b) == 0 || !e.memories.Stale(b) {
		return nil
	}
	there := e.memories.Find(b)
	switch m := e.find(b); {
	case m == nil:
		return fmt.Errorf("%w: the Memory that the buffer lies in has been closed", ErrClosed)
	case m == there:
		return fmt.Errorf("%w: the memory cannot be used: a lost peer may still write to it", ErrBusy)
	}
	return nil // other memory, or its owner had begun to close it
}

// keyed is a piece of the memory of a request, with its keys.
type keyed struct {
	addr       uint64
	length     uint64
	lkey, rkey uint32
}

// keyedOf returns the keys of b, which lies in m, if that is registered.
func (d *rcDevice) keyedOf(b []byte, m *Memory) (keyed, bool) {
	mr, ok := m.regs.On(d)
	if !ok {
		return keyed{}, false
	}
	skip := uint64(span.Of(b).From - span.Of(m.buf).From)
	return keyed{mr.Addr() + skip, uint64(len(b)), mr.LKey(), mr.RKey()}, true
}

// joinedMost is how many registrations of memory of others a device has at most, of what is idle. The
// table of a device may be small. The bytes are not bounded: the memory is there as long as its owner
// keeps it, registered or not.
const joinedMost = 512

// joined returns the registrations of memory of others.
func (e *engine) joined() iter.Seq[*memory.Regs[*rcDevice, *verbs.MR]] {
	return func(yield func(*memory.Regs[*rcDevice, *verbs.MR]) bool) {
		for m := range e.memories.All() {
			if m.others && m.regs.Len() > 0 && !yield(&m.regs) {
				return
			}
		}
	}
}

// spare closes idle registrations of memory of others that had so many bytes, the least recently used
// first, and reports whether there were any. The caller holds the lock.
func (d *rcDevice) spare(size int) bool {
	got, err := memory.Spare(d, size, d.e.joined())
	if err != nil {
		d.e.log.Warn("impi: cannot deregister memory", "device", d.name, "error", err)
	}
	return got > 0
}

// spared is spare for a caller without the lock.
func (d *rcDevice) spared(size int) bool {
	d.e.lock.Lock()
	defer d.e.lock.Unlock()
	return d.spare(size)
}

// makeRoom keeps the bound of the registrations of memory of others before one is added. The caller holds
// the lock.
func (d *rcDevice) makeRoom() {
	count := 0
	for range d.e.joined() {
		count++
	}
	if count >= joinedMost {
		d.spare(1)
	}
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
