package filter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/reap"
)

// Command says which program is the filter, and how to start it.
type Command struct {
	Args   []string  // its name, looked up in PATH as a shell does, and its arguments
	Env    []string  // nil: that of this process
	Stderr io.Writer // receives its standard error; nil: none. Several processes may write at once
	Limit  int       // how long an answer may be, in bytes; 0: DefaultLimit. Passed on in EnvLimit
}

// Find looks the program up. If it is not there or not executable, it returns an [*Error].
func (c Command) Find() error {
	if len(c.Args) == 0 {
		return &Error{Op: "start", Err: errNoProgram}
	}
	if _, err := exec.LookPath(c.Args[0]); err != nil {
		return &Error{Op: "start", Err: err}
	}
	return nil
}

var errNoProgram = errors.New("Command.Args names no program")

// Grace is how long a filter may take to end when its standard input has ended, or it has
// closed its standard output.
const Grace = 10 * time.Second

// Error says that a filter could not be started, has failed with a chunk, or ended wrongly.
type Error struct {
	Op  string // "start", "answer" or "end"
	PID int    // of the process; 0: there was none
	// State says how the process ended; nil if it was still running when the error was found,
	// and was killed, or if the system refuses waitid(2).
	State *os.ProcessState
	Err   error

	ended *syscall.WaitStatus // as State, but known without waitid(2)
}

// ExitCode returns the exit status of the process, or -1 if a signal ended it, or if there is none.
func (e *Error) ExitCode() int {
	if e.ended == nil {
		return -1
	}
	return e.ended.ExitStatus()
}

func (e *Error) Error() string {
	s := "filter: " + e.Op
	if e.PID != 0 {
		s = fmt.Sprintf("filter: process %d: %s", e.PID, e.Op)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	switch {
	case e.State != nil:
		s += ": " + e.State.String()
	case e.ended != nil && e.ended.Signaled():
		s += ": signal: " + e.ended.Signal().String()
	case e.ended != nil:
		s += fmt.Sprint(": exit status ", e.ended.ExitStatus())
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// ErrExit is the error of a process that ended with a status other than 0.
var ErrExit = errors.New("the filter failed")

// ErrUnasked is the error of output after the last answer: the filter has written something
// other than answers to standard output, so Do may have returned answers to earlier chunks.
var ErrUnasked = errors.New("output that was not asked for")

// Process is a filter that lives for many chunks. Where process groups exist it leads its own:
// signals from the terminal do not reach it, and the processes that it has started end when
// it ends. It belongs to one goroutine at a time.
type Process struct {
	*child
	limit  int
	frame  []byte
	writes chan []byte
	wrote  chan error
}

// Start starts a filter. The error is an [*Error].
func Start(c Command) (*Process, error) {
	child, err := start(c)
	if err != nil {
		return nil, err
	}
	p := &Process{child: child, limit: c.Limit, writes: make(chan []byte), wrote: make(chan error, 1)}
	go func() {
		for b := range p.writes {
			_, err := p.stdin.Write(b)
			p.wrote <- err
		}
	}()
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Do hands a chunk to the filter, appends its answer to out and returns the result. The chunk
// must not be empty. The error is an [*Error]: the process is dead then, and only Close may be
// called. If the context has ended, the error wraps its cause.
func (p *Process) Do(ctx context.Context, chunk, out []byte) ([]byte, error) {
	p.frame = AppendFrame(p.frame[:0], chunk)
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	at := len(out)
	p.writes <- p.frame
	out, err := ReadFrame(p.stdout, out, p.limit)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		p.close() // else unread output may keep the filter from ending, and us from writing
	}
	if writeErr := <-p.wrote; err == nil {
		err = writeErr
	}
	if err != nil {
		return out[:at], p.failed(ctx, "answer", err)
	}
	return out, nil
}

// Kill ends the filter at once. Any goroutine may call it at any time; call Close afterwards.
func (p *Process) Kill() { p.kill() }

// ErrKilled is the error of Close for a filter that Kill has ended.
var ErrKilled = errors.New("the filter was killed")

// Close closes the filter's standard input, so that it ends, and kills it after [Grace]. It
// returns an [*Error] if the filter had to be killed, ended with a status other than 0, or
// wrote more than its answers ([ErrUnasked]). If Do has returned an error before, Close
// returns none.
func (p *Process) Close() error {
	close(p.writes)
	return p.end()
}

// Once starts a process for one chunk, appends all its output to out and returns the result.
// The process need not read the whole chunk, but must end with status 0. The error is an
// [*Error].
func Once(ctx context.Context, c Command, chunk, out []byte) ([]byte, error) {
	p, err := start(c)
	if err != nil {
		return out, err
	}
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	wrote := make(chan error, 1)
	go func() {
		_, err := p.stdin.Write(chunk)
		wrote <- errors.Join(err, p.stdin.Close())
	}()
	at := len(out)
	out, err = readAll(p.stdout, out, orDefault(c.Limit))
	if err != nil {
		p.close()
	} else {
		<-p.done
	}
	p.stdin.Close()
	if writeErr := <-wrote; err == nil && !errors.Is(writeErr, syscall.EPIPE) && !errors.Is(writeErr, os.ErrClosed) {
		err = writeErr
	}
	if err != nil || p.status.ExitStatus() != 0 {
		return out[:at], p.failed(ctx, "answer", err)
	}
	p.stdout.Close()
	return out, nil
}

// readAll appends what r has to b, at most limit bytes.
func readAll(r io.Reader, b []byte, limit int) ([]byte, error) {
	at := len(b)
	for {
		b = slices.Grow(b, 4096)
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b)-at > limit:
			return b, fmt.Errorf("%w: more than %d bytes", ErrFrame, limit)
		case err == io.EOF:
			return b, nil
		case err != nil:
			return b, err
		}
	}
}

// child is a process and our ends of its pipes.
type child struct {
	cmd           *exec.Cmd
	stdin, stdout *os.File
	done          chan struct{}      // closed when it has ended and was reaped
	status        syscall.WaitStatus // after done
	mu            sync.Mutex         // guards the fields below, and the existence of the group
	reaped        bool
	killed        bool // by us
	failure       bool // an error was returned
}

func start(c Command) (*child, error) {
	if len(c.Args) == 0 {
		return nil, &Error{Op: "start", Err: errNoProgram}
	}
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Stderr = c.Env, c.Stderr
	if c.Limit > 0 {
		cmd.Env = append(cmd.Environ(), fmt.Sprintf("%s=%d", EnvLimit, c.Limit))
	}
	cmd.SysProcAttr = attributes()
	cmd.WaitDelay = Grace // for standard error, if a process that left the group holds it
	theirIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, &Error{Op: "start", Err: err}
	}
	defer theirIn.Close()
	stdout, theirOut, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return nil, &Error{Op: "start", Err: err}
	}
	defer theirOut.Close()
	// Files instead of StdinPipe and StdoutPipe: Wait would close those before they are read.
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	if err := cmd.Start(); err != nil {
		stdin.Close()
		stdout.Close()
		return nil, &Error{Op: "start", Err: err}
	}
	p := &child{cmd: cmd, stdin: stdin, stdout: stdout, done: make(chan struct{})}
	go func() {
		p.status = reap.Wait(cmd, p.ended)
		close(p.done)
	}()
	return p, nil
}

