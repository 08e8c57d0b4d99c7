package qmp

import (
	"runtime"
	"slices"
)

// Interconnect is the way in which the nodes of a machine are connected (QMP_ictype_t).
type Interconnect int

// The interconnects, with the numbers of the C API.
const (
	Switch  Interconnect = 0 // all nodes are neighbours
	Grid    Interconnect = 1 // nodes have neighbours along axes
	Mesh    Interconnect = 1 // another name for Grid
	FatTree Interconnect = 2 // never returned by this package
)

// String names the interconnect.
func (i Interconnect) String() string {
	switch i {
	case Switch:
		return "switch"
	case Grid:
		return "grid"
	case FatTree:
		return "fat tree"
	}
	return "unknown interconnect"
}

// MsgPassingType returns how the nodes are connected (QMP_get_msg_passing_type): Grid with
// -qmp-geom, otherwise Switch.
func (m *Machine) MsgPassingType() Interconnect {
	if m.AllocatedNumberOfDimensions() > 0 {
		return Grid
	}
	return Switch
}

// SMPCount returns the number of processors that this process may use (QMP_get_SMP_count).
func (m *Machine) SMPCount() int { return runtime.NumCPU() }

// IsPrimaryNode reports whether this is node 0 of the default communicator (QMP_is_primary_node).
func (m *Machine) IsPrimaryNode() bool { return m.DefaultComm().IsPrimaryNode() }

// allocation returns the grid of the nodes of the job; nil: a switch.
func (m *Machine) allocation() *grid {
	if m == nil {
		return nil
	}
	return m.origin[1].allocated
}

// AllocatedNumberOfDimensions returns the number of axes of the job's grid of nodes: 0 for a switch
// (QMP_get_allocated_number_of_dimensions).
func (m *Machine) AllocatedNumberOfDimensions() int { return len(m.AllocatedDimensions()) }

// AllocatedDimensions returns the number of nodes of the job along each axis: nil for a switch
// (QMP_get_allocated_dimensions). The slice belongs to the caller.
func (m *Machine) AllocatedDimensions() []int {
	if g := m.allocation(); g != nil {
		return slices.Clone(g.Dims)
	}
	return nil
}

// AllocatedCoordinates returns the coordinates of this node in the grid of its job: nil for a
// switch (QMP_get_allocated_coordinates).
func (m *Machine) AllocatedCoordinates() []int {
	if g := m.allocation(); g != nil {
		return g.Coordinates(m.origin[1].me)
	}
	return nil
}

// NumberOfJobs returns the number of jobs into which -qmp-job divides the allocation; 1 without it
// (QMP_get_number_of_jobs).
func (m *Machine) NumberOfJobs() int {
	if m == nil {
		return 0
	}
	return m.jobs
}

// JobNumber returns the number of this job among them, from 0 (QMP_get_job_number).
func (m *Machine) JobNumber() int {
	if m == nil {
		return -1
	}
	return m.jobNumber
}

// JobGeometry returns the number of jobs along each axis of the allocated machine, as given by
// -qmp-job: nil without it (QMP_get_job_geometry).
func (m *Machine) JobGeometry() []int {
	if m == nil {
		return nil
	}
	return slices.Clone(m.args.job)
}

// NumberOfJobGeometryDimensions returns the number of axes of [Machine.JobGeometry]
// (QMP_get_number_of_job_geometry_dimensions).
func (m *Machine) NumberOfJobGeometryDimensions() int { return len(m.JobGeometry()) }

// IONode returns the node that does the input and output of a node: the node itself (QMP_io_node).
func (m *Machine) IONode(node int) int { return node }

// MasterIONode returns the node that does the input and output of all nodes: 0
// (QMP_master_io_node).
func (m *Machine) MasterIONode() int { return 0 }
