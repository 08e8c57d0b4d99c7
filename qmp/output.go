package qmp

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// output holds the writers of a machine.
type output struct {
	mu   sync.Mutex
	info io.Writer // nil: os.Stdout
	errs io.Writer // nil: os.Stderr
}

// SetOutput sets the destinations of [Machine.Printf] and [Machine.Infof] (info) and of
// [Machine.Errorf] and the trace of [Machine.Verbose] (errs). Nil: standard output and standard
// error.
func (m *Machine) SetOutput(info, errs io.Writer) {
	if m == nil {
		return
	}
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	m.out.info, m.out.errs = info, errs
}

func (m *Machine) writers() (info, errs io.Writer) {
	info, errs = os.Stdout, os.Stderr
	if m == nil {
		return info, errs
	}
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	if m.out.info != nil {
		info = m.out.info
	}
	if m.out.errs != nil {
		errs = m.out.errs
	}
	return info, errs
}

// prefix identifies this process: its node, the number of nodes in the job, and the host.
func (m *Machine) prefix() string {
	if m == nil {
		host, _ := os.Hostname()
		return fmt.Sprintf("QMP m?,n?@%s: ", cmp.Or(host, "localhost"))
	}
	c := m.JobComm()
	return fmt.Sprintf("QMP m%d,n%d@%s: ", c.NodeNumber(), c.NumberOfNodes(), m.host)
}

// Fprintf prints with the node, the number of nodes and the host in front, as in "QMP m3,n16@wn042:
// ", in one Write (QMP_fprintf). It adds a newline if there is none.
func (m *Machine) Fprintf(w io.Writer, format string, args ...any) (int, error) {
	return m.print(w, "", format, args)
}

func (m *Machine) print(w io.Writer, what, format string, args []any) (int, error) {
	s := m.prefix() + what + fmt.Sprintf(format, args...)
	if s[len(s)-1] != '\n' {
		s += "\n"
	}
	return io.WriteString(w, s)
}

// Printf is [Machine.Fprintf] to standard output or the writer of [Machine.SetOutput] (QMP_printf).
func (m *Machine) Printf(format string, args ...any) (int, error) {
	info, _ := m.writers()
	return m.print(info, "", format, args)
}

// Infof is [Machine.Printf] for information (QMP_info).
func (m *Machine) Infof(format string, args ...any) (int, error) {
	info, _ := m.writers()
	return m.print(info, "", format, args)
}

// Errorf is [Machine.Fprintf] for errors, to standard error or the writer of [Machine.SetOutput]
// (QMP_error).
func (m *Machine) Errorf(format string, args ...any) (int, error) {
	_, errs := m.writers()
	return m.print(errs, "error: ", format, args)
}

// PrintAndExit prints an error, aborts the job and ends the process with the lowest eight bits of
// the status as exit code, or 1 if they are 0. The C library does this if no error function is set.
// Pass it to [SetErrorFunction].
func PrintAndExit(err error) {
	var e *Error
	code := 1
	if errors.As(err, &e) {
		code = cmp.Or(int(e.Status)&0xff, 1)
	}
	AbortString(code, err.Error())
}

// Verbose sets which calls are traced to standard error and returns the previous level
// (QMP_verbose): 0 none, 1 declarations and topologies, 2 also starts, waits and global operations.
func (m *Machine) Verbose(level int) int {
	if m == nil {
		return 0
	}
	old := m.verbosity.Swap(int32(level))
	m.setWatch(watchTrace, level >= 2)
	return int(old)
}

// trace prints a declaration.
func (m *Machine) trace(format string, args ...any) {
	if m.verbosity.Load() >= 1 {
		_, errs := m.writers()
		m.print(errs, "", format, args)
	}
}

// traceCall prints a call.
func (m *Machine) traceCall(format string, args ...any) {
	if m.verbosity.Load() >= 2 {
		_, errs := m.writers()
		m.print(errs, "", format, args)
	}
}

func (m *Machine) setWatch(bit uint32, on bool) {
	if on {
		m.watch.Or(bit)
	} else {
		m.watch.And(^bit)
	}
}
