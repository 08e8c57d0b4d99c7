package launch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/sluice-hpc/sluice/internal/launch/wire"
	"github.com/sluice-hpc/sluice/internal/limits"
)

// maxStarts is how many agents may be starting at a time: sshd refuses more strangers than it has been
// told to bear (MaxStartups, sshd_config(5)) only on one host, but each costs this host a process that
// computes.
const maxStarts = 64

// startPatience is how long an agent may take from the start of its shell to its first word.
const startPatience = 60 * time.Second

// lostStatus is the status of ranks whose host has been lost.
const lostStatus = 255

var (
	// ErrLost: the agent of a host has ended, or does not answer any more, while its ranks were there.
	ErrLost = errors.New("the host is lost")
	// ErrAgent: no agent could be started on a host.
	ErrAgent = errors.New("no agent could be started")
)

// HostError names the host that could not be used, or has been lost, with its ranks.
type HostError struct {
	Host  string
	Ranks []int  // ascending
	Err   error  // [ErrLost], [ErrAgent], [*StartError], [*LimitError] and others, for errors.Is and As
	Said  string // what the shell of the host has written, the last of it
}

func (e *HostError) Error() string {
	said := ""
	if e.Said != "" {
		said = fmt.Sprintf("; it wrote: %s", strings.ReplaceAll(e.Said, "\n", " | "))
	}
	return fmt.Sprintf("launch: host %s (%s): %s%s", e.Host, namesOf(e.Ranks), strings.TrimPrefix(e.Err.Error(), "launch: "), said)
}

// Unwrap returns the reason.
func (e *HostError) Unwrap() error { return e.Err }

// namesOf names ranks, ascending, in a few words.
func namesOf(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	first, last := ranks[0], ranks[len(ranks)-1]
	if last-first == len(ranks)-1 {
		return fmt.Sprintf("ranks %d-%d", first, last)
	}
	return fmt.Sprintf("%d ranks, %d to %d", len(ranks), first, last)
}

// fleet is the agents of a job.
type fleet struct {
	*job
	w        *watch
	agents   []*agent
	copied   []copied      // by program; only with Copy
	stopping chan struct{} // closed when no more ranks are to be started
	once     sync.Once
	starts   chan struct{} // a place for each that is starting
	forks    chan func()   // to be run by a thread that lasts
	over     chan struct{} // closed at the end
}

// agent is the launcher's end of an agent.
//
//	waiting ──(a place)──→ starting ──(preamble)──→ set up ──(done, or lost)──→ ended
//	   └───────(stop)──────────┴────────────────────────────────────────────────↗
type agent struct {
	*fleet
	host  string
	here  bool // it is this host
	ranks []int
	cmd   *exec.Cmd
	out   *outbox

	mu      sync.Mutex
	set     bool // the setup is in out
	stopped bool // before that
	killed  bool // its ranks have been

	// Of what it has said.
	began   int  // ranks that it has started
	pending bool // it has not said that there are no more
	ended   map[int]bool

	said   said
	words  atomic.Uint64 // messages that have come
	hears  atomic.Bool   // it waits for one
	silent atomic.Int64  // its shell has been killed because it said nothing for so long
	quiet  chan struct{} // closed when it is done, or lost

	credit chan int // of the input
}

func newFleet(w *watch) (_ *fleet, err error) {
	f := &fleet{
		job: w.job, w: w,
		stopping: make(chan struct{}), starts: make(chan struct{}, maxStarts), forks: make(chan func()), over: make(chan struct{}),
	}
	var home *agent
	for i, ranks := range w.Hosts.deal(w.Size) {
		if len(ranks) > 0 {
			host := w.Hosts.List[i]
			here := host.Here || thisHost(host.Name)
			if here && home != nil { // under another name
				home.ranks = slices.Sorted(slices.Values(append(home.ranks, ranks...)))
				continue
			}
			a := &agent{fleet: f, host: host.Name, here: here, ranks: ranks, pending: true, ended: map[int]bool{}, quiet: make(chan struct{}), credit: make(chan int, 1)}
			a.said.tell = a.tell
			a.credit <- wire.Window
			f.agents = append(f.agents, a)
			if here {
				home = a
			}
		}
	}
	if w.Hosts.Copy {
		f.copied, err = w.toCopy()
	}
	return f, err
}

