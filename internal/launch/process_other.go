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

func exitStatus(s syscall.WaitStatus) int { return int(s.ExitCode) }

// readNow is not called: pipes have no deadlines here.
func readNow(f *os.File, b []byte) (int, error) { return f.Read(b) }

// foreground reads a terminal.
type foreground struct {
	file  *os.File
	ended <-chan struct{}
}

func (f *foreground) Read(b []byte) (int, error) { return f.file.Read(b) }
