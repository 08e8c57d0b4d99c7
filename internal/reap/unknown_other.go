//go:build !unix

package reap

import "syscall"

// unknown is the status of a process whose status cannot be read: no success.
var unknown = syscall.WaitStatus{ExitCode: 0xff}
