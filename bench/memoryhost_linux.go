package main

import "os"

// memoryHost tells hosts apart that share no memory: by the boot of the kernel, and by
// the network name space, in which processes find each other to share it.
func memoryHost() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	network, _ := os.Readlink("/proc/self/ns/net")
	return string(boot) + network
}
