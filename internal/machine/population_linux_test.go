package machine_test

import (
	"encoding/hex"
	"errors"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// TestPopulation: processes are a crowd where there are fewer CPUs than processes, by the affinity that
// each has now.
func TestPopulation(t *testing.T) {
	self := machine.Self()
	cpus := machine.Count(self.CPUs)
	sharing := func(others ...machine.Process) wait.Sharing {
		return append(machine.Population{self}, others...).Sharing()
	}
	elsewhere := machine.Process{CPUs: append(make([]byte, 100), 1)} // its process is not known here
	require.Equal(t, wait.Crowded, sharing(slices.Repeat([]machine.Process{self}, cpus)...))
	require.NotEqual(t, wait.Crowded, sharing(slices.Repeat([]machine.Process{self}, cpus-1)...))
	require.NotEqual(t, wait.Crowded, sharing(append(slices.Repeat([]machine.Process{self}, cpus-1), elsewhere)...), "one has a CPU of its own")

	var few error
	if cpus < 2 {
		few = errors.New("there is one")
	}
	need.Probe(t, "two CPUs", few)
	var list []machine.Process
	var pids []int
	for range 2 {
		cmd := exec.Command("sh", "-c", "echo; cat") // ends with its input
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { in.Close(); cmd.Wait() })
		_, err = out.Read(make([]byte, 1)) // it runs
		require.NoError(t, err)
		pids = append(pids, cmd.Process.Pid)
		list = append(list, machine.Told(self, cmd.Process.Pid))
	}
	p := machine.Population(list)
	require.NotEqual(t, wait.Crowded, p.Sharing())
	one := func(k int) (set unix.CPUSet) {
		var all unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(0, &all))
		for cpu := 0; set.Count() == 0; cpu++ {
			if all.IsSet(cpu) {
				if k--; k < 0 {
					set.Set(cpu)
				}
			}
		}
		return set
	}
	for k := range 2 {
		set := one(k)
		require.NoError(t, unix.SchedSetaffinity(pids[k], &set))
		require.NotEqual(t, wait.Crowded, p.Sharing(), "each may have one of its own")
	}
	set := one(0)
	require.NoError(t, unix.SchedSetaffinity(pids[1], &set))
	require.Equal(t, wait.Crowded, p.Sharing(), "both have the same")
}

// TestProcess: a description of a process, as bytes.
func TestProcess(t *testing.T) {
	self := machine.Self()
	b := self.Append([]byte("before"))
	got, rest, err := machine.ParseProcess(append(b, "behind"...)[len("before"):])
	require.NoError(t, err)
	require.Equal(t, self, got)
	require.Equal(t, "behind", string(rest))
	for n := range len(b) - len("before") {
		_, _, err := machine.ParseProcess(b[len("before"):][:n])
		require.ErrorIs(t, err, machine.ErrProcess)
	}
	golden := "00000102" + "0000000000000304" + "0000000000000506" + "0002" + "0f80"
	b, err = hex.DecodeString(golden)
	require.NoError(t, err)
	got, rest, err = machine.ParseProcess(b)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, []byte{0x0f, 0x80}, got.CPUs)
	require.Equal(t, b, got.Append(nil))
}
