package pipeline_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/pipeline"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

// TestOutput: the name is the old file, or none, until the new one is complete.
func TestOutput(t *testing.T) {
	file := events(t, eventgen.Config{Events: 3000})
	var c ring.Clock
	chunk, _, err := ring.AppendAll(nil, file, &c, 0)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "out.evt")
	for _, old := range []string{"", "what was there before"} {
		if old != "" {
			require.NoError(t, os.WriteFile(path, []byte(old), 0o600))
		}
		for _, commit := range []bool{false, true} {
			o, err := pipeline.Create(path)
			require.NoError(t, err)
			require.NoError(t, o.Sink(t.Context(), chunk))
			require.EqualValues(t, len(file), o.Bytes())
			got, err := os.ReadFile(path)
			if old == "" {
				require.ErrorIs(t, err, os.ErrNotExist)
			} else {
				require.NoError(t, err)
				require.Equal(t, old, string(got))
			}
			if !commit {
				require.NoError(t, o.Discard())
				continue
			}
			require.FileExists(t, path+pipeline.Part)
			require.NoError(t, o.Commit())
			got, err = os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, file, got)
		}
		list, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.NoError(t, os.Remove(path))
	}
}

func TestOutputErrors(t *testing.T) {
	_, err := pipeline.Create(filepath.Join(t.TempDir(), "none", "out.evt"))
	require.ErrorIs(t, err, os.ErrNotExist)

	// A directory in the way is found at the end, and nothing is left.
	path := filepath.Join(t.TempDir(), "dir")
	require.NoError(t, os.Mkdir(path, 0o700))
	o, err := pipeline.Create(path)
	require.NoError(t, err)
	require.Error(t, o.Commit())
	require.NoFileExists(t, path+pipeline.Part)
}

// A path that is not a regular file is written to directly.
func TestOutputPipe(t *testing.T) {
	file := events(t, eventgen.Config{Events: 3000})
	var c ring.Clock
	chunk, _, err := ring.AppendAll(nil, file, &c, 0)
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	wrote := make(chan error)
	go func() {
		o := pipeline.To(w)
		wrote <- errors.Join(o.Sink(t.Context(), chunk), o.Commit())
	}()
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	require.Equal(t, file, got)

	o, err := pipeline.Create(os.DevNull)
	require.NoError(t, err)
	require.NoError(t, o.Sink(t.Context(), chunk))
	require.NoError(t, o.Commit())
	require.NoFileExists(t, os.DevNull+pipeline.Part)
}
