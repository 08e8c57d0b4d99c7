package qmp

import (
	"bytes"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/exact"
	"github.com/sluice-hpc/sluice/internal/logbuf"
)

// TestBeforeInit: every function that can say so says that there was no Init; the others
// say nothing.
func TestBeforeInit(t *testing.T) {
	require.False(t, IsInitialized())
	require.Nil(t, Current())
	require.NoError(t, Finalize())
	mm := must(DeclareMsgMem(make([]byte, 8)))
	i, i64, u64, f, d, c64, c128 := 1, int64(1), uint64(1), float32(1), 1.0, complex64(1), complex128(1)
	errs := map[string]error{
		"topology": DeclareLogicalTopology([]int{1}), "map": DeclareLogicalTopologyMap([]int{1}, nil), "layout": LayoutGrid([]int{4}),
		"barrier": Barrier(), "wait for barrier": WaitForBarrier(time.Second), "broadcast": Broadcast([]int{1}), "alltoall": Alltoall([]int{1}, []int{2}),
		"reduction": BinaryReduction([]byte{1}, func(inout, in []byte) {}), "exact": SumExact(new(exact.Accumulator)),
		"int": SumInt(&i), "int64": SumInt64(&i64), "uint64": SumUint64(&u64), "float": SumFloat(&f), "double": SumDouble(&d), "extended": SumDoubleExtended(&d),
		"complex64": SumComplex64(&c64), "complex128": SumComplex128(&c128), "ints": SumIntArray([]int{1}), "int64s": SumInt64Array([]int64{1}),
		"uint64s": SumUint64Array([]uint64{1}), "floats": SumFloatArray([]float32{1}), "doubles": SumDoubleArray([]float64{1}), "extendeds": SumDoubleExtendedArray([]float64{1}),
		"complex64s": SumComplex64Array([]complex64{1}), "complex128s": SumComplex128Array([]complex128{1}),
		"max int": MaxInt(&i), "max float": MaxFloat(&f), "max double": MaxDouble(&d), "min int": MinInt(&i), "min float": MinFloat(&f), "min double": MinDouble(&d),
		"xor int": XorInt(&i), "xor": XorUint64(&u64), "set allocated": SetAllocatedComm(nil), "set job": SetJobComm(nil), "set default": SetDefaultComm(nil),
		"free": (*Comm)(nil).Free(),
	}
	for what, declare := range map[string]func() (*Handle, error){
		"send relative": func() (*Handle, error) { return DeclareSendRelative(mm, 0, Plus, 0) }, "receive relative": func() (*Handle, error) { return DeclareReceiveRelative(mm, 0, Plus, 0) },
		"send to": func() (*Handle, error) { return DeclareSendTo(mm, 0, 0) }, "receive from": func() (*Handle, error) { return DeclareReceiveFrom(mm, 0, 0) },
		"send map": func() (*Handle, error) { return DeclareSendMap(mm, []int{0}, 0) }, "receive map": func() (*Handle, error) { return DeclareReceiveMap(mm, []int{0}, 0) },
	} {
		_, errs[what] = declare()
	}
	_, errs["split"] = (*Comm)(nil).Split(0, 0)
	_, errs["memory"] = AllocateMemory(8)
	_, errs["aligned memory"] = AllocateAlignedMemory(8, 8, 0)
	for what, err := range errs {
		require.ErrorIs(t, err, StatusNotInited, what)
		require.ErrorContains(t, err, "message passing system is not initialized yet")
	}
	for _, v := range []any{NumberOfNodes(), IsPrimaryNode(), LogicalTopologyIsDeclared(), LogicalNumberOfDimensions(), NumberOfSubgridSites(), AllocatedNumberOfDimensions(),
		NumberOfJobs(), NumberOfJobGeometryDimensions(), MsgPassingType(), MasterIONode(), Verbose(1), ProfControl(1), TotalTime(), SetWaitTimeout(1), Current().DefaultComm().NumberOfColors()} {
		require.Zero(t, v)
	}
	for _, v := range []any{LogicalDimensions(), LogicalCoordinates(), LogicalCoordinatesFrom(0), SubgridDimensions(), AllocatedDimensions(), AllocatedCoordinates(), JobGeometry(),
		AllocatedComm(), JobComm(), DefaultComm(), DefaultComm().Machine(), DefaultComm().Group(), Current().Node()} {
		require.True(t, reflect.ValueOf(v).IsNil())
	}
	for _, v := range []int{NodeNumber(), JobNumber(), NodeNumberFrom([]int{0}), DefaultComm().Color(), DefaultComm().Key()} {
		require.Equal(t, -1, v)
	}
	require.Positive(t, SMPCount())
	require.Equal(t, 3, IONode(3))
	ResetTotalTime()
	var out bytes.Buffer
	_, err := Fprintf(&out, "%d", 1)
	require.NoError(t, err)
	require.Regexp(t, `^QMP m\?,n\?@.+: 1\n$`, out.String())
}

