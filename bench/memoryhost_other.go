//go:build !linux

package main

import "os"

// memoryHost tells hosts apart that share no memory.
func memoryHost() string {
	name, _ := os.Hostname()
	return name
}