// run serves the agents until all have ended. It keeps its thread: see fork.
func (f *fleet) run() {
	runtime.LockOSThread()
	var wg sync.WaitGroup
	for _, a := range f.agents {
		wg.Go(a.run)
	}
	go func() {
		wg.Wait()
		close(f.forks)
	}()
	for fork := range f.forks {
		fork()
	}
	close(f.over)
}

// stop has no more ranks started.
func (f *fleet) stop() {
	if f == nil {
		return
	}
	f.once.Do(func() {
		close(f.stopping)
		for _, a := range f.agents {
			a.stop()
		}
	})
}

// flush returns when the agents can read what they have been told, or after a while.
func (f *fleet) flush() {
	if f == nil {
		return
	}
	end := time.Now().Add(settle)
	for _, a := range f.agents {
		a.mu.Lock()
		set := a.set
		a.mu.Unlock()
		if set {
			a.out.flush(time.Until(end))
		}
	}
}

// kill has agents whose ranks have been killed count as lost soon if they do not answer, however patient the
// job is otherwise.
func (f *fleet) kill() {
	if f == nil {
		return
	}
	for _, a := range f.agents {
		a.mu.Lock()
		if a.set && !a.killed {
			a.killed = true
			go a.listen(settle)
		}
		a.mu.Unlock()
	}
}

func (a *agent) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.set {
		a.out.put(wire.Stop{}.Append(nil))
		return
	}
	a.stopped = true
	a.kill()
}

// kill ends the shell. a.mu is held.
func (a *agent) kill() {
	if a.cmd != nil && a.cmd.Process != nil {
		a.cmd.Process.Kill()
	}
}

// signal sends a signal to a rank.
func (a *agent) signal(rank int, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		a.out.put(wire.Signal{Rank: uint32(rank), Number: uint32(n)}.Append(nil))
	}
}

// tell writes a line about the host to standard error.
func (a *agent) tell(line []byte) {
	if a.Stderr != nil {
		a.fleet.out.whole(a.Stderr)(fmt.Appendf(nil, "host %s: %s\n", a.host, line))
	}
}

// run has the agent started, and reports what it says, and how it has ended, to the watch.
func (a *agent) run() {
	err := a.serve()
	a.mu.Lock()
	why := error(nil)
	if err != nil && !a.stopped {
		why = &HostError{Host: a.host, Ranks: a.ranks, Err: err, Said: a.said.last()}
	}
	a.mu.Unlock()
	if a.pending {
		a.w.started <- batch{err: why}
	}
	for _, rank := range a.ranks[:a.began] {
		if !a.ended[rank] {
			a.w.exits <- exit{rank, lostStatus, why}
		}
	}
}

