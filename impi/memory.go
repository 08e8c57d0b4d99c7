package impi

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/span"
	"github.com/sluice-hpc/sluice/verbs"
)

// Memory is memory of [Job.Alloc]. Its methods may be called from several goroutines.
type Memory struct {
	job    *Job
	buf    []byte
	regs   []registration // with the devices of the job
	closed atomic.Bool    // set with the lock of the engine
}

// registration is a region of the memory of users with a device.
type registration struct {
	d  *rcDevice
	mr *verbs.MR
}

// Alloc returns size bytes of zeroes, page-aligned, which all devices of the job know.
// A long message that is received into it, or sent from it, goes straight from memory
// to memory, through no ring in between, and at that end nothing is registered for it;
// where it lies in such memory at both ends, nothing is registered at all. That holds
// for each piece of a message by itself that lies in one Memory as a whole. Short
// messages gain nothing. Over TCP, and within the host, it is memory as any other.
//
// Memory of [channel.Node.Alloc] is memory as any other here: a job opens devices of
// its own, which know it no more than what comes from the heap.
//
// The Memory belongs to the caller, who must Close it, at the latest by closing the
// job. Peers that are processes of this package may write to it as long as the job
// lasts, as their messages say.
//
// Errors: [ErrInvalid], [ErrClosed], and those of [verbs.PD.AllocMR] and
// [verbs.PD.RegMR].
func (j *Job) Alloc(size int) (*Memory, error) {
	const op = "allocate"
	e := j.e
	if size <= 0 {
		return nil, jobError(op, fmt.Errorf("%w: %d bytes", ErrInvalid, size))
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
	i, _ := e.searchMemory(m.span().From)
	e.memories = slices.Insert(e.memories, i, m)
	e.stale.Remove(m.span())
	return m, nil
}

// register makes the memory, of the kind that the first device moves fastest, and
// has the other devices know it.
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
		page := os.Getpagesize()
		b := make([]byte, size+page)
		skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
		m.buf = b[skip : skip+size : skip+size]
	}
	return nil
}

// deregister closes the regions. The first, which the memory is of, comes last.
func (m *Memory) deregister() error {
	var errs []error
	for _, r := range slices.Backward(m.regs) {
		errs = append(errs, r.mr.Close())
	}
	return errors.Join(errs...)
}

func (m *Memory) span() span.Span { return span.Of(m.buf).Pages(os.Getpagesize()) }

// Bytes is the memory; nil after Close, also of the job. A slice of it must not be
// used then: another Memory may have the bytes. A send of it, or a receive into it, is
// [ErrClosed]. A slice that is used all the same finds what [channel.Memory.Bytes] says of
// closed nodes, where a device of the job has made the memory; other memory keeps its bytes.
func (m *Memory) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.buf
}

// Close frees the memory, for the next Alloc. While a request that is active has to do
// with it, that is [ErrBusy], and nothing has happened. Closing again does nothing.
//
// It is [ErrBusy], too, where a peer that has stopped cannot be kept from writing to
// it, within [Config.PeerTimeout]: the Memory is closed all the same, and its bytes are
// never used again.
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
		return jobError(op, fmt.Errorf("%w: a request that is active has to do with it", ErrBusy))
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

// dropMemory takes memory off what messages may lie in.
func (e *engine) dropMemory(m *Memory) {
	m.closed.Store(true)
	i, _ := e.searchMemory(m.span().From)
	e.memories = slices.Delete(e.memories, i, i+1)
	if len(m.regs) > 0 { // what is of the heap is kept by those who hold a slice of it
		e.stale.Add(m.span())
	}
}

// usesMemory says whether an active request has to do with m.
func (e *engine) usesMemory(m *Memory) bool {
	of := span.Set{span.Of(m.buf)}
	for _, r := range e.table {
		if (r.state == queued || r.state == moving) && slices.ContainsFunc(r.vec, func(b []byte) bool { return of.Meets(span.Of(b)) }) {
			return true
		}
	}
	return false
}

// searchMemory returns where memory that begins at p is, or would be.
func (e *engine) searchMemory(p uintptr) (int, bool) {
	return slices.BinarySearchFunc(e.memories, p, func(m *Memory, p uintptr) int {
		switch from := m.span().From; {
		case from < p:
			return -1
		case from > p:
			return 1
		}
		return 0
	})
}

// findMemory returns the memory that b lies in; nil for none.
func (e *engine) findMemory(b []byte) *Memory {
	s := span.Of(b)
	i, exact := e.searchMemory(s.From)
	if !exact {
		i--
	}
	if i < 0 {
		return nil
	}
	if m := e.memories[i]; s.To <= span.Of(m.buf).To {
		return m
	}
	return nil
}

// allocated says whether all of the memory of a request is of Alloc.
func (e *engine) allocated(r *request) bool {
	if len(e.memories) == 0 {
		return false
	}
	for _, b := range r.vec {
		if len(b) > 0 && e.findMemory(b) == nil {
			return false
		}
	}
	return true
}

// usable says why messages may not lie in the memory. Where nothing has been closed
// that costs a look.
func (e *engine) usable(buf []byte, vec [][]byte) error {
	if len(e.stale) == 0 {
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
	case len(b) == 0 || !e.stale.Meets(span.Of(b)):
		return nil
	case e.findMemory(b) != nil:
		return fmt.Errorf("%w: a peer that is lost may still write to the memory", ErrBusy)
	}
	return fmt.Errorf("%w: the memory has been freed", ErrClosed)
}

// keyed is a piece of the memory of a request, with its keys.
type keyed struct {
	addr       uint64
	length     uint64
	lkey, rkey uint32
}

// keyedOf returns b's keys, if it lies in memory of Alloc.
func (d *rcDevice) keyedOf(b []byte) (keyed, bool) {
	if len(d.e.memories) == 0 {
		return keyed{}, false
	}
	m := d.e.findMemory(b)
	if m == nil {
		return keyed{}, false
	}
	i := slices.IndexFunc(m.regs, func(r registration) bool { return r.d == d })
	mr := m.regs[i].mr
	skip := uint64(span.Of(b).From - span.Of(m.buf).From)
	return keyed{mr.Addr() + skip, uint64(len(b)), mr.LKey(), mr.RKey()}, true
}

// Stats counts what has been done for long messages between hosts.
type Stats struct {
	// Registered is how often memory of users has been registered with a device, for
	// one message.
	Registered uint64
	// Staged is how many bytes of messages have come through memory in between, or gone
	// through it.
	Staged uint64
}

// Stats returns the counts of this host since the job began.
func (j *Job) Stats() Stats {
	j.e.lock.Lock()
	defer j.e.lock.Unlock()
	return j.e.stats
}
