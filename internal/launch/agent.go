package launch

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/launch/wire"
)

// part is the share that this process, an agent, has in a job of another launcher.
type part struct {
	env      boot.Environment
	ranks    []share // ascending
	programs []program
	to       *outbox
	commands chan wire.Message // Signal and Stop
	reported bool              // no more are started
	stop     bool
}

// share is a rank and the index of its program.
type share struct{ rank, program int }

func (p *part) orders() <-chan wire.Message {
	if p == nil {
		return nil
	}
	return p.commands
}

func (p *part) stopped() bool { return p != nil && p.stop }

// started tells the launcher of a batch.
func (p *part) started(w *watch, b batch) {
	p.stop = p.stop || b.err != nil
	m := wire.Started{Ranks: uint32(len(b.children)), More: w.starting()}
	m.Failure, m.Number, m.Text = failure(b.err)
	p.reported = !m.More
	p.to.put(m.Append(nil))
}

// exited tells the launcher of the end of a process; of one that was not started it knows.
func (p *part) exited(w *watch, index int) {
	if w.children[index] != nil {
		p.to.put(wire.Exit{Rank: uint32(p.ranks[index].rank), Status: uint32(w.result.Status[index])}.Append(nil))
	}
}

// obey does what the launcher says.
func (p *part) obey(w *watch, m wire.Message) {
	switch m := m.(type) {
	case wire.Signal:
		i, ok := slices.BinarySearchFunc(p.ranks, int(m.Rank), func(s share, rank int) int { return s.rank - rank })
		if ok && w.children[i] != nil {
			w.children[i].signal(syscall.Signal(m.Number))
		}
	case wire.Stop:
		p.stop = true
		if w.busy == 0 && !p.reported {
			p.started(w, batch{})
		}
	}
}

// failure describes an error of starting ranks.
func failure(err error) (f wire.Failure, number uint32, text string) {
	var start *StartError
	var limit *LimitError
	switch {
	case err == nil:
		return wire.None, 0, ""
	case errors.As(err, &limit):
		return wire.Limit, uint32(limit.Most), limit.text()
	case !errors.As(err, &start):
		return wire.Host, 0, err.Error()
	}
	f = wire.Other
	for _, c := range kinds {
		if errors.Is(start, c.err) {
			f = c.failure
			break
		}
	}
	return f, uint32(start.Rank), start.Err.Error()
}

// kinds are what errors of starting a program are told apart by.
var kinds = []struct {
	err     error
	failure wire.Failure
}{{exec.ErrNotFound, wire.NotFound}, {fs.ErrNotExist, wire.NotFound}, {fs.ErrPermission, wire.Denied}}

