//go:build unix

// Package netpoll makes Go's scheduler look at the network.
package netpoll

import (
	"os"
	"sync"
	"syscall"
)

// doorbell is a pipe that a goroutine waits for, and that it makes readable itself.
type doorbell struct {
	r, w *os.File
	conn syscall.RawConn // of r
	step func(fd uintptr) bool
	rung bool
	byte [1]byte
}

var theDoorbell = sync.OnceValue(func() *doorbell {
	d := &doorbell{}
	var err error
	if d.r, d.w, err = os.Pipe(); err != nil {
		return nil // the scheduler looks every 10 ms
	}
	if d.conn, err = d.r.SyscallConn(); err != nil {
		return nil
	}
	d.step = d.ringOrRead
	return d
})

// Look makes the scheduler look for goroutines whose connections are ready, and runs them. By
// itself it does so only when there is nothing else to run, or 10 ms after the last time; and a sleep
// of a microsecond, with nothing else to run, takes a millisecond. It takes microseconds, and keeps
// two descriptors from the first call on.
func Look() {
	if d := theDoorbell(); d != nil {
		d.conn.Read(d.step)
	}
}

// ringOrRead is called before the caller waits for the pipe, and then when there is something in it.
func (d *doorbell) ringOrRead(fd uintptr) bool {
	if !d.rung {
		_, err := d.w.Write(d.byte[:])
		d.rung = err == nil
		return err != nil
	}
	d.rung = false
	syscall.Read(int(fd), d.byte[:])
	return true
}