// ended ends what is left of the group of the process, which has ended.
func (p *child) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	killGroup(p.cmd.Process)
}

// kill ends the group, and with it every wait for the pipes.
func (p *child) kill() {
	p.mu.Lock()
	if !p.reaped {
		p.killed = true
		killGroup(p.cmd.Process)
	}
	p.mu.Unlock()
	p.close()
}

// close closes our ends of the pipes, which ends every wait for them, even if other processes
// hold the other ends.
func (p *child) close() {
	p.stdin.Close()
	p.stdout.Close()
}

// failed ends the process and returns the error of an operation.
func (p *child) failed(ctx context.Context, op string, err error) error {
	// If its pipe has ended because the process is about to end by itself, its exit status says
	// more than our kill.
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) {
		select {
		case <-p.done:
		case <-time.After(Grace):
		}
	}
	p.kill()
	<-p.done
	p.failure = true
	e := &Error{Op: op, PID: p.cmd.Process.Pid, Err: err}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.killed {
		e.State, e.ended = p.cmd.ProcessState, &p.status
	}
	if err == nil {
		e.Err = ErrExit
	}
	if ctx.Err() != nil {
		e.Err = context.Cause(ctx)
	}
	return e
}

func (p *child) end() error {
	defer p.close()
	if p.failure {
		return nil
	}
	p.stdin.Close()
	late := make(chan struct{})
	timer := time.AfterFunc(Grace, func() {
		close(late)
		p.kill()
	})
	defer timer.Stop()
	extra, _ := io.Copy(io.Discard, p.stdout) // the error is that of kill, below
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if extra > 0 {
		return &Error{Op: "end", PID: p.cmd.Process.Pid, Err: fmt.Errorf("%w: %d bytes", ErrUnasked, extra)}
	}
	if p.killed {
		err := ErrKilled
		select {
		case <-late:
			err = fmt.Errorf("the filter took longer than %v to end", Grace)
		default:
		}
		return &Error{Op: "end", PID: p.cmd.Process.Pid, Err: err}
	}
	if p.status.ExitStatus() != 0 {
		return &Error{Op: "end", PID: p.cmd.Process.Pid, Err: ErrExit, State: p.cmd.ProcessState, ended: &p.status}
	}
	return nil
}