// serve talks to the agent from its start to its end.
func (a *agent) serve() error {
	select {
	case a.starts <- struct{}{}:
	case <-a.stopping:
		return nil
	}
	leave := sync.OnceFunc(func() { <-a.starts })
	defer leave()
	in, out, err := a.start()
	if err != nil {
		return err
	}
	a.out = newOutbox(in)
	if a.copies() {
		go a.copied[own].send(func(b []byte) error { return a.out.wait(b) }) // an error is seen in what the shell says
	}
	r := bufio.NewReaderSize(out, 64<<10)
	end := func() error {
		a.out.close()
		in.Close()
		linger := time.AfterFunc(settle, func() { a.cmd.Process.Kill() }) // ssh waits for what ranks have left behind
		defer linger.Stop()
		return a.cmd.Wait()
	}
	late := time.AfterFunc(startPatience, func() { a.silent.Store(int64(startPatience)); a.cmd.Process.Kill() })
	noise, err := wire.Await(r)
	late.Stop()
	leave()
	if err != nil {
		a.said.Write(noise)
		if !hungUp(err) {
			a.cmd.Process.Kill()
		}
		return a.noAgent(err, end())
	}
	var wg sync.WaitGroup
	if silence := a.silence(); silence > 0 {
		wg.Go(func() { a.listen(silence) })
	}
	setup := make(chan error, 1)
	go func() {
		err := a.setUp()
		if err != nil {
			a.cmd.Process.Kill()
		}
		setup <- err
	}()
	err = a.converse(r)
	close(a.quiet)
	wg.Wait()
	if err != nil {
		if !hungUp(err) { // else the shell removes copies
			a.cmd.Process.Kill()
		}
		a.out.close()
		if why := <-setup; why != nil && !errors.Is(why, errClosed) {
			return errors.Join(fmt.Errorf("%w: %w", ErrAgent, why), end())
		}
	}
	status := end()
	switch {
	case err == nil:
		return nil
	case a.silent.Load() > 0:
		return fmt.Errorf("%w: no answer for %v", ErrLost, time.Duration(a.silent.Load()))
	case hungUp(err):
		return fmt.Errorf("%w: its agent ended without a result (%s: %s)", ErrLost, a.shellName(), ending(status))
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// hungUp says that a conversation is over because the shell has ended, or is about to.
func hungUp(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// noAgent explains why there is no agent: err is how its output ended, status how its shell did.
func (a *agent) noAgent(err, status error) error {
	program, _ := os.Executable()
	var exit *exec.ExitError
	code := -1
	if errors.As(status, &exit) {
		code = exit.ExitCode()
	}
	switch {
	case a.silent.Load() > 0:
		return fmt.Errorf("%w: %s has said nothing for %v", ErrAgent, a.shellName(), startPatience)
	case !hungUp(err):
		return fmt.Errorf("%w: %w", ErrAgent, err)
	case a.copies() && code == 126:
		return fmt.Errorf("%w: the copy of %s cannot be run there: have TMPDIR there name a folder where programs may be run", ErrAgent, program)
	case a.copies():
		return fmt.Errorf("%w: %s, which is to copy %s: %s", ErrAgent, a.shellName(), program, ending(status))
	case code == 127 || code == 126:
		return fmt.Errorf("%w: %s cannot be run there: install it under this path, or let --copy send it", ErrAgent, program)
	}
	return fmt.Errorf("%w: %s: %s", ErrAgent, a.shellName(), ending(status))
}

// ending says how a shell has ended.
func ending(status error) string {
	if status == nil {
		return "exit status 0"
	}
	return status.Error()
}

// start starts the shell that starts the agent.
func (a *agent) start() (in io.WriteCloser, out io.Reader, err error) {
	cmd := a.command()
	cmd.Stderr = &a.said
	cmd.WaitDelay = settle
	cmd.SysProcAttr = attributes() // signals of the terminal must not end it
	if in, err = cmd.StdinPipe(); err == nil {
		out, err = cmd.StdoutPipe()
	}
	if err != nil {
		return nil, nil, limits.Files(err)
	}
	done := make(chan struct{})
	a.forks <- func() {
		defer close(done)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.stopped {
			err = errClosed
		} else if err = cmd.Start(); err == nil {
			a.cmd = cmd
		}
	}
	<-done
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrAgent, limits.Files(err))
	}
	return in, out, nil
}

// setUp tells the agent what to start.
func (a *agent) setUp() error {
	m := wire.Setup{
		Size: uint32(a.Size), Prefix: a.Prefix, Oversubscribe: a.Oversubscribe, Bind: uint8(a.Bind),
		Stdout: a.Stdout != nil, Stderr: a.Stderr != nil, Input: a.ranks[0] == 0 && a.Stdin != nil,
		Job: a.env.Job, Server: a.env.Server, Secret: a.env.Secret,
	}
	for i := range a.programs {
		p := &a.programs[i]
		dir, must := p.Dir, p.Dir != ""
		if !must {
			dir, _ = os.Getwd()
		}
		x := wire.Program{Args: p.Args, Env: slices.Concat(passed(a.environment), p.Set), Dir: dir, MustDir: must, File: wire.NoFile}
		if a.copies() {
			x.File = uint32(a.copied[i+1].index)
		}
		m.Programs = append(m.Programs, x)
	}
	for _, rank := range a.ranks {
		m.Ranks = append(m.Ranks, wire.Rank{Number: uint32(rank), Program: uint32(a.programOf(rank))})
	}
	b := m.Append(nil)
	if len(b) > wire.MaxSetup {
		return fmt.Errorf("arguments and variables of %d bytes, the most are %d", len(b), wire.MaxSetup)
	}
	if a.copies() {
		if err := a.sendPrograms(); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return errClosed
	}
	a.set = true
	a.out.put(b)
	if m.Input {
		go a.feed()
	}
	return nil
}

// passed returns the variables that ranks on other hosts get without being asked for: those that this
// library reads.
func passed(environment []string) (list []string) {
	for _, s := range environment {
		if strings.HasPrefix(s, "SLUICE_") || strings.HasPrefix(s, "COLL_") {
			list = append(list, s)
		}
	}
	return list
}

// converse reads what the agent says until it is done.
func (a *agent) converse(r io.Reader) error {
	for {
		a.hears.Store(true)
		m, err := wire.Read(r)
		a.hears.Store(false)
		a.words.Add(1)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case wire.Started:
			err = a.started(m)
		case wire.Exit:
			err = a.exited(m)
		case wire.Output:
			a.pass(m)
		case wire.Taken:
			err = a.taken(int(m.Bytes))
		case wire.Pong:
		case wire.Done:
			return a.done(m)
		default:
			err = fmt.Errorf("%w: %T from an agent", wire.ErrProtocol, m)
		}
		if err != nil {
			return err
		}
	}
}

