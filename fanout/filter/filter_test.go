package filter_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Exit)
	leak.Main(m)
}

// acts are what filters do; the result is their exit status.
var acts = map[string]func([]string) int{
	"upper": func([]string) int { return serve(upper) },
	"drop":  func([]string) int { return serve(func(_, out []byte) ([]byte, error) { return out, nil }) },
	// "third" answers two chunks and dies of the third.
	"third": func([]string) int {
		n := 0
		return serve(func(chunk, out []byte) ([]byte, error) {
			if n++; n == 3 {
				os.Exit(7)
			}
			return append(out, chunk...), nil
		})
	},
	"half": func([]string) int {
		filter.ReadFrame(os.Stdin, nil, 0)
		os.Stdout.Write([]byte{100, 0, 0, 0, 'h', 'a', 'l', 'f'})
		return 0
	},
	"lie": func([]string) int {
		filter.ReadFrame(os.Stdin, nil, 0)
		os.Stdout.Write([]byte{0, 0, 0, 0xff})
		wait()
		return 0
	},
	"deaf": func([]string) int { wait(); return 0 },
	// "listens" says that a chunk has begun to come, and takes no more of it.
	"listens": func([]string) int {
		io.ReadFull(os.Stdin, make([]byte, 1))
		os.Stderr.WriteString("it comes")
		wait()
		return 0
	},
	"silent": func([]string) int { io.Copy(io.Discard, os.Stdin); return 0 },
	"sulky":  func([]string) int { io.Copy(io.Discard, os.Stdin); return 3 },
	"chatty": func([]string) int {
		os.Stdout.Write(make([]byte, 4))
		return serve(upper)
	},
	"stderr": func([]string) int {
		os.Stderr.WriteString("a word\n")
		return serve(upper)
	},
	// "parent" leaves its pipes to a child that ignores them, and dies.
	"parent": func([]string) int {
		cmd := ranks.Command(context.Background(), "deaf")
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
		if cmd.Start() != nil {
			return 1
		}
		return 5
	},
	// Those of one chunk.
	"cat": func([]string) int { io.Copy(os.Stdout, os.Stdin); return 0 },
	"first": func([]string) int {
		var b [1]byte
		io.ReadFull(os.Stdin, b[:])
		os.Stdout.Write(b[:])
		return 0
	},
	"fail": func([]string) int { io.Copy(os.Stdout, os.Stdin); return 4 },
}

func serve(f func(chunk, out []byte) ([]byte, error)) int {
	if filter.Serve(os.Stdin, os.Stdout, 0, f) != nil {
		return 1
	}
	return 0
}

func upper(chunk, out []byte) ([]byte, error) { return append(out, bytes.ToUpper(chunk)...), nil }

// wait waits until it is killed.
func wait() {
	for {
		time.Sleep(time.Hour)
	}
}

func command(t testing.TB, act string) filter.Command {
	t.Helper()
	return filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ(act)}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	p, err := filter.Start(command(t, "upper"))
	require.NoError(t, err)
	for _, size := range []int{1, 10, 70_000, 3 << 20, 5} { // beyond what a pipe holds, both ways
		chunk := bytes.Repeat([]byte("x"), size)
		out, err := p.Do(ranks.Within(t), chunk, []byte("before "))
		require.NoError(t, err)
		require.Equal(t, "before ", string(out[:7]))
		require.True(t, bytes.Equal(bytes.ToUpper(chunk), out[7:]))
	}
	require.NoError(t, p.Close())
}

func TestDrop(t *testing.T) {
	t.Parallel()
	p, err := filter.Start(command(t, "drop"))
	require.NoError(t, err)
	for range 3 {
		out, err := p.Do(ranks.Within(t), []byte("chunk"), nil)
		require.NoError(t, err)
		require.Empty(t, out)
	}
	require.NoError(t, p.Close())
}

// TestFailures: every failure to answer is an error, and leaves nothing behind.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		act     string
		answers int // before
		err     error
		says    string
	}{
		{"third", 2, io.ErrUnexpectedEOF, "answer: unexpected EOF: exit status 7"},
		{"half", 0, io.ErrUnexpectedEOF, "answer: unexpected EOF: exit status 0"},
		{"lie", 0, filter.ErrFrame, "answer: frame is longer than the limit: 4278190080 bytes, but at most 67108864 are allowed"},
		{"parent", 0, io.ErrUnexpectedEOF, "exit status 5"},
	} {
		t.Run(c.act, func(t *testing.T) {
			t.Parallel()
			p, err := filter.Start(command(t, c.act))
			require.NoError(t, err)
			for range c.answers {
				_, err := p.Do(ranks.Within(t), []byte("chunk"), nil)
				require.NoError(t, err)
			}
			out, err := p.Do(ranks.Within(t), []byte("chunk"), []byte("before"))
			require.ErrorIs(t, err, c.err)
			var e *filter.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, p.PID(), e.PID)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, "before", string(out))
			require.NoError(t, p.Close())
		})
	}
}

