package qmp

import "time"

// started is approximately when this process began.
var started = time.Now()

// Time returns the time since a moment that is fixed for the life of the process (QMP_time, in
// seconds).
func Time() time.Duration { return time.Since(started) }

// ProfControl sets whether the time spent in calls is measured and returns the previous level
// (QMP_profcontrol): 0 disables measuring, 1 and above enable it. Measuring costs some 50 ns per
// call.
func (m *Machine) ProfControl(level int) int {
	if m == nil {
		return 0
	}
	old := m.profiling.Swap(int32(level))
	m.setWatch(watchTime, level >= 1)
	return int(old)
}

// TotalTime returns the time that all goroutines have spent in starts, waits and global operations
// while [Machine.ProfControl] enabled measuring (QMP_get_total_qmp_time).
func (m *Machine) TotalTime() time.Duration {
	if m == nil {
		return 0
	}
	return time.Duration(m.spent.Load())
}

// ResetTotalTime makes [Machine.TotalTime] zero (QMP_reset_total_qmp_time).
func (m *Machine) ResetTotalTime() {
	if m != nil {
		m.spent.Store(0)
	}
}

// clock measures a call, which ends with a call of the returned function.
func (m *Machine) clock() func() {
	if m.watch.Load()&watchTime == 0 {
		return func() {}
	}
	t := time.Now()
	return func() { m.spent.Add(int64(time.Since(t))) }
}

// watched is clock for a call that may be traced.
func (m *Machine) watched(op string) func() {
	if m.watch.Load()&watchTrace != 0 {
		m.traceCall("%s", op)
	}
	return m.clock()
}

// The version of the C API that this package implements.
const (
	versionString = "2.5.4"
	versionInt    = 2_005_004
)

// VersionString is the version of the C API that this package follows
// (QMP_version_str).
func VersionString() string { return versionString }

// VersionInt is [VersionString] as a number, three decimal digits for each part
// (QMP_version_int).
func VersionInt() int { return versionInt }
