//go:build !unix

package launch

import (
	"os"
	"syscall"
)

// Signals returns the signals that can be forwarded on this system.
func Signals() []os.Signal { return []os.Signal{os.Interrupt} }

var (
	terminate       = os.Kill
	endSignals      = []os.Signal{os.Interrupt}
	stopSignals     []os.Signal
	continueSignals []os.Signal
)

func attributes() *syscall.SysProcAttr { return nil }

// signalGroup can only kill, and only the process itself. The ranks receive an interrupt from the
// console anyway, because they share it.
func signalGroup(p *os.Process, s os.Signal) {
	if s == os.Kill {
		p.Kill()
	}
}

func stopSelf() {}

func exitStatus(p *os.ProcessState) int { return p.ExitCode() }
