package qmp

import (
	"io"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/exact"
)

// Current returns the machine made by [Init]; nil before Init and after [Finalize].
func Current() *Machine { return current.Load() }

// deflt returns the default communicator; nil before Init.
func deflt() *Comm { return Current().DefaultComm() }

// MsgPassingType is [Machine.MsgPassingType] of the machine of [Init].
func MsgPassingType() Interconnect { return Current().MsgPassingType() }

// SMPCount is [Machine.SMPCount] of the machine of [Init].
func SMPCount() int { return Current().SMPCount() }

// AllocatedNumberOfDimensions is [Machine.AllocatedNumberOfDimensions] of the machine of [Init].
func AllocatedNumberOfDimensions() int { return Current().AllocatedNumberOfDimensions() }

// AllocatedDimensions is [Machine.AllocatedDimensions] of the machine of [Init].
func AllocatedDimensions() []int { return Current().AllocatedDimensions() }

// AllocatedCoordinates is [Machine.AllocatedCoordinates] of the machine of [Init].
func AllocatedCoordinates() []int { return Current().AllocatedCoordinates() }

// NumberOfJobs is [Machine.NumberOfJobs] of the machine of [Init].
func NumberOfJobs() int { return Current().NumberOfJobs() }

// JobNumber is [Machine.JobNumber] of the machine of [Init].
func JobNumber() int { return Current().JobNumber() }

// JobGeometry is [Machine.JobGeometry] of the machine of [Init].
func JobGeometry() []int { return Current().JobGeometry() }

// NumberOfJobGeometryDimensions is [Machine.NumberOfJobGeometryDimensions] of the machine of [Init].
func NumberOfJobGeometryDimensions() int { return Current().NumberOfJobGeometryDimensions() }

// IONode is [Machine.IONode] of the machine of [Init].
func IONode(node int) int { return Current().IONode(node) }

// MasterIONode is [Machine.MasterIONode] of the machine of [Init].
func MasterIONode() int { return Current().MasterIONode() }

// AllocatedComm is [Machine.AllocatedComm] of the machine of [Init].
func AllocatedComm() *Comm { return Current().AllocatedComm() }

// JobComm is [Machine.JobComm] of the machine of [Init].
func JobComm() *Comm { return Current().JobComm() }

// DefaultComm is [Machine.DefaultComm] of the machine of [Init].
func DefaultComm() *Comm { return Current().DefaultComm() }

// SetAllocatedComm is [Machine.SetAllocatedComm] of the machine of [Init].
func SetAllocatedComm(c *Comm) error { return Current().SetAllocatedComm(c) }

// SetJobComm is [Machine.SetJobComm] of the machine of [Init].
func SetJobComm(c *Comm) error { return Current().SetJobComm(c) }

// SetDefaultComm is [Machine.SetDefaultComm] of the machine of [Init].
func SetDefaultComm(c *Comm) error { return Current().SetDefaultComm(c) }

// SetWaitTimeout is [Machine.SetWaitTimeout] of the machine of [Init].
func SetWaitTimeout(d time.Duration) time.Duration { return Current().SetWaitTimeout(d) }

// AllocateMemory is [Machine.AllocateMemory] of the machine of [Init].
func AllocateMemory(nbytes int) (*Memory, error) { return Current().AllocateMemory(nbytes) }

// AllocateAlignedMemory is [Machine.AllocateAlignedMemory] of the machine of [Init].
func AllocateAlignedMemory(nbytes, alignment int, flags MemFlags) (*Memory, error) {
	return Current().AllocateAlignedMemory(nbytes, alignment, flags)
}

// Verbose is [Machine.Verbose] of the machine of [Init].
func Verbose(level int) int { return Current().Verbose(level) }

// ProfControl is [Machine.ProfControl] of the machine of [Init].
func ProfControl(level int) int { return Current().ProfControl(level) }

// TotalTime is [Machine.TotalTime] of the machine of [Init].
func TotalTime() time.Duration { return Current().TotalTime() }

// ResetTotalTime is [Machine.ResetTotalTime] of the machine of [Init].
func ResetTotalTime() { Current().ResetTotalTime() }

// Printf is [Machine.Printf] of the machine of [Init]; before Init, question marks stand for the
// node and the number of nodes.
func Printf(format string, args ...any) (int, error) { return Current().Printf(format, args...) }

// Fprintf is [Machine.Fprintf] of the machine of [Init]; see [Printf].
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	return Current().Fprintf(w, format, args...)
}

// Infof is [Machine.Infof] of the machine of [Init]; see [Printf].
func Infof(format string, args ...any) (int, error) { return Current().Infof(format, args...) }

