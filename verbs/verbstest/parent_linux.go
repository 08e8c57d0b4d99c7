package verbstest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the child when the parent is gone.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
