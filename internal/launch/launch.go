// Package launch starts the ranks of a job as processes of this host or, through agents, of several,
// gives them a rendezvous (package boot), and leaves nothing behind when they end.
//
// Each rank leads a process group of its own. A rank ends when the process that was started ends;
// processes left in its group are killed then. A process that moves to another group or session is
// out of reach. On Linux the kernel kills the ranks, but not the processes that they start, if the
// launcher dies, even by SIGKILL.
package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// OnFailure says what happens to the other ranks when a rank fails.
type OnFailure int

const (
	Kill     OnFailure = iota // they are ended too
	Continue                  // they continue
)

// Bind says on which CPUs the ranks run.
type Bind int

const (
	// None leaves the choice to the system.
	None Bind = iota
	// Core binds rank i to the i-th CPU of [Cores]. If there are more ranks than CPUs, consecutive
	// ranks share one, because they are neighbours in most programs. Ranks are bound before the
	// program starts: a Go program sees one CPU and sets GOMAXPROCS to 1 unless the environment
	// says otherwise.
	Core
	// Free binds each rank to a CPU of a core of its own that no other Run of this host has claimed. If
	// there are not enough, or a variable such as GOMAXPROCS asks for several CPUs, none is bound, and
	// Notice is told why. If there is one rank only, or two cores or more for each, none is bound, either.
	Free
)

// place returns the index of the CPU, of so many, to which a rank is bound.
func place(rank, size, cpus int) int {
	if size <= cpus {
		return rank
	}
	return rank * cpus / size
}

// DefaultKillGrace is used if Options.KillGrace is zero.
const DefaultKillGrace = 2 * time.Second

// settle bounds the wait for what ranks that have ended have left in pipes and sockets. The wait
// ends at once unless an escaped process that they have started holds the other end.
const settle = 2 * time.Second

var (
	// ErrOptions: the options given to Run are invalid.
	ErrOptions = errors.New("invalid options")
	// ErrBind: ranks cannot be bound to CPUs here.
	ErrBind = errors.New("cannot bind to a CPU")
)

// StartError names the rank that could not be started.
type StartError struct {
	Rank int
	Err  error // from os/exec; test for exec.ErrNotFound, fs.ErrPermission with errors.Is
}

