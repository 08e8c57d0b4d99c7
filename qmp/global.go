package qmp

import (
	"errors"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// cell is where single values of a type are reduced. It is always the same memory, so that
// operations are made once, the group recognizes them, and the callers' values can stay off the
// heap.
type cell[T channel.Number] struct {
	v    [1]T
	made [channel.Xor + 1]bool
	ops  [channel.Xor + 1]channel.Operation // in place
}

// cells holds the cells of a communicator.
type cells struct {
	wide []float64 // where arrays are summed in double precision

	f32  cell[float32]
	f64  cell[float64]
	i64  cell[int64]
	u64  cell[uint64]
	c128 cell[complex128]
}

// begin begins a global operation; end ends it.
func (c *Comm) begin(op string) error {
	if err := c.check(op); err != nil {
		return err
	}
	if !atomic.CompareAndSwapUint32(&c.inside, 0, 1) {
		return invalid(op, StatusSvcBusy, "another goroutine is in a global operation of the communicator")
	}
	return nil
}

func (c *Comm) end() { wait.StoreRelease32(&c.inside, 0) }

// global runs an operation of the group.
func (c *Comm) global(op string, o channel.Operation) error {
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.m.watched(op)()
	err := c.group.Run(background, o)
	c.end()
	return failed(op, err)
}

// single reduces one value in its cell.
func single[T channel.Number](c *Comm, what string, op channel.Op, of func(*Comm) *cell[T], x *T) error {
	if err := c.begin(what); err != nil {
		return err
	}
	if c.m.watch.Load() != 0 {
		defer c.m.watched(what)()
	}
	in := of(c)
	if !in.made[op] {
		in.ops[op], in.made[op] = channel.Allreduce(op, in.v[:], in.v[:]), true
	}
	in.v[0] = *x
	err := c.group.Run(background, in.ops[op])
	if err == nil {
		*x = in.v[0]
	}
	c.end()
	return failed(what, err)
}

// array reduces a slice in place.
func array[T channel.Number](c *Comm, what string, op channel.Op, x []T) error {
	if err := c.begin(what); err != nil {
		return err
	}
	if c.m.watch.Load() != 0 {
		defer c.m.watched(what)()
	}
	err := c.group.Run(background, channel.Allreduce(op, x, x))
	c.end()
	return failed(what, err)
}

// inDouble sums element by element in double precision, in memory of the communicator.
func (c *Comm) inDouble(what string, x []float32) error {
	if err := c.begin(what); err != nil {
		return err
	}
	defer c.end()
	if c.m.watch.Load() != 0 {
		defer c.m.watched(what)()
	}
	w := slices.Grow(c.cells.wide[:0], len(x))[:len(x)]
	c.cells.wide = w
	for i, v := range x {
		w[i] = float64(v)
	}
	err := c.group.Run(background, channel.Allreduce(channel.Sum, w, w))
	for i := 0; i < len(w) && err == nil; i++ {
		x[i] = float32(w[i])
	}
	return failed(what, err)
}

func inF32(c *Comm) *cell[float32]     { return &c.cells.f32 }
func inF64(c *Comm) *cell[float64]     { return &c.cells.f64 }
func inI64(c *Comm) *cell[int64]       { return &c.cells.i64 }
func inU64(c *Comm) *cell[uint64]      { return &c.cells.u64 }
func inC128(c *Comm) *cell[complex128] { return &c.cells.c128 }

// integer reduces an int.
func (c *Comm) integer(what string, op channel.Op, x *int) error {
	v := int64(*x)
	err := single(c, what, op, inI64, &v)
	if err == nil {
		*x = int(v)
	}
	return err
}

// SumInt sums one value of each node in place (QMP_sum_int). As with every global operation, all
// nodes call it, in the same order and with the same lengths. The result has the same bits at all
// nodes.
//
// Errors of global operations: [StatusNotInited]; [StatusSvcBusy]; [StatusBadMessage] if a node
// calls a different operation; [StatusError] around the error of package channel if a node dies or
// leaves. After one of the last two, the communicator has no more global operations, and the values
// are undefined.
func (c *Comm) SumInt(x *int) error { return c.integer("sum int", channel.Sum, x) }

// SumInt64 sums one value of each node, in place; see [Comm.SumInt].
func (c *Comm) SumInt64(x *int64) error { return single(c, "sum int64", channel.Sum, inI64, x) }

// SumUint64 sums one value of each node, in place, modulo 2^64 (QMP_sum_uint64_t); see
// [Comm.SumInt].
func (c *Comm) SumUint64(x *uint64) error {
	return single(c, "sum uint64", channel.Sum, inU64, x)
}

// SumFloat sums one value of each node, in place, in double precision, and rounds the result
// (QMP_sum_float); see [Comm.SumInt].
func (c *Comm) SumFloat(x *float32) error {
	v := float64(*x)
	err := single(c, "sum float", channel.Sum, inF64, &v)
	if err == nil {
		*x = float32(v)
	}
	return err
}

// SumDouble sums one value of each node, in place (QMP_sum_double); see [Comm.SumInt].
func (c *Comm) SumDouble(x *float64) error {
	return single(c, "sum double", channel.Sum, inF64, x)
}

// SumComplex64 sums one value of each node, in place, in double precision, and rounds the
// result; see [Comm.SumInt].
func (c *Comm) SumComplex64(x *complex64) error {
	v := complex128(*x)
	err := single(c, "sum complex64", channel.Sum, inC128, &v)
	if err == nil {
		*x = complex64(v)
	}
	return err
}

// SumComplex128 sums one value of each node, in place; see [Comm.SumInt].
func (c *Comm) SumComplex128(x *complex128) error {
	return single(c, "sum complex128", channel.Sum, inC128, x)
}

// SumIntArray sums element by element, in place; see [Comm.SumInt].
func (c *Comm) SumIntArray(x []int) error {
	if unsafe.Sizeof(int(0)) == unsafe.Sizeof(int64(0)) {
		return array(c, "sum int array", channel.Sum, unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(x))), len(x)))
	}
	return array(c, "sum int array", channel.Sum, unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(x))), len(x)))
}

