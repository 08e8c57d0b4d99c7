package qmp

import "time"

// started is when this process began, more or less.
var started = time.Now()

// Time is the time since a moment that stays the same in the life of the process
// (QMP_time, in seconds).
func Time() time.Duration { return time.Since(started) }

// ProfControl sets whether the time spent in calls is measured, and returns what was set
// (QMP_profcontrol): 0 it is not, from 1 on it is. To measure takes some 50 ns a call.
func (m *Machine) ProfControl(level int) int {
	if m == nil {
		return 0
	}
	old := m.profiling.Swap(int32(level))
	m.setWatch(watchTime, level >= 1)
	return int(old)
}

// TotalTime is the time that was spent in starts, waits and global operations, by all
// goroutines, while [Machine.ProfControl] had it measured (QMP_get_total_qmp_time).
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

// clock measures a call, until what it returns is called.
func (m *Machine) clock() func() {
	if m.watch.Load()&watchTime == 0 {
		return func() {}
	}
	t := time.Now()
	return func() { m.spent.Add(int64(time.Since(t))) }
}

// watched is clock, of a call that may be printed.
func (m *Machine) watched(op string) func() {
	if m.watch.Load()&watchTrace != 0 {
		m.traceCall("%s", op)
	}
	return m.clock()
}

// Version is the version of the C API whose functions there are.
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
