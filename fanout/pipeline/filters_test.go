package pipeline_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// TestFilters runs real processes as filters, in each mode.
func TestFilters(t *testing.T) {
	file := events(t, eventgen.Config{Events: 600, NullEvery: 5, ScalerEvery: 7})
	for _, c := range []struct {
		act   string
		o     pipeline.FilterOptions
		clump int
	}{
		{"odd", pipeline.FilterOptions{}, 10},
		{"odd-stamped", pipeline.FilterOptions{Stamped: true, Timeout: time.Minute}, 10},
		{"odd-once", pipeline.FilterOptions{PerChunk: true}, 100},
	} {
		t.Run(c.act, func(t *testing.T) {
			t.Parallel()
			var got collect
			p, err := pipeline.New(pipeline.Config{
				Sources: []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: c.clump}).Next},
				Workers: 3, NewWorker: pipeline.Filter(command(t, c.act), c.o), Sink: got.sink,
			})
			require.NoError(t, err)
			require.NoError(t, p.Run(ranks.Within(t)))
			var want, have []string
			for _, e := range reference(t, file) {
				want = append(want, e.item)
			}
			for _, e := range entries(t, got.b) {
				have = append(have, e.item)
			}
			require.Equal(t, want, have)
			if c.o.Stamped {
				require.Equal(t, reference(t, file), entries(t, got.b))
			}
		})
	}
}

// hunter learns the process IDs of filters, and kills one at random. Each filter reports its ID
// once, and each ID is killed at most once, so an ID is that of a living child of this process,
// or of one that has not been waited for.
type hunter struct {
	mu     sync.Mutex
	r      *rand.Rand
	prey   []int
	killed int
}

func (h *hunter) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prey = append(h.prey, int(binary.LittleEndian.Uint32(b)))
	return len(b), nil
}

// TestKill kills filters at random, a dozen times or hundreds, waiting or at work: the output is
// complete, in order, and without duplicates.
func TestKill(t *testing.T) {
	need.Full(t)
	rounds, count := 1, 600
	if need.WantLong() {
		rounds, count = 12, 1500
	}
	killed := 0
	for round := range rounds {
		var sources []pipeline.Source
		var want [][]entry
		for i := range 2 {
			file := events(t, eventgen.Config{Seed: uint64(round), FirstSource: uint32(i), Events: count})
			sources = append(sources, pipeline.File(bytes.NewReader(file), pipeline.FileOptions{Clump: 10}).Next)
			want = append(want, reference(t, file))
		}
		h := &hunter{r: rand.New(rand.NewPCG(3, uint64(round)))}
		c := command(t, "odd-stamped")
		c.Stderr = h
		var got collect
		p, err := pipeline.New(pipeline.Config{
			Sources: sources, Workers: 4, Attempts: 1000, Log: quiet,
			NewWorker: func(ctx context.Context, id int) (pipeline.Worker, error) {
				w, err := pipeline.Filter(c, pipeline.FilterOptions{Stamped: true})(ctx, id)
				return hunted{w, h}, err
			},
			Sink: got.sink,
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(ranks.Within(t)))
		require.Equal(t, merged(want), entries(t, got.b))
		require.Positive(t, h.killed)
		killed += h.killed
	}
	t.Logf("%d filters killed", killed)
	require.GreaterOrEqual(t, killed, count/100*rounds)
}

// hunted is a filter during whose work, now and then, some filter is killed.
type hunted struct {
	pipeline.Worker
	h *hunter
}

func (w hunted) Work(ctx context.Context, c *pipeline.Chunk, out []byte) ([]byte, error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(w.h.hunt)
	return w.Worker.Work(ctx, c, out)
}

func (h *hunter) hunt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.prey) == 0 || h.r.IntN(6) > 0 {
		return
	}
	i := h.r.IntN(len(h.prey))
	pid := h.prey[i]
	h.prey = append(h.prey[:i], h.prey[i+1:]...)
	process, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer process.Release()
	if process.Kill() == nil {
		h.killed++
	}
}

// TestBadFilters: a filter that cannot work is an error, after all attempts.
func TestBadFilters(t *testing.T) {
	file := events(t, eventgen.Config{Events: 50})
	for _, c := range []struct {
		act     string
		timeout time.Duration
		stamped bool
		op      string
		says    string
	}{
		{"rubbish", 0, false, "work", "3 workers have failed: pipeline: the result is not a valid chunk: ring: byte 0: "},
		{"rubbish", 0, true, "work", "3 workers have failed: pipeline: the result is not a valid chunk: ring: byte 0: "},
		{"late", 10 * time.Millisecond, false, "work", "the filter took longer than its timeout, 10ms"},
		{"sulky", 0, false, "close", "end: the filter failed: exit status 9"},
	} {
		var got collect
		p, err := pipeline.New(pipeline.Config{
			Sources: []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{}).Next},
			Workers: 2, Attempts: 3, Log: quiet, Sink: got.sink,
			NewWorker: pipeline.Filter(command(t, c.act), pipeline.FilterOptions{Timeout: c.timeout, Stamped: c.stamped}),
		})
		require.NoError(t, err)
		err = p.Run(ranks.Within(t))
		var e *pipeline.Error
		require.ErrorAs(t, err, &e, c.act)
		require.Equal(t, c.op, e.Op)
		require.ErrorContains(t, err, c.says)
	}
	for _, perChunk := range []bool{false, true} {
		p, err := pipeline.New(pipeline.Config{
			Sources:   []pipeline.Source{pipeline.File(bytes.NewReader(file), pipeline.FileOptions{}).Next},
			NewWorker: pipeline.Filter(filter.Command{Args: []string{"no-such-program-anywhere"}}, pipeline.FilterOptions{PerChunk: perChunk}),
			Sink:      (&collect{}).sink,
		})
		require.NoError(t, err)
		var e *pipeline.Error
		require.ErrorAs(t, p.Run(ranks.Within(t)), &e)
		require.Equal(t, "start", e.Op)
	}
}

// TestLongItem: the limit of items is the only one: an item beyond filter.DefaultLimit goes
// through a filter, there and back.
func TestLongItem(t *testing.T) {
	need.Long(t) // it moves some hundred megabytes
	const size = filter.DefaultLimit + 1<<20
	in := (&ring.Item{Type: ring.PhysicsEvent, Body: bytes.Repeat([]byte{1}, size)}).Append(nil, ring.V12)
	var out bytes.Buffer
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{pipeline.File(bytes.NewReader(in), pipeline.FileOptions{ItemLimit: 2 * size}).Next},
		Workers: 1, ItemLimit: 2 * size, Sink: pipeline.Strip(&out),
		NewWorker: pipeline.Filter(command(t, "same"), pipeline.FilterOptions{ItemLimit: 2 * size}),
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(ranks.Within(t)))
	require.True(t, bytes.Equal(in, out.Bytes()))
}
