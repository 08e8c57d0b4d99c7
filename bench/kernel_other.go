//go:build !unix

package main

import "time"

func kernel() string { return "" }

func ownCPU() time.Duration { return 0 }