func (e *StartError) Error() string { return fmt.Sprintf("launch: rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Options describes the job to run.
type Options struct {
	Size int       // number of ranks, 1 to boot.MaxSize
	Args []string  // the program, looked up in PATH, and its arguments
	Env  []string  // environment as NAME=value; nil for that of this process
	Set  []string  // variables besides, which override those of Env, on all hosts
	Dir  string    // working directory, on all hosts; empty for that of this process
	More []Program // further programs, whose ranks follow

	// Hosts are where the ranks run; nil: on this host.
	Hosts *Hosts

	// Stdin is the standard input of rank 0. The other ranks, and rank 0 if it is nil, have empty
	// input. A file that is not a terminal is passed on as it is. From anything else Run copies, in
	// a goroutine that may outlast Run by one call of Read, whose bytes are then lost.
	Stdin io.Reader
	// Stdout and Stderr receive the output of the ranks; nil discards it. Without Prefix, a file is
	// passed on as it is. Run writes to anything else, by one goroutine at a time.
	Stdout, Stderr io.Writer
	// Prefix puts "[rank] " before each line of output and writes whole lines, so that lines of
	// different ranks never mix. A line longer than 64 KiB counts as several.
	Prefix bool

	OnFailure OnFailure // Kill if zero
	Bind      Bind      // None if zero

	// Notice, if not nil, is told what a user may want to know of a job that is about to start.
	Notice func(text string)

	// Listener is where the ranks meet; Run closes it. nil: a port on loopback.
	Listener net.Listener
	// Place calls start, which starts a rank, in the place where the rank is to run: for example on
	// a thread that has entered a namespace. nil: where this process runs.
	Place func(rank int, start func() error) error

	// Oversubscribe starts the ranks even if there are more than this host is estimated to support:
	// see [LimitError].
	Oversubscribe bool
	// Same makes it an error that not all ranks run the same build of the same program: for example
	// where the program starts another.
	Same bool

	// KillGrace is the time between SIGTERM and SIGKILL for a rank. Zero means DefaultKillGrace;
	// less than zero means no SIGTERM.
	KillGrace time.Duration
	// Signals are intercepted in this process while Run runs and forwarded to the ranks; see
	// [Signals]. Ranks that are still there KillGrace after SIGTERM are killed. The second signal that means to end the program (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
	// ends the ranks as the end of the context would, and so does the first while ranks are still
	// being started. After SIGTSTP this process stops too.
	Signals []os.Signal

	part *part // of an agent
}

// Program is one of several programs of a job. See [Options] for its fields.
type Program struct {
	Size int
	Args []string
	Set  []string
	Dir  string
}

// Result describes how the ranks ended.
type Result struct {
	// Status has the exit status of each rank: 128 plus the signal number if a signal killed it, -1
	// if it was not started.
	Status []int
	// First is the rank that failed first, or -1. A failure that is caused by Run ending the ranks
	// does not count, unless a signal made Run do so.
	First int
	// Abort is set if a rank has aborted the job.
	Abort *boot.AbortError
	// Interrupted is the signal that ended the job before all its ranks were
	// started; nil if none did.
	Interrupted os.Signal
}

// ExitStatus returns the exit status of the job, 0 to 255: the code of its Abort; otherwise 128
// plus the number of the signal that interrupted its start; otherwise that of the rank that failed
// first; otherwise 0. An Abort never counts as success: a code whose lower eight bits are zero
// becomes 1.
func (r *Result) ExitStatus() int {
	number, _ := r.Interrupted.(syscall.Signal)
	switch {
	case r.Abort != nil:
		if code := r.Abort.Code & 0xff; code != 0 {
			return code
		}
		return 1
	case r.Interrupted != nil:
		return 128 + int(number)
	case r.First >= 0:
		return r.Status[r.First]
	}
	return 0
}

// Run starts the ranks and returns when all have ended and their output has been passed on. When
// ctx ends, it ends the ranks.
//
// A rank that fails is not an error; see the Result. Errors, each returned after everything that
// was started has ended: ErrOptions; ErrBind; [*LimitError], before anything is started;
// [*StartError]; that of ctx; that of Stdout or Stderr, in which case the ranks have met a broken
// pipe. Ranks are started a few at a time, so anything that ends the job also ends its start.
//
// Several Runs may run at the same time if they do not share Signals.
func Run(ctx context.Context, o Options) (Result, error) {
	j, err := newJob(o)
	if err != nil {
		if o.Listener != nil {
			err = errors.Join(err, o.Listener.Close())
		}
		return Result{First: -1}, err
	}
	return j.run(ctx)
}

// job is one Run.
type job struct {
	Options
	programs    []program
	environment []string    // without what launchers have said
	cpus        []int       // to bind to; nil if not bound
	claims      claims      // of their cores
	beyond      *LimitError // what the system probably refuses; nil: nothing
	server      *boot.Server
	env         boot.Environment // of every rank, except its number
	children    []*child         // by rank; nil if not started
	in          input
	out         output
	result      Result
}

// program is a program as this process, or an agent, starts it.
type program struct {
	Program
	environment []string // without what describes the rank
	path        string   // of the file, if that is not Args[0]
}

func newJob(o Options) (*job, error) {
	bad := func(format string, a ...any) (*job, error) {
		return nil, fmt.Errorf("launch: %w: %s", ErrOptions, fmt.Sprintf(format, a...))
	}
	var programs []program
	all := append([]Program{{o.Size, o.Args, o.Set, o.Dir}}, o.More...)
	o.Size = 0
	for _, p := range all {
		switch {
		case p.Size < 1 || p.Size > boot.MaxSize-o.Size:
			return bad("%d ranks, want 1 to %d", p.Size, boot.MaxSize)
		case len(p.Args) == 0:
			return bad("Args names no program")
		}
		o.Size += p.Size
		programs = append(programs, program{Program: p})
	}
	if o.part != nil {
		o.Size, programs = len(o.part.ranks), o.part.programs
	}
	switch {
	case o.OnFailure != Kill && o.OnFailure != Continue:
		return bad("OnFailure is %d", o.OnFailure)
	case o.Bind != None && o.Bind != Core && o.Bind != Free:
		return bad("Bind is %d", o.Bind)
	}
	bounds := o.bounds
	if o.Hosts != nil {
		bounds = o.fleetBounds
	}
	list := bounds()
	if err := o.bearable(list); err != nil {
		return nil, err
	}
	if o.KillGrace == 0 {
		o.KillGrace = DefaultKillGrace
	}
	if o.Place == nil {
		o.Place = func(_ int, start func() error) error { return start() }
	}
	j := &job{Options: o, programs: programs, beyond: o.exceeded(hard(list)), result: Result{Status: slices.Repeat([]int{-1}, o.Size), First: -1}}
	j.children = make([]*child, o.Size)
	j.out.abandoned = make(chan struct{})
	j.environment = o.Env
	if j.environment == nil {
		j.environment = os.Environ()
	}
	j.environment = boot.WithoutLauncher(j.environment)
	if o.Same {
		j.environment = append(j.environment, boot.EnvSame+"=1")
	}
	for i := range programs {
		p := &programs[i]
		p.environment = slices.Concat(j.environment, p.Set)
		if p.Dir != "" {
			dir, err := filepath.Abs(p.Dir) // the same on all hosts
			if err != nil {
				return nil, err
			}
			p.Dir = dir
			p.environment = append(p.environment, "PWD="+dir)
		}
	}
	if o.Hosts != nil {
		if err := o.Hosts.check(o.Size, o.Oversubscribe); err != nil {
			return nil, fmt.Errorf("launch: %w: %w", ErrOptions, err)
		}
	}
	return j, j.bind()
}

// bind chooses the CPUs of the ranks, and says what is remarkable.
func (j *job) bind() error {
	if j.Hosts != nil {
		return nil // each agent binds its ranks
	}
	notice := j.Notice
	if notice == nil {
		notice = func(string) {}
	}
	if cpus := runtime.NumCPU(); j.Size > cpus {
		notice(fmt.Sprintf("%d ranks share %d CPUs: what they wait for may be waiting for a CPU", j.Size, cpus))
	}
	switch j.Bind {
	case Core:
		cpus, err := Cores()
		if err != nil {
			return fmt.Errorf("launch: %w: %w", ErrBind, err)
		}
		j.cpus = cpus
		j.claimOwn()
	case Free:
		if why := j.bindFree(); why != "" {
			notice(why)
		}
	}
	return nil
}

// rank is the rank of the i-th process of this Run.
func (j *job) rank(i int) int {
	if j.part != nil {
		return j.part.ranks[i].rank
	}
	return i
}

// program is the program of the i-th process of this Run.
func (j *job) program(i int) *program {
	if j.part != nil {
		return &j.programs[j.part.ranks[i].program]
	}
	return &j.programs[j.programOf(i)]
}

// programOf returns the index of the program of a rank.
func (j *job) programOf(rank int) (k int) {
	for rank >= j.programs[k].Size {
		rank -= j.programs[k].Size
		k++
	}
	return k
}

func (j *job) run(ctx context.Context) (Result, error) {
	defer j.claims.release()
	if j.part == nil {
		if err := j.serve(); err != nil {
			return j.result, err
		}
		defer j.server.Close()
	}
	w := newWatch(j) // before the first rank is there: it must not miss a signal
	defer w.close()
	defer w.patience.Stop()

	var thread sync.WaitGroup
	if j.Hosts != nil {
		fleet, err := newFleet(w)
		if err != nil {
			return j.result, err
		}
		w.fleet = fleet
		thread.Go(w.fleet.run)
	} else {
		thread.Go(func() { j.fork(w.orders, w.started) })
	}
	err := w.untilAllEnded(ctx)
	close(w.orders)
	thread.Wait()
	j.in.close()
	unread, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	if output := j.out.finish(settle); output != nil {
		err = errors.Join(err, fmt.Errorf("launch: output: %w", output))
	}
	if j.server == nil {
		return j.result, err
	}
	// The last words of a rank that is gone may still be unread.
	j.server.Wait(unread)
	j.result.Abort = j.server.Abort()
	return j.result, err
}

// serve starts the rendezvous of the job.
func (j *job) serve() error {
	// Ranks of one host need loopback only.
	ln := j.Listener
	if ln == nil {
		var err error
		listen := reach.ListenLoopback
		if j.Hosts != nil {
			listen = reach.ListenAny
		}
		if ln, err = listen(context.Background()); err != nil {
			return fmt.Errorf("launch: rendezvous: %w", err)
		}
	}
	server := ln.Addr().String()
	if j.Hosts != nil {
		addresses, err := boot.Reachable(ln)
		if err != nil {
			ln.Close()
			return fmt.Errorf("launch: rendezvous: %w", err)
		}
		server = strings.Join(addresses, ",")
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	j.env = boot.Environment{
		Size:      j.Size,
		LocalSize: j.Size,
		Server:    server,
		Job:       jobName(),
		Secret:    secret,
		Launched:  true,
	}
	// It ends with Close and not with the context of Run, because ranks that are being ended may
	// still say goodbye.
	var err error
	j.server, err = boot.Serve(context.Background(), ln, boot.ServerOptions{
		Size:   j.Size,
		Job:    j.env.Job,
		Secret: secret,
	})
	return err
}

// jobName is a name for a job of this process, in words for errors: the secret tells jobs apart.
func jobName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("run by %d on %.20s, %s", os.Getpid(), host, time.Now().Format("Jan 2 15:04:05.000"))
}

// fork starts the ranks in its orders, and keeps its OS thread until there are no more orders: the
// kernel treats the end of the thread that forked a child as the end of the child's parent. The
// thread, which stays locked, ends with the goroutine.
func (j *job) fork(orders <-chan ranks, started chan<- batch) {
	runtime.LockOSThread()
	for r := range orders {
		started <- j.startBatch(r)
	}
}

// batchSize bounds the ranks that are started before signals are checked again.
const batchSize = 16

// ranks is a range of ranks from first up to, but not including, end.
type ranks struct{ first, end int }

// batch is the result of starting some ranks.
type batch struct {
	children []*child
	err      error // why there are no more
	more     bool  // the agent will start more of them
}

func (j *job) startBatch(r ranks) (b batch) {
	unbind := func() {}
	defer func() { unbind() }()
	for rank := r.first; rank < r.end; rank++ {
		if j.cpus != nil {
			undo, err := bindThread(j.cpus[place(rank, j.Size, len(j.cpus))])
			if err != nil {
				b.err = &StartError{Rank: j.rank(rank), Err: fmt.Errorf("%w: %w", ErrBind, err)}
				return b
			}
			if rank == r.first {
				unbind = undo
			}
		}
		var c *child
		err := j.Place(j.rank(rank), func() (err error) { c, err = j.start(rank); return err })
		if c != nil {
			b.children = append(b.children, c)
		}
		if err != nil {
			if j.beyond != nil && (errors.Is(err, syscall.EAGAIN) || errors.Is(err, limits.ErrFiles)) {
				err = fmt.Errorf("%w: %w", err, j.beyond)
			}
			b.err = &StartError{Rank: j.rank(rank), Err: err}
			return b
		}
	}
	return b
}

// start starts the i-th process, from the calling thread.
func (j *job) start(i int) (*child, error) {
	env, p, rank := j.env, j.program(i), j.rank(i)
	env.Rank, env.LocalRank = rank, i
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	if p.path != "" {
		cmd.Path, cmd.Err = p.path, nil
	}
	cmd.Env = append(slices.Clip(p.environment), env.Environ()...)
	cmd.Dir = p.Dir
	cmd.SysProcAttr = attributes()

	if rank == 0 && j.Stdin != nil {
		f, err := j.in.file(j.Stdin)
		if err != nil {
			return nil, err
		}
		cmd.Stdin = f.File
		defer f.done()
	} else {
		f, err := nothing()
		if err != nil {
			return nil, err
		}
		cmd.Stdin = f
		defer f.Close()
	}
	prefix := ""
	if j.Prefix {
		prefix = fmt.Sprintf("[%d] ", rank)
	}
	for _, to := range []struct {
		w    io.Writer
		file *io.Writer
	}{{j.Stdout, &cmd.Stdout}, {j.Stderr, &cmd.Stderr}} {
		if to.w == nil {
			continue
		}
		f, err := j.out.file(to.w, prefix)
		if err != nil {
			return nil, err
		}
		*to.file = f.File
		defer f.done()
	}
	if err := cmd.Start(); err != nil {
		if _, e := os.Stat(p.Dir + "/."); p.Dir != "" && e != nil { // Start names the program
			err = fmt.Errorf("cannot run in %s: %v", p.Dir, errors.Unwrap(e)) // it is not the program that is missing
		}
		return nil, err
	}
	return &child{index: i, cmd: cmd}, nil
}