func (a *agent) started(m wire.Started) error {
	if int(m.Ranks) > len(a.ranks)-a.began || !a.pending {
		return fmt.Errorf("%w: %d more ranks of %d were started", wire.ErrProtocol, m.Ranks, len(a.ranks))
	}
	b := batch{more: m.More}
	for _, rank := range a.ranks[a.began:][:m.Ranks] {
		b.children = append(b.children, &child{index: rank, far: a})
	}
	if why := a.failure(m); why != nil {
		b.err = &HostError{Host: a.host, Ranks: a.ranks, Err: why}
	}
	a.began += int(m.Ranks)
	a.pending = m.More
	a.w.started <- b
	return nil
}

// failure is the error of which the agent tells.
func (a *agent) failure(m wire.Started) error {
	switch m.Failure {
	case wire.None:
		return nil
	case wire.Limit:
		return limitOf(len(a.ranks), int(m.Number), m.Text)
	case wire.Host:
		return fmt.Errorf("%w: %s", ErrAgent, m.Text)
	}
	return &StartError{Rank: int(m.Number), Err: &farError{m.Failure, m.Text}}
}

// farError is an error of starting a program on another host.
type farError struct {
	failure wire.Failure
	text    string
}

func (e *farError) Error() string { return e.text }

// Is compares with the errors that are told apart: exec.ErrNotFound, fs.ErrPermission.
func (e *farError) Is(target error) bool {
	return slices.ContainsFunc(kinds, func(k struct {
		err     error
		failure wire.Failure
	}) bool {
		return k.failure == e.failure && k.err == target
	})
}

func (a *agent) exited(m wire.Exit) error {
	rank := int(m.Rank)
	i, ok := slices.BinarySearch(a.ranks, rank)
	if !ok || i >= a.began || a.ended[rank] || m.Status > 255 {
		return fmt.Errorf("%w: rank %d has ended with status %d", wire.ErrProtocol, rank, m.Status)
	}
	a.ended[rank] = true
	a.w.exits <- exit{rank, int(m.Status), nil}
	return nil
}

