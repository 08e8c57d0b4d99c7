package pipeline_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(acts, ranks.Exit)
	leak.Main(m)
}

func events(t testing.TB, c eventgen.Config) []byte {
	t.Helper()
	var b bytes.Buffer
	_, err := eventgen.Write(t.Context(), &b, c, false)
	require.NoError(t, err)
	return b.Bytes()
}

// entry is an item with its timestamp.
type entry struct {
	timestamp uint64
	item      string
}

// stamped returns the items of a file with their timestamps.
func stamped(t testing.TB, file []byte) (list []entry) {
	t.Helper()
	var c ring.Clock
	chunk, _, err := ring.AppendAll(nil, file, &c, 0)
	require.NoError(t, err)
	return entries(t, chunk)
}

func entries(t testing.TB, chunk []byte) (list []entry) {
	t.Helper()
	for e, err := range ring.Entries(chunk, 0) {
		require.NoError(t, err)
		list = append(list, entry{e.Timestamp, string(e.Bytes)})
	}
	return list
}

// merged is the naive merge: it repeatedly takes the earliest of the first items, of the lowest
// source if there are several.
func merged(sources [][]entry) (all []entry) {
	for {
		first := -1
		for i, s := range sources {
			if len(s) > 0 && (first < 0 || s[0].timestamp < sources[first][0].timestamp) {
				first = i
			}
		}
		if first < 0 {
			return all
		}
		all = append(all, sources[first][0])
		sources[first] = sources[first][1:]
	}
}

// collect is a sink that keeps all items.
type collect struct{ b []byte }

func (c *collect) sink(_ context.Context, items []byte) error {
	c.b = append(c.b, items...)
	return nil
}

// quiet is a log for expected failures.
var quiet = slog.New(slog.DiscardHandler)

// odd keeps the items whose bytes add up to an odd number, and gives them another source.
func odd(it *ring.Item) (bool, error) {
	it.Header.SourceID ^= 0xff
	return sum(it)%2 == 1, nil
}

func sum(it *ring.Item) (n byte) {
	for _, b := range it.Body {
		n += b
	}
	return n
}

// reference returns the result of odd for a file.
func reference(t testing.TB, file []byte) (list []entry) {
	t.Helper()
	for _, e := range stamped(t, file) {
		var it ring.Item
		_, err := ring.Parse(&it, []byte(e.item), 0)
		require.NoError(t, err)
		if keep, _ := odd(&it); keep {
			list = append(list, entry{e.timestamp, string(it.Append(nil, ring.V12))})
		}
	}
	return list
}

// flaky is a worker that fails now and then, in every possible way, before or after the work.
type flaky struct {
	pipeline.Worker
	r *rand.Rand
}

func newFlaky(seed uint64) *flaky {
	return &flaky{pipeline.Items(ring.V12, 0, odd), rand.New(rand.NewPCG(seed, 1))}
}

func (f *flaky) Work(ctx context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
	switch f.r.IntN(20) {
	case 0:
		return nil, io.ErrClosedPipe
	case 1:
		out, _ = f.Worker.Work(ctx, c, out)
		return out, io.ErrUnexpectedEOF
	case 2:
		out, err := f.Worker.Work(ctx, c, out)
		return append(out, 1, 2, 3), err
	case 3:
		return binary.LittleEndian.AppendUint64(out, 5), nil
	}
	return f.Worker.Work(ctx, c, out)
}

// acts are what filters do; the result is their exit status.
var acts = map[string]func([]string) int{
	"odd": func([]string) int { return serve(func(b []byte) ([]byte, error) { return oddItems(b) }) },
	"odd-stamped": func([]string) int {
		return serve(func(b []byte) ([]byte, error) {
			return pipeline.Items(ring.V12, 0, odd).Work(context.Background(), &pipeline.Chunk{Data: b}, nil)
		})
	},
	"odd-once": func([]string) int {
		b, err := io.ReadAll(os.Stdin)
		if err == nil {
			b, err = oddItems(b)
		}
		if err == nil {
			_, err = os.Stdout.Write(b)
		}
		if err != nil {
			return 1
		}
		return 0
	},
	"same": func([]string) int { return serve(func(b []byte) ([]byte, error) { return b, nil }) },
	// "rubbish" answers with something that is not ring items.
	"rubbish": func([]string) int { return serve(func([]byte) ([]byte, error) { return []byte("rubbish"), nil }) },
	"late": func([]string) int {
		return serve(func(b []byte) ([]byte, error) {
			for {
				time.Sleep(time.Hour)
			}
		})
	},
	"sulky": func([]string) int {
		serve(func(b []byte) ([]byte, error) { return b, nil })
		return 9
	},
}

// serve writes its process ID, and answers frames.
func serve(f func([]byte) ([]byte, error)) int {
	os.Stderr.Write(binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid())))
	err := filter.Serve(os.Stdin, os.Stdout, 0, func(chunk, out []byte) ([]byte, error) {
		b, err := f(chunk)
		return append(out, b...), err
	})
	if err != nil {
		return 1
	}
	return 0
}

func oddItems(b []byte) (out []byte, err error) {
	for len(b) > 0 {
		var it ring.Item
		n, err := ring.Parse(&it, b, 0)
		if err != nil {
			return nil, err
		}
		b = b[n:]
		if keep, _ := odd(&it); keep {
			out = it.Append(out, ring.V12)
		}
	}
	return out, nil
}

func command(t testing.TB, act string) filter.Command {
	t.Helper()
	return filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ(act)}
}