// SumInt64Array sums element by element, in place; see [Comm.SumInt].
func (c *Comm) SumInt64Array(x []int64) error { return array(c, "sum int64 array", channel.Sum, x) }

// SumUint64Array sums element by element, in place, modulo 2^64; see [Comm.SumInt].
func (c *Comm) SumUint64Array(x []uint64) error { return array(c, "sum uint64 array", channel.Sum, x) }

// SumFloatArray sums element by element, in place, in double precision, and rounds the results
// (QMP_sum_float_array); see [Comm.SumInt]. The communicator keeps 8 bytes for each element of the
// longest array so far.
func (c *Comm) SumFloatArray(x []float32) error { return c.inDouble("sum float array", x) }

// SumDoubleArray sums element by element, in place (QMP_sum_double_array); see
// [Comm.SumInt].
func (c *Comm) SumDoubleArray(x []float64) error { return array(c, "sum double array", channel.Sum, x) }

// SumComplex64Array sums element by element, in place, in double precision, and rounds the
// results; see [Comm.SumFloatArray].
func (c *Comm) SumComplex64Array(x []complex64) error {
	return c.inDouble("sum complex64 array", unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x)))
}

// SumComplex128Array sums element by element, in place; see [Comm.SumInt].
func (c *Comm) SumComplex128Array(x []complex128) error {
	return array(c, "sum complex128 array", channel.Sum, x)
}

// MaxInt sets x to the largest of the values of all nodes (QMP::maxInt); see [Comm.SumInt].
func (c *Comm) MaxInt(x *int) error { return c.integer("max int", channel.Max, x) }

// MinInt sets x to the smallest of the values of all nodes (QMP::minInt); see [Comm.SumInt].
func (c *Comm) MinInt(x *int) error { return c.integer("min int", channel.Min, x) }

// MaxFloat sets x to the largest of the values of all nodes, NaN if any is NaN (QMP_max_float); see
// [Comm.SumInt].
func (c *Comm) MaxFloat(x *float32) error {
	return single(c, "max float", channel.Max, inF32, x)
}

// MinFloat sets x to the smallest of the values of all nodes, NaN if any is NaN (QMP_min_float);
// see [Comm.SumInt].
func (c *Comm) MinFloat(x *float32) error {
	return single(c, "min float", channel.Min, inF32, x)
}

// MaxDouble sets x to the largest of the values of all nodes, NaN if any is NaN (QMP_max_double);
// see [Comm.SumInt].
func (c *Comm) MaxDouble(x *float64) error {
	return single(c, "max double", channel.Max, inF64, x)
}

// MinDouble sets x to the smallest of the values of all nodes, NaN if any is NaN (QMP_min_double);
// see [Comm.SumInt].
func (c *Comm) MinDouble(x *float64) error {
	return single(c, "min double", channel.Min, inF64, x)
}

// XorInt sets x to the exclusive or of the values of all nodes (QMP_global_xor); see [Comm.SumInt].
func (c *Comm) XorInt(x *int) error { return c.integer("xor int", channel.Xor, x) }

// XorUint64 sets x to the exclusive or of the values of all nodes (QMP_xor_ulong); see
// [Comm.SumInt].
func (c *Comm) XorUint64(x *uint64) error {
	return single(c, "xor ulong", channel.Xor, inU64, x)
}

// Broadcast copies buf of node 0 to buf of all other nodes, which must have the same length
// (QMP_broadcast); see [Comm.SumInt]. [Bytes] makes bytes of any slice.
func (c *Comm) Broadcast(buf []byte) error {
	return c.global("broadcast", channel.Broadcast(buf, 0))
}

// Alltoall divides send and recv into as many equal blocks as there are nodes, sends block i of
// send to node i, and stores the block from node i as block i of recv (QMP_comm_alltoall); see
// [Comm.SumInt]. The two must not overlap.
func (c *Comm) Alltoall(recv, send []byte) error {
	return c.global("alltoall", channel.Alltoall(recv, send))
}

// Bytes returns the memory of a slice of a type without pointers; it panics for other types.
func Bytes[E any](s []E) []byte { return channel.Bytes(s) }

// errNil is the error for a nil function.
var errNil = errors.New("the function is nil")
