//go:build unix

package report

import (
	"os"
	"syscall"
)

// asks is the signal.
var asks os.Signal = syscall.SIGUSR1