// TestDefault: the functions of the package mean the machine of Init and its default
// communicator.
func TestDefault(t *testing.T) {
	alone(t, "-qmp-geom", "1", "1")
	require.True(t, IsInitialized())
	_, err := Init(nil, ThreadSingle)
	status(t, StatusInvalidOp, err)
	require.Equal(t, 1, NumberOfNodes())
	require.Zero(t, NodeNumber())
	require.True(t, IsPrimaryNode())
	require.True(t, Current().IsPrimaryNode())
	require.Equal(t, Grid, MsgPassingType())
	require.Equal(t, []int{1, 1}, AllocatedDimensions())
	require.Equal(t, 2, AllocatedNumberOfDimensions())
	require.Equal(t, []int{0, 0}, AllocatedCoordinates())
	require.Equal(t, 1, NumberOfJobs())
	require.Zero(t, JobNumber())
	require.Nil(t, JobGeometry())
	require.Zero(t, NumberOfJobGeometryDimensions())
	require.Same(t, DefaultComm(), JobComm())
	require.Same(t, DefaultComm(), AllocatedComm())
	require.Same(t, Current(), DefaultComm().Machine())
	require.Equal(t, 1, DefaultComm().Group().Size())
	require.NoError(t, SetDefaultComm(JobComm()))
	require.NoError(t, LayoutGrid([]int{2, 3}))
	require.Equal(t, []int{2, 3}, SubgridDimensions())
	require.Equal(t, 6, NumberOfSubgridSites())
	require.True(t, LogicalTopologyIsDeclared())
	require.Equal(t, []int{0, 0}, LogicalCoordinatesFrom(NodeNumberFrom([]int{3, 4})))
	b, err := newBlock(DefaultComm(), []int{2, 3})
	require.NoError(t, err)
	require.NoError(t, b.round(3))

	x, list := 2.5, []float64{1, 2}
	require.NoError(t, SumDouble(&x))
	require.NoError(t, SumDoubleExtended(&x))
	require.NoError(t, SumDoubleArray(list))
	require.NoError(t, MaxDouble(&x))
	require.NoError(t, Broadcast(list))
	got := make([]float64, 2)
	require.NoError(t, Alltoall(got, list))
	require.Equal(t, []float64{1, 2}, got)
	require.Equal(t, 2.5, x)
	require.NoError(t, Barrier())
	require.NoError(t, WaitForBarrier(time.Second))
	require.Equal(t, DefaultWaitTimeout, SetWaitTimeout(time.Hour))
	status(t, StatusInvalidOp, DefaultComm().Free())

	c, h := DefaultComm(), b.all
	require.NoError(t, Finalize())
	require.NoError(t, Finalize())
	status(t, StatusNotInited, c.Barrier())
	status(t, StatusNotInited, h.Start())
	status(t, StatusNotInited, SumDouble(&x))
	_, err = c.Machine().AllocateMemory(8)
	status(t, StatusNotInited, err)
	_, err = Init(nil, ThreadSingle) // a job of one may begin again
	require.NoError(t, err)
	require.NoError(t, Barrier())
}

// TestMemory: aligned as wished, zero, and not freed while handles need it.
func TestMemory(t *testing.T) {
	alone(t)
	for _, align := range []int{AlignAny, 1, 8, AlignDefault, 4096, 1 << 21} {
		for _, n := range []int{0, 1, 100, 5000} {
			m, err := AllocateAlignedMemory(n, align, MemDefault|MemNonCache)
			require.NoError(t, err)
			require.Len(t, m.Bytes(), n)
			if n > 0 {
				require.Zero(t, int(reflect.ValueOf(m.Bytes()).Pointer())&max(align-1, 0))
			}
			require.Equal(t, make([]byte, n), m.Bytes())
			require.Len(t, View[float64](m), n/8)
			require.Len(t, View[[3]float64](m), n/24)
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
			require.Nil(t, m.Bytes())
			require.Nil(t, View[byte](m))
		}
	}
	for _, c := range []struct{ n, align, flags int }{{-1, 8, 0}, {8, 3, 0}, {8, -8, 0}, {8, 8, 8}} {
		_, err := AllocateAlignedMemory(c.n, c.align, MemFlags(c.flags))
		status(t, StatusInvalidArg, err)
	}
	m, err := AllocateMemory(64)
	require.NoError(t, err)
	h, err := DeclareSendTo(must(DeclareMsgMem(View[int32](m))), 0, 0)
	require.NoError(t, err)
	status(t, StatusMemUsedErr, m.Close())
	require.NoError(t, h.Close())
	require.NoError(t, m.Close())
	require.NoError(t, (*Memory)(nil).Close())
	require.Nil(t, (*Memory)(nil).Bytes())
	require.Panics(t, func() { View[*int](m) })
}

