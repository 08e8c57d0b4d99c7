//go:build unix

package reap

import "syscall"

// unknown is the status of a process whose status cannot be read: no success.
const unknown syscall.WaitStatus = 0xff << 8