// pass passes output on. Ranks meet a broken pipe where this process does.
func (a *agent) pass(m wire.Output) {
	to := a.Stdout
	if m.Stream == wire.Stderr {
		to = a.Stderr
	}
	if to == nil {
		return
	}
	if err := a.fleet.job.out.whole(to)(m.Data); err != nil {
		a.fleet.job.out.fail(err)
		a.out.put(wire.Mute{Stream: m.Stream}.Append(nil))
	}
}

func (a *agent) done(m wire.Done) error {
	if a.pending || len(a.ended) < a.began {
		return fmt.Errorf("%w: it is done, and %d ranks are not", wire.ErrProtocol, a.began-len(a.ended))
	}
	if m.Text != "" {
		a.fleet.job.out.fail(errors.New(m.Text))
	}
	return nil
}

func (a *agent) silence() time.Duration {
	if a.Hosts.Silence == 0 {
		return DefaultSilence
	}
	return a.Hosts.Silence
}

// beats is how many times in the silence an agent is asked whether it is there.
const beats = 10

// listen asks the agent again and again whether it is there, and ends its shell when it has not answered
// for so long, of which only that counts in which this process runs and reads.
func (a *agent) listen(silence time.Duration) {
	beat := time.NewTicker(max(silence/beats, time.Millisecond))
	defer beat.Stop()
	heard, missed := a.words.Load(), 0
	for {
		select {
		case <-a.quiet:
			return
		case <-beat.C: // a ticker drops beats for which this process came late
		}
		if now := a.words.Load(); now != heard || !a.hears.Load() {
			heard, missed = now, 0
		} else if missed++; missed > beats {
			a.silent.Store(int64(silence))
			a.cmd.Process.Kill()
			return
		}
		if a.out.idle() {
			a.out.put(wire.Ping{}.Append(nil))
		}
	}
}

// feed sends standard input. It may outlast the job by one call of Read.
func (a *agent) feed() {
	r := a.Stdin
	if f, ok := r.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		r = &foreground{f, a.over}
	}
	b := make([]byte, 32<<10)
	for {
		var credit int
		select {
		case credit = <-a.credit:
		case <-a.over:
			return
		}
		n, err := r.Read(b[:min(len(b), credit)])
		select {
		case <-a.over:
			return
		default:
		}
		if n > 0 {
			a.taken(credit - n)
			a.out.put(wire.Input{Data: b[:n]}.Append(nil))
		} else {
			a.taken(credit)
		}
		if err != nil {
			a.out.put(wire.Input{}.Append(nil))
			return
		}
	}
}

// taken adds to the credit of the input.
func (a *agent) taken(n int) error {
	for n > 0 {
		select {
		case a.credit <- n:
			if n > wire.Window {
				return fmt.Errorf("%w: it has taken more input than it was given", wire.ErrProtocol)
			}
			return nil
		case more := <-a.credit:
			n += more
		}
	}
	return nil
}

// said is what comes on the standard error of the shell of an agent: the last of it is kept, for an error, up
// to the preamble of the agent; after that each line is told.
type said struct {
	mu   sync.Mutex
	tell func(line []byte)
	live bool
	text []byte
}

// maxSaid is how much is kept, and the longest line.
const maxSaid = 1 << 10

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(b)
	if !s.live {
		s.text = append(s.text, b...)
		_, after, ok := bytes.Cut(s.text, wire.Preamble())
		if !ok {
			s.text = s.text[max(0, len(s.text)-maxSaid):]
			return n, nil
		}
		s.live, s.text, b = true, nil, after
	}
	for {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		if s.text = append(s.text, line...); !ok && len(s.text) <= maxSaid {
			return n, nil
		}
		s.tell(bytes.TrimRight(s.text, "\r"))
		s.text, b = s.text[:0], rest
	}
}

// last returns what was written last.
func (s *said) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(s.text), "\r", ""), "?"))
}
