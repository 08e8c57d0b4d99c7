//go:build !unix

// Package netpoll makes Go's scheduler look at the network.
package netpoll

// Look does nothing on this platform: the scheduler looks every 10 ms.
func Look() {}