// Errorf is [Machine.Errorf] of the machine of [Init]; see [Printf].
func Errorf(format string, args ...any) (int, error) { return Current().Errorf(format, args...) }

// NumberOfNodes is [Comm.NumberOfNodes] of the default communicator.
func NumberOfNodes() int { return deflt().NumberOfNodes() }

// NodeNumber is [Comm.NodeNumber] of the default communicator.
func NodeNumber() int { return deflt().NodeNumber() }

// IsPrimaryNode is [Comm.IsPrimaryNode] of the default communicator.
func IsPrimaryNode() bool { return deflt().IsPrimaryNode() }

// DeclareLogicalTopology is [Comm.DeclareLogicalTopology] of the default communicator.
func DeclareLogicalTopology(dims []int) error { return deflt().DeclareLogicalTopology(dims) }

// DeclareLogicalTopologyMap is [Comm.DeclareLogicalTopologyMap] of the default communicator.
func DeclareLogicalTopologyMap(dims, order []int) error {
	return deflt().DeclareLogicalTopologyMap(dims, order)
}

// LogicalTopologyIsDeclared is [Comm.LogicalTopologyIsDeclared] of the default communicator.
func LogicalTopologyIsDeclared() bool { return deflt().LogicalTopologyIsDeclared() }

// LogicalNumberOfDimensions is [Comm.LogicalNumberOfDimensions] of the default communicator.
func LogicalNumberOfDimensions() int { return deflt().LogicalNumberOfDimensions() }

// LogicalDimensions is [Comm.LogicalDimensions] of the default communicator.
func LogicalDimensions() []int { return deflt().LogicalDimensions() }

// LogicalCoordinates is [Comm.LogicalCoordinates] of the default communicator.
func LogicalCoordinates() []int { return deflt().LogicalCoordinates() }

// LogicalCoordinatesFrom is [Comm.LogicalCoordinatesFrom] of the default communicator.
func LogicalCoordinatesFrom(node int) []int { return deflt().LogicalCoordinatesFrom(node) }

// NodeNumberFrom is [Comm.NodeNumberFrom] of the default communicator.
func NodeNumberFrom(coordinates []int) int { return deflt().NodeNumberFrom(coordinates) }

// LayoutGrid is [Comm.LayoutGrid] of the default communicator.
func LayoutGrid(lattice []int, opts ...LayoutOption) error {
	return deflt().LayoutGrid(lattice, opts...)
}

// SubgridDimensions is [Comm.SubgridDimensions] of the default communicator.
func SubgridDimensions() []int { return deflt().SubgridDimensions() }

// NumberOfSubgridSites is [Comm.NumberOfSubgridSites] of the default communicator.
func NumberOfSubgridSites() int { return deflt().NumberOfSubgridSites() }

// DeclareSendRelative is [Comm.DeclareSendRelative] of the default communicator.
func DeclareSendRelative(mm *MsgMem, axis, dir, priority int) (*Handle, error) {
	return deflt().DeclareSendRelative(mm, axis, dir, priority)
}

// DeclareReceiveRelative is [Comm.DeclareReceiveRelative] of the default communicator.
func DeclareReceiveRelative(mm *MsgMem, axis, dir, priority int) (*Handle, error) {
	return deflt().DeclareReceiveRelative(mm, axis, dir, priority)
}

// DeclareSendTo is [Comm.DeclareSendTo] of the default communicator.
func DeclareSendTo(mm *MsgMem, node, priority int) (*Handle, error) {
	return deflt().DeclareSendTo(mm, node, priority)
}

// DeclareReceiveFrom is [Comm.DeclareReceiveFrom] of the default communicator.
func DeclareReceiveFrom(mm *MsgMem, node, priority int) (*Handle, error) {
	return deflt().DeclareReceiveFrom(mm, node, priority)
}

// DeclareSendMap is [Comm.DeclareSendMap] of the default communicator.
func DeclareSendMap(mm *MsgMem, to []int, priority int) (*Handle, error) {
	return deflt().DeclareSendMap(mm, to, priority)
}

// DeclareReceiveMap is [Comm.DeclareReceiveMap] of the default communicator.
func DeclareReceiveMap(mm *MsgMem, to []int, priority int) (*Handle, error) {
	return deflt().DeclareReceiveMap(mm, to, priority)
}

// Barrier is [Comm.Barrier] of the default communicator.
func Barrier() error { return deflt().Barrier() }