// A filter that is killed, waiting or at work, is an error of the next chunk or this one.
func TestKilled(t *testing.T) {
	t.Parallel()
	p, err := filter.Start(command(t, "upper"))
	require.NoError(t, err)
	_, err = p.Do(ranks.Within(t), []byte("chunk"), nil)
	require.NoError(t, err)
	kill(t, p)
	_, err = p.Do(ranks.Within(t), bytes.Repeat([]byte("chunk"), 1<<20), nil)
	require.ErrorContains(t, err, "killed")
	require.NoError(t, p.Close())

	p, answered := within(t, ranks.Within(t))
	kill(t, p)
	require.ErrorContains(t, <-answered, "killed")
	require.NoError(t, p.Close())
}

// kill kills a filter, and keeps no descriptor of it.
func kill(t *testing.T, p *filter.Process) {
	process, err := os.FindProcess(p.PID())
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	require.NoError(t, process.Release())
}

// within starts a filter that takes the beginning of a chunk and no more, and returns when it has it: what Do
// returns comes from answered.
func within(t *testing.T, ctx context.Context) (p *filter.Process, answered chan error) {
	var log logbuf.Buffer
	c := command(t, "listens")
	c.Stderr = &log
	p, err := filter.Start(c)
	require.NoError(t, err)
	answered = make(chan error, 1)
	go func() {
		_, err := p.Do(ctx, bytes.Repeat([]byte("chunk"), 1<<20), nil)
		answered <- err
	}()
	ranks.Eventually(t, func() bool { return log.String() != "" })
	return p, answered
}

// The end of a context ends a working filter.
func TestContext(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, answered := within(t, ctx)
	cancel(cause)
	require.ErrorIs(t, <-answered, cause)
	require.NoError(t, p.Close())

	_, err := filter.Once(ctx, command(t, "deaf"), []byte("chunk"), nil)
	require.ErrorIs(t, err, cause)
}