// Agent starts the ranks that a launcher on another host asks for, at the other ends of in and out, and
// returns when they have ended. When in ends, it kills them. Programs that the launcher sends are kept in
// folder, which belongs to the caller; none may be sent if it is empty. Notices go to stderr, after a preamble,
// before which it is the shell that writes there.
//
// An error is that of the conversation: that of a rank is told to the launcher.
func Agent(ctx context.Context, in io.Reader, out, stderr io.Writer, folder string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &working{in: bufio.NewReaderSize(in, 64<<10), out: newOutbox(out), folder: folder, notice: func(text string) { fmt.Fprintln(stderr, text) }}
	stderr.Write(wire.Preamble()) // an error would be one of the notices, too
	a.out.put(wire.Preamble())
	setup, err := a.receiveSetup()
	if err != nil {
		a.out.put(wire.Started{Failure: wire.Host, Text: err.Error()}.Append(nil))
		a.out.put(wire.Done{}.Append(nil))
		a.out.close()
		<-a.out.done
		return err
	}
	conversation := make(chan error, 1)
	a.part = newPart(setup, a)
	a.feed = &feed{out: a.out}
	a.feed.moved = sync.NewCond(&a.feed.mu)
	go func() {
		conversation <- a.obey(ctx)
		cancel() // the launcher is gone
		a.feed.end()
	}()
	text := ""
	if err := a.run(ctx, setup); err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	a.feed.end()
	a.out.put(wire.Done{Text: text}.Append(nil))
	a.out.close()
	select {
	case <-a.out.done:
		select {
		case err = <-conversation: // it has ended the ranks
		default:
		}
	case err = <-conversation: // which may have read what is being written
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// working is an agent at work.
type working struct {
	in     *bufio.Reader
	out    *outbox
	folder string
	notice func(text string)
	files  []string // by index
	part   *part
	feed   *feed
	mute   [wire.Stderr + 1]atomic.Bool // by stream
}

// receiveSetup receives programs and the setup.
func (a *working) receiveSetup() (*wire.Setup, error) {
	for {
		m, err := wire.Read(a.in)
		if err != nil {
			return nil, fmt.Errorf("agent: setup: %w", err)
		}
		switch m := m.(type) {
		case wire.Setup:
			for _, p := range m.Programs {
				if p.File != wire.NoFile && int(p.File) >= len(a.files) {
					return nil, fmt.Errorf("agent: setup: %w: file %d of %d", wire.ErrProtocol, p.File, len(a.files))
				}
			}
			return &m, nil
		case wire.File:
			if err := a.receive(m); err != nil {
				return nil, err
			}
		case wire.Ping:
			a.out.put(wire.Pong{}.Append(nil))
		default:
			return nil, fmt.Errorf("agent: setup: %w: %T", wire.ErrProtocol, m)
		}
	}
}

// receive receives a program.
func (a *working) receive(f wire.File) error {
	if a.folder == "" || int(f.Index) != len(a.files) {
		return fmt.Errorf("agent: %w: file %d after %d", wire.ErrProtocol, f.Index, len(a.files))
	}
	path := filepath.Join(a.folder, fmt.Sprintf("program%d", f.Index))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := a.fill(file, sum, f.Size); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if [sha256.Size]byte(sum.Sum(nil)) != f.Sum {
		return fmt.Errorf("agent: %w: the checksum of %s differs from that of the program", wire.ErrProtocol, path)
	}
	a.files = append(a.files, path)
	return nil
}

func (a *working) fill(file *os.File, sum hash.Hash, size uint64) error {
	for size > 0 {
		m, err := wire.Read(a.in)
		if err != nil {
			return fmt.Errorf("agent: receive a program: %w", err)
		}
		switch m := m.(type) {
		case wire.Chunk:
			if uint64(len(m.Data)) > size {
				return fmt.Errorf("agent: %w: a program is longer than it said", wire.ErrProtocol)
			}
			size -= uint64(len(m.Data))
			if _, err := file.Write(m.Data); err != nil {
				return err
			}
			sum.Write(m.Data)
		case wire.Ping:
			a.out.put(wire.Pong{}.Append(nil))
		default:
			return fmt.Errorf("agent: %w: %T in a program", wire.ErrProtocol, m)
		}
	}
	return nil
}

func newPart(s *wire.Setup, a *working) *part {
	p := &part{to: a.out, commands: make(chan wire.Message, 16)}
	p.env = boot.Environment{
		Size: int(s.Size), LocalSize: len(s.Ranks), Server: s.Server, Job: s.Job, Secret: s.Secret, Launched: true,
	}
	for _, r := range s.Ranks {
		p.ranks = append(p.ranks, share{int(r.Number), int(r.Program)})
	}
	for _, x := range s.Programs {
		q := program{Program: Program{Args: x.Args, Set: x.Env, Dir: x.Dir}}
		if x.File != wire.NoFile {
			q.path = a.files[x.File]
		}
		if !x.MustDir {
			if info, err := os.Stat(x.Dir); err != nil || !info.IsDir() {
				q.Dir = "" // the one in which the agent was started
			}
		}
		p.programs = append(p.programs, q)
	}
	return p
}

// run starts the ranks and waits for their end.
func (a *working) run(ctx context.Context, s *wire.Setup) error {
	o := Options{
		Size: len(s.Ranks), Args: s.Programs[0].Args,
		Prefix: s.Prefix, OnFailure: Continue, Bind: Bind(s.Bind), Oversubscribe: s.Oversubscribe,
		KillGrace: -1, // when the launcher is gone
		Notice:    a.notice,
		part:      a.part,
	}
	if s.Stdout {
		o.Stdout = &stream{a, wire.Stdout}
	}
	if s.Stderr {
		o.Stderr = &stream{a, wire.Stderr}
	}
	if s.Input {
		o.Stdin = a.feed
	}
	j, err := newJob(o)
	if err != nil {
		m := wire.Started{}
		m.Failure, m.Number, m.Text = failure(err)
		a.out.put(m.Append(nil))
		return nil
	}
	j.env = a.part.env
	_, err = j.run(ctx)
	return err
}

// obey passes on what the launcher says until it says no more.
func (a *working) obey(ctx context.Context) error {
	for {
		m, err := wire.Read(a.in)
		if err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		switch m := m.(type) {
		case wire.Signal, wire.Stop:
			select {
			case a.part.commands <- m:
			case <-ctx.Done():
			}
		case wire.Input:
			if err := a.feed.give(m.Data); err != nil {
				return err
			}
		case wire.Mute:
			a.mute[m.Stream].Store(true)
		case wire.Ping:
			a.out.put(wire.Pong{}.Append(nil))
		default:
			return fmt.Errorf("agent: %w: %T", wire.ErrProtocol, m)
		}
	}
}

// stream sends output to the launcher.
type stream struct {
	a      *working
	number uint8
}

func (s *stream) Write(b []byte) (int, error) {
	if s.a.mute[s.number].Load() {
		return 0, syscall.EPIPE
	}
	if err := s.a.out.wait(wire.Output{Stream: s.number, Data: b}.Append(nil)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// feed is the input of rank 0, of which it holds at most the window.
type feed struct {
	out   *outbox
	mu    sync.Mutex
	moved *sync.Cond
	data  []byte
	given int // to the reader, which has not come back for more
	over  bool
}

func (f *feed) give(data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.data)+f.given+len(data) > wire.Window {
		return fmt.Errorf("agent: %w: input beyond the window", wire.ErrProtocol)
	}
	f.data = append(f.data, data...)
	f.over = f.over || len(data) == 0
	f.moved.Broadcast()
	return nil
}

func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.moved.Broadcast()
}

// Read returns input. What the call before has returned is taken then.
func (f *feed) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given > 0 {
		f.out.put(wire.Taken{Bytes: uint32(f.given)}.Append(nil))
	}
	f.given = 0
	for len(f.data) == 0 {
		if f.over {
			return 0, io.EOF
		}
		f.moved.Wait()
	}
	f.given = copy(b, f.data)
	f.data = f.data[:copy(f.data, f.data[f.given:])]
	return f.given, nil
}

// quote writes a word for a shell of POSIX, and for most others.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