// TestOneAddress: with SMPOneAddress a host has one node.
func TestOneAddress(t *testing.T) {
	list := over(t, "shm", 2)
	_, err := New(list[0].Node(), nil, WithSMP(SMPOneAddress))
	require.ErrorContains(t, status(t, StatusNodeInfoErr, err), "nodes 0 and 1 are on one host")
	single := over(t, "shm", 1)
	m, err := New(single[0].Node(), nil, WithSMP(SMPOneAddress))
	require.NoError(t, err)
	require.NoError(t, m.Finalize())
}

// TestOutput: the printing node is in front; where it goes can be chosen; the trace says what is
// declared, and from level 2 what is called.
func TestOutput(t *testing.T) {
	c, s, r, _, _ := toSelf(t, 1)
	m := c.Machine()
	var info, errs logbuf.Buffer
	m.SetOutput(&info, &errs)
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, p := range []func(string, ...any) (int, error){m.Printf, m.Infof, m.Errorf} {
		n, err := p("a %d", 1)
		require.NoError(t, err)
		require.Positive(t, n)
	}
	prefix := "QMP m0,n1@" + host + ": "
	require.Equal(t, prefix+"a 1\n"+prefix+"a 1\n", info.String())
	require.Equal(t, prefix+"error: a 1\n", errs.String())

	errs = logbuf.Buffer{}
	require.Zero(t, m.Verbose(1))
	require.NoError(t, c.DeclareLogicalTopology([]int{1}))
	require.NoError(t, s.Start())
	require.NoError(t, r.Start())
	require.NoError(t, WaitAll(s, r))
	require.Equal(t, prefix+"declare logical topology [1]\n", errs.String())
	require.Equal(t, 1, m.Verbose(2))
	errs = logbuf.Buffer{}
	require.NoError(t, s.Start())
	require.NoError(t, r.Start())
	require.NoError(t, r.Wait())
	require.NoError(t, s.Wait())
	require.NoError(t, c.Barrier())
	for _, line := range []string{"start send to 0", "start receive from 0", "wait receive from 0", "wait send to 0", "barrier"} {
		require.Contains(t, errs.String(), prefix+line+"\n")
	}
	require.Equal(t, 2, m.Verbose(0))
	errs = logbuf.Buffer{}
	require.NoError(t, c.Barrier())
	require.NoError(t, s.Start())
	require.Empty(t, errs.String())
	require.Zero(t, m.watch.Load())
}

// TestTiming: the time in calls is counted while it is measured.
func TestTiming(t *testing.T) {
	c, s, r, _, _ := toSelf(t, 100_000)
	m := c.Machine()
	message := func() {
		require.NoError(t, s.Start())
		require.NoError(t, r.Start())
		require.NoError(t, WaitAll(s, r))
		require.NoError(t, c.Barrier())
	}
	message()
	require.Zero(t, m.TotalTime())
	require.Zero(t, m.ProfControl(1))
	before := Time()
	message()
	require.Positive(t, m.TotalTime())
	require.LessOrEqual(t, m.TotalTime(), Time()-before)
	require.Equal(t, 1, m.ProfControl(0))
	spent := m.TotalTime()
	message()
	require.Equal(t, spent, m.TotalTime())
	m.ResetTotalTime()
	require.Zero(t, m.TotalTime())
	require.Equal(t, "2.5.4", VersionString())
	require.Equal(t, 2005004, VersionInt())
	require.Equal(t, "switch", Switch.String())
	require.Equal(t, "grid", Mesh.String())
	require.Equal(t, "fat tree", FatTree.String())
	require.Equal(t, "unknown interconnect", Interconnect(3).String())
}
