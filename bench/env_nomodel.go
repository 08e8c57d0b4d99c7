//go:build !linux && !darwin

package main

func systemCPUModel() string { return "" }
