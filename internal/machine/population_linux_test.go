package machine_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// TestPopulation: processes are a crowd where there are fewer CPUs than processes, by the affinity of
// now.
func TestPopulation(t *testing.T) {
	mine := machine.CPUs()
	cpus := machine.Count(mine)
	elsewhere := append(make([]byte, 100), 1)
	sharing := func(others ...[]byte) wait.Sharing { return machine.NewPopulation(mine, others...).Sharing() }
	require.Equal(t, wait.Crowded, sharing(slices.Repeat([][]byte{mine}, cpus)...))
	require.NotEqual(t, wait.Crowded, sharing(slices.Repeat([][]byte{mine}, cpus-1)...))
	require.NotEqual(t, wait.Crowded, sharing(append(slices.Repeat([][]byte{mine}, cpus-1), elsewhere)...), "one is bound to a CPU of its own")

	p := machine.NewPopulation(mine, mine, elsewhere)
	runtime.LockOSThread() // and not unlocked: the thread ends with the test
	var set, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	for cpu := 0; one.Count() == 0; cpu++ {
		if set.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	require.NoError(t, unix.SchedSetaffinity(0, &one))
	require.Equal(t, wait.Crowded, p.Sharing(), "three on two CPUs")
}
