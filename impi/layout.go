package impi

import (
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/internal/span"
)

// A message in a layout of long blocks is a vector of pieces. Short blocks are packed: a vector of them would
// cost more than a copy, for each transport. A packed send does not need its memory any more; a packed receive
// unpacks at its end what has come.

// packMost is the mean length of blocks up to which a layout is packed. There and back with 256 KiB in blocks of
// 8 B takes 5.5 ms packed and 27 ms in pieces over tcp, 2.7 and 5.6 ms over shm; from 1 KiB on neither is better
// throughout (BenchmarkLayout, EPYC VM, 2 CPUs in use by others, too).
const packMost = 1 << 10

// unpackApart is the length from which a message is unpacked without the engine's lock: then it takes longer than
// the lock does.
const unpackApart = 4 << 10

// packing is the memory of a request whose message is packed.
type packing struct {
	shape  *layout.Shape // where a receive unpacks it to; nil of a send
	packed []byte        // of the engine's room; nil: the message is not packed
}

// IsendLayout is Isend for a message in a layout, which may be typed and strided: [channel.StridedSlice] takes
// counts and a stride in elements of a slice (MPI_Type_vector), [channel.Slice] all of it, [channel.Indexed]
// blocks anywhere. Contiguous elements need no layout: Isend takes [channel.Bytes] of them. Only the bytes go;
// the receiver may have another layout, or none. So [Status.Len] and the error that wraps [ErrTruncated] count
// bytes.
//
// Errors: an invalid layout's, which wraps [channel.ErrLayout]; otherwise as for Isend.
func (c *Comm) IsendLayout(l channel.Layout, dest, tag int) (Request, error) {
	shape, err := layout.Of(l)
	if err != nil {
		return Request{}, &Error{Op: "send", Rank: dest, Tag: tag, Err: err}
	}
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	buf, vec, pack := memoryOf(shape)
	if !pack {
		return startedRequest(c.startSend(c.match, buf, vec, dest, tag, false))
	}
	if err := c.usable("send", shape, dest, tag); err != nil {
		return Request{}, err
	}
	packed := c.e.room.get(shape.Len())
	c.e.lock.Unlock() // it takes time
	shape.Gather(packed, 0)
	c.e.lock.Lock()
	if err := c.usable("send", shape, dest, tag); err != nil { // closed meanwhile
		c.e.room.put(packed)
		return Request{}, err
	}
	r, err := c.startSend(c.match, packed, nil, dest, tag, false)
	if err != nil || r.over() {
		c.e.room.put(packed)
	} else {
		r.packed = packed
	}
	return startedRequest(r, err)
}

// IrecvLayout is Irecv into a layout, as [Comm.IsendLayout] sends from one; its blocks must not overlap. A
// message that is shorter fills the first blocks.
func (c *Comm) IrecvLayout(l channel.Layout, source, tag int) (Request, error) {
	shape, err := layout.Of(l)
	if err == nil {
		if e := shape.Disjoint(); e != nil {
			err = fmt.Errorf("%w: %w, in a layout to receive into", channel.ErrLayout, e)
		}
	}
	if err != nil {
		return Request{}, &Error{Op: "receive", Rank: source, Tag: tag, Err: err}
	}
	c.e.lock.Lock()
	defer c.e.lock.Unlock()
	buf, vec, pack := memoryOf(shape)
	if !pack {
		return startedRequest(c.startReceive(c.match, buf, vec, source, tag))
	}
	if err := c.usable("receive", shape, source, tag); err != nil {
		return Request{}, err
	}
	packed := c.e.room.get(shape.Len())
	r, err := c.startReceive(c.match, packed, nil, source, tag)
	if err != nil {
		c.e.room.put(packed)
		return Request{}, err
	}
	if r.packing = (packing{shape, packed}); r.over() { // the message was there
		if r.unpacks(r.err) {
			c.e.unpackLater(r, r.err)
			c.e.unpackAll()
		} else {
			c.e.unpack(r, r.err)
		}
	}
	return Request{r, r.gen}, nil
}

// startedRequest is the Request of a request. The caller holds the lock.
func startedRequest(r *request, err error) (Request, error) {
	if err != nil {
		return Request{}, err
	}
	return Request{r, r.gen}, nil
}

// memoryOf returns the memory of a layout, contiguous or in pieces, or says that it is to be packed.
func memoryOf(s *layout.Shape) (buf []byte, vec [][]byte, pack bool) {
	switch blocks := s.Blocks(); {
	case blocks == 0:
		return nil, nil, false
	case blocks == 1:
		return s.Flat(), nil, false
	case s.Len()/blocks <= packMost:
		return nil, nil, true
	default:
		vec = make([][]byte, 0, blocks)
		for at := s.Seek(0); len(vec) < blocks; {
			vec = append(vec, s.Next(&at, s.Len()))
		}
		return nil, vec, false
	}
}

// usable is an error if the memory of a layout that is packed may not be used. The caller holds the lock.
func (c *Comm) usable(op string, s *layout.Shape, rank, tag int) error {
	for i := range s.Parts() {
		if err := c.e.usable(s.Parts()[i].Base, nil); err != nil {
			return &Error{Op: op, Rank: rank, Tag: tag, Err: err}
		}
	}
	return nil
}

// unpacks says whether a packed request that ends with err has something to put where it belongs.
func (r *request) unpacks(err error) bool {
	return r.shape != nil && (err == nil || errors.Is(err, ErrTruncated)) && !r.status.Cancelled && r.length > 0
}

// scatter puts what has come where it belongs.
func (r *request) scatter() {
	r.shape.Scatter(r.packed[:min(r.length, uint64(len(r.packed)))], 0)
}

// unpack ends the packing of a request. What a lost peer may still write to is not used again.
func (e *engine) unpack(r *request, err error) {
	if errors.Is(err, ErrBusy) {
		e.busy = append(e.busy, r.packed)
	} else {
		if r.state != unpacking && r.unpacks(err) {
			r.scatter()
		}
		e.room.put(r.packed)
	}
	r.packing = packing{}
}

// unpackLater leaves a receive to unpackAll: it takes time, for which other goroutines should not wait for the
// lock. No peer, and no call but Close, has to do with the request any more.
func (e *engine) unpackLater(r *request, err error) {
	r.state, r.err = unpacking, err
	e.packed = append(e.packed, r)
	e.unpackings++
}

// unpackAll completes the receives that unpackLater has been given. The caller holds the lock, which is
// released meanwhile.
func (e *engine) unpackAll() {
	for len(e.packed) > 0 {
		r := e.packed[0]
		e.packed = e.packed[:copy(e.packed, e.packed[1:])]
		e.lock.Unlock()
		r.scatter()
		e.lock.Lock()
		e.unpacked(r)
	}
}

// unpacked completes a receive that has been unpacked.
func (e *engine) unpacked(r *request) {
	e.unpackings--
	e.conclude(r, r.err)
}

// unpackedAll is over when no receive is being unpacked.
type unpackedAll struct {
	others
	e *engine
}

func (u unpackedAll) over() bool { return u.e.unpackings == 0 }

// meets says whether a request uses memory.
func (r *request) meets(of span.Set) bool {
	for _, b := range r.vec {
		if of.Meets(span.Of(b)) {
			return true
		}
	}
	if r.shape == nil {
		return false
	}
	for i := range r.shape.Parts() {
		if of.Meets(span.Of(r.shape.Parts()[i].Base)) {
			return true
		}
	}
	return false
}
