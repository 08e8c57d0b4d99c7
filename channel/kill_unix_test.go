//go:build unix

package channel

import (
	"os"
	"syscall"
)

// kill ends this process as kill -9 does.
func kill() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
