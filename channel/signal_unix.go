//go:build unix

package channel

import (
	"os"
	"syscall"
)

// reportSignal asks for the report of pending operations.
var reportSignal os.Signal = syscall.SIGUSR1
