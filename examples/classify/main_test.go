package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) {
	ranks.Play(map[string]func([]string) error{"filter": func([]string) error { return serve(100) }}, ranks.Call)
	leak.Main(m)
}

// TestClassify: goroutines and processes write the same, which is what each event says.
func TestClassify(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "run.evt"), filepath.Join(dir, "out.evt")
	var b bytes.Buffer
	_, err := eventgen.Write(t.Context(), &b, eventgen.Config{Events: 2000, Extension: 3, ScalerEvery: 10, Size: eventgen.Uniform(8, 300)}, false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(in, b.Bytes(), 0o600))
	require.NoError(t, classify(t.Context(), in, out, 3, 100))
	got, err := os.ReadFile(out)
	require.NoError(t, err)

	var want []byte
	seen := map[uint32]int{}
	for rest := b.Bytes(); len(rest) > 0; {
		var it ring.Item
		n, err := ring.Parse(&it, rest, 0)
		require.NoError(t, err)
		rest = rest[n:]
		if it.Type == ring.PhysicsEvent {
			if len(it.Body) < 100 {
				continue
			}
			c := class(it.Body)
			seen[c]++
			it.Header.Extension = binary.LittleEndian.AppendUint32(bytes.Clone(it.Header.Extension), c)
		}
		want = it.Append(want, ring.V12)
	}
	require.True(t, bytes.Equal(want, got))
	require.Greater(t, len(seen), 2)

	command := filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ("filter")}
	var filtered bytes.Buffer
	p, err := pipeline.New(pipeline.Config{
		Sources: []pipeline.Source{pipeline.File(bytes.NewReader(b.Bytes()), pipeline.FileOptions{}).Next},
		Workers: 2, NewWorker: pipeline.Filter(command, pipeline.FilterOptions{}), Sink: pipeline.Strip(&filtered),
	})
	require.NoError(t, err)
	require.NoError(t, p.Run(t.Context()))
	require.True(t, bytes.Equal(want, filtered.Bytes()))
}

func TestClass(t *testing.T) {
	for mean, want := range map[byte]uint32{0: 0, 99: 0, 100: 1, 119: 1, 120: 2, 128: 3, 135: 3, 136: 4, 255: 4} {
		require.Equal(t, want, class(bytes.Repeat([]byte{mean}, 10)), "%d", mean)
	}
	require.Zero(t, class(nil))
}

// Damage is an error, and what is before it is written.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "run.evt"), filepath.Join(dir, "out.evt")
	var b bytes.Buffer
	s, err := eventgen.Write(t.Context(), &b, eventgen.Config{Events: 50, Damage: eventgen.Cut, DamageItem: 30}, false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(in, b.Bytes(), 0o600))
	var damage *ring.DamageError
	require.ErrorAs(t, classify(context.Background(), in, out, 1, 0), &damage)
	require.Equal(t, s.Damaged, damage.Offset)
	require.FileExists(t, out)
	require.Error(t, classify(context.Background(), dir+"/none", out, 1, 0))
}
