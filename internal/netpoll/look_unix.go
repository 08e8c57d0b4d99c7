//go:build unix

// Package netpoll makes Go's scheduler look at the network.
package netpoll

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// doorbell is a pipe that a goroutine waits for, and that it makes readable itself.
type doorbell struct {
	mu    sync.Mutex
	r, w  *os.File
	conn  syscall.RawConn // of r; nil: there is no pipe yet
	step  func(fd uintptr) bool
	waits bool // the caller has rung, or tried to
	rung  bool // there is a byte in the pipe
	byte  [1]byte
}

var theDoorbell doorbell

// patience is how long a caller waits for the scheduler, which does not look while there is always something
// else to run.
const patience = 20 * time.Microsecond

// Look makes the scheduler look for goroutines whose connections are ready, and runs them. By
// itself it does so only when there is nothing else to run, or 10 ms after the last time; and a sleep
// of a microsecond, with nothing else to run, takes a millisecond. Look takes microseconds; beside goroutines that
// only yield, some tens. It keeps two descriptors from the first call on.
func Look() { theDoorbell.look() }

func (d *doorbell) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn == nil && d.open() != nil {
		return // the scheduler looks every 10 ms
	}
	d.waits = false
	d.r.SetReadDeadline(time.Now().Add(patience))
	d.conn.Read(d.step)
}

func (d *doorbell) open() (err error) {
	if d.r, d.w, err = os.Pipe(); err != nil {
		return err
	}
	d.step = d.ringOrRead
	d.conn, err = d.r.SyscallConn()
	return err
}

// ringOrRead is called before the caller waits for the pipe, and then when there is something in it.
func (d *doorbell) ringOrRead(fd uintptr) bool {
	if d.rung { // if this is the first call: by a caller that has waited in vain
		syscall.Read(int(fd), d.byte[:])
		d.rung = false
	}
	if d.waits {
		return true
	}
	_, err := d.w.Write(d.byte[:])
	d.waits, d.rung = true, err == nil
	return err != nil
}