// WaitForBarrier is [Comm.WaitForBarrier] of the default communicator.
func WaitForBarrier(timeout time.Duration) error { return deflt().WaitForBarrier(timeout) }

// BinaryReduction is [Comm.BinaryReduction] of the default communicator.
func BinaryReduction(buf []byte, f func(inout, in []byte)) error {
	return deflt().BinaryReduction(buf, f)
}

// SumInt is [Comm.SumInt] of the default communicator.
func SumInt(x *int) error { return deflt().SumInt(x) }

// SumInt64 is [Comm.SumInt64] of the default communicator.
func SumInt64(x *int64) error { return deflt().SumInt64(x) }

// SumUint64 is [Comm.SumUint64] of the default communicator.
func SumUint64(x *uint64) error { return deflt().SumUint64(x) }

// SumFloat is [Comm.SumFloat] of the default communicator.
func SumFloat(x *float32) error { return deflt().SumFloat(x) }

// SumDouble is [Comm.SumDouble] of the default communicator.
func SumDouble(x *float64) error { return deflt().SumDouble(x) }

// SumComplex64 is [Comm.SumComplex64] of the default communicator.
func SumComplex64(x *complex64) error { return deflt().SumComplex64(x) }

// SumComplex128 is [Comm.SumComplex128] of the default communicator.
func SumComplex128(x *complex128) error { return deflt().SumComplex128(x) }

// SumDoubleExtended is [Comm.SumDoubleExtended] of the default communicator.
func SumDoubleExtended(x *float64) error { return deflt().SumDoubleExtended(x) }

// SumIntArray is [Comm.SumIntArray] of the default communicator.
func SumIntArray(x []int) error { return deflt().SumIntArray(x) }

// SumInt64Array is [Comm.SumInt64Array] of the default communicator.
func SumInt64Array(x []int64) error { return deflt().SumInt64Array(x) }

// SumUint64Array is [Comm.SumUint64Array] of the default communicator.
func SumUint64Array(x []uint64) error { return deflt().SumUint64Array(x) }

// SumFloatArray is [Comm.SumFloatArray] of the default communicator.
func SumFloatArray(x []float32) error { return deflt().SumFloatArray(x) }

// SumDoubleArray is [Comm.SumDoubleArray] of the default communicator.
func SumDoubleArray(x []float64) error { return deflt().SumDoubleArray(x) }

// SumComplex64Array is [Comm.SumComplex64Array] of the default communicator.
func SumComplex64Array(x []complex64) error { return deflt().SumComplex64Array(x) }

// SumComplex128Array is [Comm.SumComplex128Array] of the default communicator.
func SumComplex128Array(x []complex128) error { return deflt().SumComplex128Array(x) }

// SumDoubleExtendedArray is [Comm.SumDoubleExtendedArray] of the default communicator.
func SumDoubleExtendedArray(x []float64) error { return deflt().SumDoubleExtendedArray(x) }

// SumExact is [Comm.SumExact] of the default communicator.
func SumExact(sums ...*exact.Accumulator) error { return deflt().SumExact(sums...) }

// MaxInt is [Comm.MaxInt] of the default communicator.
func MaxInt(x *int) error { return deflt().MaxInt(x) }

// MinInt is [Comm.MinInt] of the default communicator.
func MinInt(x *int) error { return deflt().MinInt(x) }

// MaxFloat is [Comm.MaxFloat] of the default communicator.
func MaxFloat(x *float32) error { return deflt().MaxFloat(x) }

// MinFloat is [Comm.MinFloat] of the default communicator.
func MinFloat(x *float32) error { return deflt().MinFloat(x) }

// MaxDouble is [Comm.MaxDouble] of the default communicator.
func MaxDouble(x *float64) error { return deflt().MaxDouble(x) }

// MinDouble is [Comm.MinDouble] of the default communicator.
func MinDouble(x *float64) error { return deflt().MinDouble(x) }

// XorInt is [Comm.XorInt] of the default communicator.
func XorInt(x *int) error { return deflt().XorInt(x) }

// XorUint64 is [Comm.XorUint64] of the default communicator.
func XorUint64(x *uint64) error { return deflt().XorUint64(x) }

// Broadcast is [Comm.Broadcast] over the default communicator, for a slice of any type without
// pointers; it panics for other types.
func Broadcast[E any](buf []E) error { return deflt().Broadcast(channel.Bytes(buf)) }

// Alltoall is [Comm.Alltoall] over the default communicator, for slices of any type without
// pointers; it panics for other types.
func Alltoall[E any](recv, send []E) error {
	return deflt().Alltoall(channel.Bytes(recv), channel.Bytes(send))
}
