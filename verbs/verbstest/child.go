package verbstest

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// The second process:
//
//	parent                                child (the same binary)
//	  | start                               |
//	  |----- hello: device, config -------->|  opens the device
//	  |<---- answer ------------------------|
//	  |----- ask: command, limit ---------->|  one command after the other
//	  |<---- answer: value, error ----------|
//	  |----- ask without a command -------->|  closes the device, checks for leaks
//	  |<---- answer ------------------------|  and takes another hello
//	  |----- end of standard input -------->|  does so as well, if a device is open
//	  |<---- answer, exit ------------------|
//
// Standard input and output each carry one gob stream, in which every value is preceded by its
// length. While the child has no command it is blocked in read(2). It ends with its standard
// input, and on Linux together with the parent, however that dies.

// farAct is the act of the second process.
const farAct = "verbstest"

type hello struct {
	Device string
	Config []byte // JSON of verbs.Config, which has a field that gob cannot take
}

type ask struct {
	Command command
	Limit   time.Duration
}

type answer struct {
	Value any
	Err   *farError
}

// farError is an error of the other process: its text, and which errors of
// package verbs it wraps.
type farError struct {
	Text  string
	Kinds []int // indices into kinds
}

// kinds are the errors that keep their identity between processes.
var kinds = []error{
	verbs.ErrClosed, verbs.ErrBusy, verbs.ErrInvalid, verbs.ErrState, verbs.ErrNotSupported, verbs.ErrNoDevice, verbs.ErrNoMemory,
	verbs.ErrKey, verbs.ErrRange, verbs.ErrAccess, verbs.ErrCQOverrun, verbs.ErrEndpoint, verbs.ErrPeerDied, verbs.ErrSecret,
	context.DeadlineExceeded, context.Canceled,
}

func toFar(err error) *farError {
	if err == nil {
		return nil
	}
	f := &farError{Text: err.Error()}
	for i, k := range kinds {
		if errors.Is(err, k) {
			f.Kinds = append(f.Kinds, i)
		}
	}
	return f
}

func (e *farError) Error() string { return e.Text }

// Unwrap returns the errors that were wrapped.
func (e *farError) Unwrap() []error {
	var l []error
	for _, k := range e.Kinds {
		l = append(l, kinds[k])
	}
	return l
}

// serve is the child.
func serve(in io.Reader, out io.Writer) int {
	// Buffered, for gob writes a type and a value of it one by one.
	buf := bufio.NewWriter(out)
	s := server{gob.NewDecoder(in), buf, gob.NewEncoder(buf)}
	for {
		more, err := s.session()
		if err != nil {
			fmt.Fprintf(os.Stderr, "verbstest: child: %v\n", err)
			return 1
		}
		if !more {
			return 0
		}
	}
}

type server struct {
	dec *gob.Decoder
	buf *bufio.Writer
	enc *gob.Encoder
}

func (s server) answer(a answer) error {
	if err := s.enc.Encode(a); err != nil {
		return err
	}
	return s.buf.Flush()
}

// session serves one test, from its hello on, and says whether another one may follow.
func (s server) session() (more bool, err error) {
	var h hello
	if err := s.dec.Decode(&h); errors.Is(err, io.EOF) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	var cfg verbs.Config
	if err := json.Unmarshal(h.Config, &cfg); err != nil {
		return false, err
	}
	var tb childTB
	leak.Check(&tb)
	n, err := openNode(h.Device, cfg, nil)
	if e := s.answer(answer{Err: toFar(err)}); e != nil || err != nil {
		return false, errors.Join(err, e)
	}
	for {
		var a ask
		if err := s.dec.Decode(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return false, err
		}
		if more = a.Command == nil; more {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), a.Limit)
		v, err := a.Command.run(ctx, n)
		cancel()
		if err := s.answer(answer{v, toFar(err)}); err != nil {
			return false, err
		}
	}
	err = n.close()
	tb.end()
	err = errors.Join(append(tb.errs, err)...)
	if e := s.answer(answer{Err: toFar(err)}); e != nil {
		return false, errors.Join(err, e)
	}
	return more, nil
}

// childTB is as much of a test as leak.Check needs.
type childTB struct {
	testing.TB
	cleanups []func()
	errs     []error
}

func (*childTB) Helper()            {}
func (b *childTB) Failed() bool     { return false }
func (b *childTB) Cleanup(f func()) { b.cleanups = append(b.cleanups, f) }
func (b *childTB) Errorf(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf("in the other process: "+format, args...))
}

func (b *childTB) end() {
	for _, f := range b.cleanups {
		f()
	}
}

// child is the parent's handle of the second process.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	buf   *bufio.Writer
	enc   *gob.Encoder
	ended chan struct{} // closed when the process is gone and waited for
	exit  error         // then: how it ended

	mu      sync.Mutex
	waiting []chan answer // calls that wait for an answer, in the order of asking
}

