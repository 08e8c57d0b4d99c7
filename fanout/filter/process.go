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
)

// Command says which program is the filter, and how it is started.
type Command struct {
	Args   []string  // its name, which is looked for as a shell does, and its arguments
	Env    []string  // nil: that of this process
	Stderr io.Writer // for its standard error; nil: nowhere. Several processes may write at once
	Limit  int       // how long an answer may be, in bytes; 0: DefaultLimit. The filter is told: see EnvLimit
}

// Find says why the program cannot be started, as far as its name tells: nil, or an
// [*Error].
func (c Command) Find() error {
	if len(c.Args) == 0 {
		return &Error{Op: "start", Err: errNoProgram}
	}
	if _, err := exec.LookPath(c.Args[0]); err != nil {
		return &Error{Op: "start", Err: err}
	}
	return nil
}

var errNoProgram = errors.New("no program")

// Grace is how long a filter may take to end when its standard input has ended, or it has
// closed its standard output.
const Grace = 10 * time.Second

// Error tells of a filter that did not do what it should with a chunk.
type Error struct {
	Op  string // "start", "answer" or "end"
	PID int    // of the process; 0: there was none
	// State says how the process ended; nil if it had not when the error was found, and
	// was killed.
	State *os.ProcessState
	Err   error
}

func (e *Error) Error() string {
	s := "filter: " + e.Op
	if e.PID != 0 {
		s = fmt.Sprintf("filter: process %d: %s", e.PID, e.Op)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.State != nil {
		s += ": " + e.State.String()
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// ErrExit is the error of a process that ended with a status other than 0.
var ErrExit = errors.New("it has failed")

// ErrUnasked is the error of output behind the last answer: something else than answers
// was written to standard output, and those of Do may be those to earlier chunks.
var ErrUnasked = errors.New("output that was not asked for")

// Process is a filter that lives for many chunks. It leads a process group of its own
// where there are such: it does not see what is typed at the terminal, and when it ends,
// what it has started ends too. It belongs to one goroutine at a time.
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

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Do hands a chunk to the filter, appends its answer to out and returns it. The chunk is
// not empty: an answer to nothing would be indistinguishable from none. After an error,
// an [*Error], the process is dead, and only Close may be called; if the context has
// ended, its error is in there.
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
		p.close() // else what is not read may keep it from ending, and us from writing
	}
	if writeErr := <-p.wrote; err == nil {
		err = writeErr
	}
	if err != nil {
		return out[:at], p.failed(ctx, "answer", err)
	}
	return out, nil
}

// Kill ends the filter at once. It may be called at any time, by any goroutine; Close is
// still to be called.
func (p *Process) Kill() { p.kill() }

// ErrKilled is the error of Close about a filter that Kill has ended.
var ErrKilled = errors.New("it was killed")

// Close ends the filter by the end of its standard input, and kills it if that takes
// longer than [Grace]. That it has then to be killed, ends with a status other than 0, or
// has said more than it was asked ([ErrUnasked]), is an [*Error]; of what Do has returned
// an error about there is none.
func (p *Process) Close() error {
	close(p.writes)
	return p.end()
}

// Once starts a process for one chunk, appends all its output to out and returns it. It
// need not read the whole chunk, but must end with status 0. The error is an [*Error].
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
	if err != nil || p.cmd.ProcessState.ExitCode() != 0 {
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
	done          chan struct{} // closed when it has ended and was reaped
	mu            sync.Mutex    // what is below, and that the group is there
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
	cmd.WaitDelay = Grace // for standard error, should one that left the group hold it
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
	// Files, and not what StdinPipe returns: that Wait would close before it was read.
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	if err := cmd.Start(); err != nil {
		stdin.Close()
		stdout.Close()
		return nil, &Error{Op: "start", Err: err}
	}
	p := &child{cmd: cmd, stdin: stdin, stdout: stdout, done: make(chan struct{})}
	go p.reap()
	return p, nil
}

// kill ends the group, and with it what waits for the pipes.
func (p *child) kill() {
	p.mu.Lock()
	if !p.reaped {
		p.killed = true
		killGroup(p.cmd.Process)
	}
	p.mu.Unlock()
	p.close()
}

// close closes our ends of the pipes: nothing waits for them any more, even if somebody
// else holds the other ends.
func (p *child) close() {
	p.stdin.Close()
	p.stdout.Close()
}

// failed is the error of an operation, after which nothing is left of the process.
func (p *child) failed(ctx context.Context, op string, err error) error {
	// It may be about to end by itself, which is why its pipe has ended: then its status
	// says more than that we have killed it.
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
		e.State = p.cmd.ProcessState
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
			err = fmt.Errorf("it took longer than %v", Grace)
		default:
		}
		return &Error{Op: "end", PID: p.cmd.Process.Pid, Err: err}
	}
	if p.cmd.ProcessState.ExitCode() != 0 {
		return &Error{Op: "end", PID: p.cmd.Process.Pid, Err: ErrExit, State: p.cmd.ProcessState}
	}
	return nil
}
