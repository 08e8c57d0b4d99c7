//go:build !linux

package main

func governor() string { return "" }

func boundCPUs() []int { return nil }
