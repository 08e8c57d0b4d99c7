package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// handed is a file to be passed to a child.
type handed struct {
	*os.File
	ours bool // this process closes it once the child has it
}

// done is called when the child has the file, or could not be started.
func (h handed) done() {
	if h.ours {
		h.Close()
	}
}

// nothing returns a file without content: /dev/null, or, where that is missing, the end of a pipe.
func nothing() (*os.File, error) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		var w *os.File
		if f, w, err = os.Pipe(); err == nil {
			w.Close()
		}
	}
	return f, err
}

// input copies to the standard input of rank 0.
type input struct {
	pipe  *os.File // nil if there is nothing to copy
	ended chan struct{}
}

func (in *input) file(r io.Reader) (handed, error) {
	// A rank that read from a terminal would be stopped, because its process group is not in the
	// foreground.
	f, ok := r.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd()))
	if ok && !terminal {
		return handed{File: f}, nil
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return handed{}, err
	}
	in.pipe, in.ended = ours, make(chan struct{})
	go func() {
		if terminal {
			r = &foreground{f, in.ended}
		}
		io.Copy(ours, r) // also ends when the rank stops reading
		ours.Close()
	}()
	return handed{theirs, true}, nil
}

func (in *input) close() {
	if in.pipe != nil {
		in.pipe.Close()
		close(in.ended)
	}
}

const (
	// maxLine is the longest part of a line that is kept in memory until the line ends.
	maxLine = 64 << 10
	// maxPipe is the capacity of a pipe (pipe(7): /proc/sys/fs/pipe-max-size for unprivileged
	// users): ranks that have ended cannot have left more behind.
	maxPipe = 1 << 20
)

// output passes on the output of the ranks.
type output struct {
	writing sync.Mutex // one write at a time, whatever it goes to
	wg      sync.WaitGroup

	mu        sync.Mutex
	pipes     []*os.File // our ends
	err       error      // the first
	abandoned chan struct{}
}

// errAbandoned: a signal has ended the job, and its output was not taken.
var errAbandoned = errors.New("some was not taken in time")

// abandon has writes fail, also one that is in progress and may stay so. It is called once.
func (o *output) abandon() { close(o.abandoned) }

// file returns a file for a child whose content goes to w, each line after the prefix.
func (o *output) file(w io.Writer, prefix string) (handed, error) {
	if f, ok := w.(*os.File); ok && prefix == "" {
		return handed{File: f}, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return handed{}, err
	}
	o.mu.Lock()
	o.pipes = append(o.pipes, ours)
	o.mu.Unlock()
	write := o.whole(w)
	if prefix != "" {
		write = (&lines{prefix: prefix, write: write}).Write
	}
	o.wg.Go(func() {
		defer ours.Close() // ranks that still write get a broken pipe
		if err := drain(ours, write); err != nil {
			o.fail(err)
		}
	})
	return handed{theirs, true}, nil
}

// fail notes that output was lost.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// whole returns a function that writes text to w without interruption by others.
func (o *output) whole(w io.Writer) func([]byte) error {
	return func(b []byte) error {
		if len(b) == 0 {
			return nil
		}
		o.writing.Lock()
		defer o.writing.Unlock()
		select {
		case <-o.abandoned:
			return errAbandoned
		default:
		}
		done := make(chan error, 1)
		go func() { // nothing ends a write that blocks
			_, err := w.Write(b)
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-o.abandoned:
			return errAbandoned
		}
	}
}

// finish returns when all output of the ranks has been passed on, with the first error. An escaped
// process may keep a pipe open; the pipe is closed once nothing has come through it for d.
func (o *output) finish(d time.Duration) error {
	o.mu.Lock()
	for _, p := range o.pipes {
		p.SetReadDeadline(time.Now().Add(d))
	}
	o.mu.Unlock()
	o.wg.Wait()
	return o.err
}

// drain calls write with what it reads from r, and at the end with nothing. A deadline set on r
// means that the writers are gone: what they have left is still passed on.
func drain(r *os.File, write func([]byte) error) error {
	b := make([]byte, 32<<10)
	read := r.Read
	for left := maxPipe; left > 0; {
		n, err := read(b)
		if n > 0 {
			if err := write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // it may have passed while writing
			read = func(b []byte) (int, error) { n, err := readNow(r, b); left -= n; return n, err }
		case err != nil:
			return write(nil)
		}
	}
	return write(nil)
}

// lines puts a prefix before each line and passes on only whole lines.
type lines struct {
	prefix string
	write  func([]byte) error
	text   []byte // a line without its end, at most maxLine bytes between calls
	out    []byte
}

// Write takes any piece of the text; an empty one ends it.
func (l *lines) Write(b []byte) error {
	end := len(b) == 0
	l.text = append(l.text, b...)
	l.out = l.out[:0]
	text := l.text
	for len(text) > 0 {
		size := bytes.IndexByte(text[:min(len(text), maxLine+1)], '\n')
		next := size + 1
		if size < 0 {
			size = min(len(text), maxLine)
			next = size
			if len(text) <= maxLine && !end {
				break
			}
		}
		l.out = append(append(append(l.out, l.prefix...), text[:size]...), '\n')
		text = text[next:]
	}
	l.text = l.text[:copy(l.text, text)]
	return l.write(l.out)
}