// grace is how much longer than the command's own limit an answer may take.
const grace = 5 * time.Second

// errChildGone is the error of commands to a child that has ended.
var errChildGone = errors.New("the other process has ended")

// startChild starts a second process, which opens nothing yet.
func startChild(s *suite) (*child, error) {
	cmd := exec.Command(ranks.Program())
	cmd.Stderr = os.Stderr
	dieWithParent(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := openIn(s.Far, func() error {
		cmd.Env = ranks.Environ(farAct)
		return cmd.Start()
	}); err != nil {
		return nil, err
	}
	buf := bufio.NewWriter(in)
	c := &child{cmd: cmd, in: in, buf: buf, enc: gob.NewEncoder(buf), ended: make(chan struct{})}
	go c.read(out)
	return c, nil
}

// open has the process open the device.
func (c *child) open(ctx context.Context, s *suite) error {
	cfg := s.Config
	cfg.Logger = nil
	cfgJSON, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	opened := c.expect()
	if err := c.send(hello{s.Device, cfgJSON}); err != nil {
		c.kill()
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if _, err := c.wait(ctx, opened, "opening the device"); err != nil {
		c.kill()
		return err
	}
	return nil
}

// expect announces one more answer.
func (c *child) expect() chan answer {
	ch := make(chan answer, 1)
	c.mu.Lock()
	c.waiting = append(c.waiting, ch)
	c.mu.Unlock()
	return ch
}

// read hands out the answers, then reaps the process.
func (c *child) read(out io.Reader) {
	dec := gob.NewDecoder(bufio.NewReader(out))
	for {
		var a answer
		if err := dec.Decode(&a); err != nil {
			break
		}
		c.mu.Lock()
		ch := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		ch <- a
	}
	c.exit = c.cmd.Wait()
	close(c.ended)
}

func (c *child) send(v any) error {
	if err := c.enc.Encode(v); err != nil {
		return err
	}
	return c.buf.Flush()
}

// begin sends a command; the function it returns waits for the answer.
func (c *child) begin(ctx context.Context, cmd command) func() (any, error) {
	limit := bound
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	ch := c.expect()
	if err := c.send(ask{cmd, limit}); err != nil {
		return func() (any, error) { return nil, fmt.Errorf("%w: %T: %w", errChildGone, cmd, err) }
	}
	return func() (any, error) { return c.wait(ctx, ch, fmt.Sprintf("%T%+v", cmd, cmd)) }
}

func (c *child) wait(ctx context.Context, ch chan answer, what string) (any, error) {
	result := func(a answer) (any, error) {
		if a.Err != nil {
			return a.Value, a.Err
		}
		return a.Value, nil
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			close(late)
		case <-c.ended:
		}
	})
	defer stop()
	select {
	case a := <-ch:
		return result(a)
	case <-c.ended:
		select {
		case a := <-ch:
			return result(a)
		default:
			return nil, fmt.Errorf("%w: %s", errChildGone, what)
		}
	case <-late:
		askForStacks(c.cmd.Process)
		<-c.ended
		return nil, fmt.Errorf("the other process hangs in %s", what)
	}
}

// kill ends the process at once and waits until it is gone.
func (c *child) kill() {
	c.cmd.Process.Kill() // an error means that it is gone already
	<-c.ended
}

// leave has the process close its device, and returns what failed and what it leaked. The
// process may then open the device again.
func (c *child) leave(ctx context.Context) error {
	left := c.expect()
	if err := c.send(ask{}); err != nil {
		return fmt.Errorf("%w: %w", errChildGone, err)
	}
	_, err := c.wait(ctx, left, "closing the device")
	return err
}

// close lets the process end by itself, after what leave does. It must exit with status 0.
func (c *child) close(ctx context.Context) error {
	ch := c.expect()
	if err := c.in.Close(); err != nil {
		c.kill()
		return err
	}
	_, err := c.wait(ctx, ch, "closing the device")
	<-c.ended
	return errors.Join(err, c.exit)
}

// spare holds the process of the far end while no test uses it: starting one takes some 40 ms of
// CPU, so one serves all groups of a suite, unless a test has ended it.
type spare struct{ idle *child }

// ready starts the process, if there is none.
func (s *spare) ready(of *suite) (err error) {
	if s.idle == nil {
		s.idle, err = startChild(of)
	}
	return err
}

// end ends the process. It must exit with status 0; it does not if the race detector has reported
// a race.
func (s *spare) end() error {
	if s.idle == nil {
		return nil
	}
	c := s.idle
	s.idle = nil
	late := time.AfterFunc(bound, func() { c.cmd.Process.Kill() })
	defer late.Stop()
	err := c.in.Close()
	<-c.ended
	return errors.Join(err, c.exit)
}