func TestClose(t *testing.T) {
	for _, c := range []struct {
		act   string
		err   error
		says  string
		chunk bool // whether it is asked before
	}{
		{act: "silent"},
		{act: "sulky", err: filter.ErrExit, says: "end: the filter failed: exit status 3"},
		{act: "chatty", chunk: true, err: filter.ErrUnasked, says: "end: output that was not asked for: 9 bytes"},
	} {
		t.Run(c.act, func(t *testing.T) {
			t.Parallel()
			p, err := filter.Start(command(t, c.act))
			require.NoError(t, err)
			if c.chunk {
				_, err := p.Do(ranks.Within(t), []byte("chunk"), nil)
				require.NoError(t, err)
			}
			err = p.Close()
			require.ErrorIs(t, err, c.err)
			if c.err != nil {
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

// Kill does not wait for the filter's grace.
func TestKill(t *testing.T) {
	t.Parallel()
	p, err := filter.Start(command(t, "deaf"))
	require.NoError(t, err)
	p.Kill()
	p.Kill()
	require.ErrorIs(t, p.Close(), filter.ErrKilled)
}

func TestStderr(t *testing.T) {
	t.Parallel()
	var log logbuf.Buffer
	c := command(t, "stderr")
	c.Stderr = &log
	p, err := filter.Start(c)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.Equal(t, "a word\n", log.String())
}

func TestOnce(t *testing.T) {
	big := bytes.Repeat([]byte("chunk"), 1<<20)
	for _, c := range []struct {
		act   string
		limit int
		want  []byte
		err   error
		says  string
	}{
		{act: "cat", want: big},
		{act: "first", want: []byte("c")}, // it need not read all
		{act: "silent"},
		{act: "fail", err: filter.ErrExit, says: "answer: the filter failed: exit status 4"},
		{act: "parent", err: filter.ErrExit, says: "exit status 5"},
		{act: "cat", limit: 1000, err: filter.ErrFrame, says: "answer: frame is longer than the limit: more than 1000 bytes"},
	} {
		t.Run(c.act, func(t *testing.T) {
			t.Parallel()
			command := command(t, c.act)
			command.Limit = c.limit
			out, err := filter.Once(ranks.Within(t), command, big, []byte("before"))
			require.ErrorIs(t, err, c.err)
			require.Equal(t, "before", string(out[:6]))
			if c.err != nil {
				require.ErrorContains(t, err, c.says)
			}
			require.True(t, bytes.Equal(c.want, out[6:]))
		})
	}
}

func TestNoProgram(t *testing.T) {
	for _, args := range [][]string{nil, {"no-such-program-anywhere"}} {
		_, err := filter.Start(filter.Command{Args: args})
		var e *filter.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "start", e.Op)
		out, err := filter.Once(ranks.Within(t), filter.Command{Args: args}, nil, []byte("before"))
		require.ErrorAs(t, err, &e)
		require.Equal(t, "before", string(out))
		if args != nil {
			require.ErrorIs(t, err, exec.ErrNotFound)
		}
	}
}

// TestFrames: frames are read as they were written, and a truncated one is an error.
func TestFrames(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var wire []byte
	var want [][]byte
	for range 30 {
		chunk := make([]byte, r.IntN(5)*r.IntN(40_000))
		for i := range chunk {
			chunk[i] = byte(r.Uint32())
		}
		want = append(want, chunk)
		wire = filter.AppendFrame(wire, chunk)
	}
	in := iotest.HalfReader(bytes.NewReader(wire))
	var b []byte
	var err error
	for _, chunk := range want {
		b, err = filter.ReadFrame(in, append(b[:0], "before"...), 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(chunk, b[6:]))
	}
	_, err = filter.ReadFrame(in, nil, 0)
	require.Equal(t, io.EOF, err)

	require.Equal(t, []byte{3, 0, 0, 0, 'a', 'b', 'c'}, filter.AppendFrame(nil, []byte("abc")))
	require.ErrorIs(t, filter.Serve(bytes.NewReader([]byte{3, 0, 0, 0, 'a', 'b'}), io.Discard, 0, upper), io.ErrUnexpectedEOF)
	require.ErrorIs(t, filter.Serve(bytes.NewReader([]byte{3, 0, 0, 0, 'a', 'b', 'c'}), io.Discard, 2, upper), filter.ErrFrame)
	cause := errors.New("no")
	refuse := func(_, out []byte) ([]byte, error) { return out, cause }
	require.Equal(t, cause, filter.Serve(bytes.NewReader(make([]byte, 4)), io.Discard, 2, refuse))
}

// FuzzReadFrame: a frame is what its length says, or an error.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{3, 0, 0, 0, 'a', 'b', 'c', 'd'})
	f.Add([]byte{3, 0, 0, 0, 'a'})
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, wire []byte) {
		const limit = 100
		b, err := filter.ReadFrame(bytes.NewReader(wire), nil, limit)
		switch {
		case err == nil:
			require.Equal(t, wire[:filter.FrameHeader+len(b)], filter.AppendFrame(nil, b))
		case len(wire) == 0:
			require.Equal(t, io.EOF, err)
		case len(wire) < filter.FrameHeader:
			require.Equal(t, io.ErrUnexpectedEOF, err)
		case binary.LittleEndian.Uint32(wire) > limit:
			require.ErrorIs(t, err, filter.ErrFrame)
		default:
			require.Equal(t, io.ErrUnexpectedEOF, err)
			require.Less(t, len(wire)-filter.FrameHeader, int(binary.LittleEndian.Uint32(wire)))
		}
	})
}

// TestServeLimit: a filter takes the limit from its environment, unless it has its own.
func TestServeLimit(t *testing.T) {
	for _, c := range []struct {
		env   string
		limit int
		want  error
	}{{"", 0, nil}, {"100", 0, nil}, {"99", 0, filter.ErrFrame}, {"99", 100, nil}, {"100", 99, filter.ErrFrame}, {"rubbish", 0, nil}} {
		t.Setenv(filter.EnvLimit, c.env)
		var out bytes.Buffer
		err := filter.Serve(bytes.NewReader(filter.AppendFrame(nil, make([]byte, 100))), &out, c.limit, upper)
		require.ErrorIs(t, err, c.want, "%+v", c)
	}
}

// BenchmarkDo hands 64 KiB to a filter and takes them back.
func BenchmarkDo(b *testing.B) {
	p, err := filter.Start(command(b, "upper"))
	require.NoError(b, err)
	chunk := make([]byte, 64<<10)
	out := make([]byte, 0, len(chunk))
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		if _, err := p.Do(b.Context(), chunk, out); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, p.Close())
}
