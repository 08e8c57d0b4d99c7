package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// governor is the frequency governor of the first CPU; empty where the kernel
// has no say in the frequency, as in most virtual machines.
func governor() string {
	b, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// systemCPUModel reads the name from /proc/cpuinfo, which has it under
// different titles on different architectures.
func systemCPUModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name", "Model", "cpu model", "uarch":
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// boundCPUs lists the CPUs that this process may run on.
func boundCPUs() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}
