package channel

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/coll"
)

func TestTuningFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning")
	require.NoError(t, os.WriteFile(path, []byte("# of bench tune\n\n"+coll.EnvXSize+"=4096\n "+coll.EnvMaxLinear+" = 2 # hosts\n"+coll.EnvSegment+"=8192\n"), 0o600))
	t.Setenv(EnvTuningFile, path)
	t.Setenv(coll.EnvMaxLinear, "3")
	o, err := newOptions([]Option{WithTuning(coll.EnvSegment + "=16384")})
	require.NoError(t, err)
	require.Equal(t, 4096, o.coll.XSize, "of the file")
	require.Equal(t, 3, o.coll.MaxLinear, "the environment overrides the file")
	require.Equal(t, 16384, o.coll.Segment, "the program overrides both")
	require.Equal(t, 4096/16, o.coll.Block, "what follows from what the file says")
}

// TestTuningOfMessages: the file says from which size on messages go another way, and
// by which provider; the environment and the program override it.
func TestTuningOfMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tuning")
	require.NoError(t, os.WriteFile(path, []byte(EnvTransport+"=tcp\n"+EnvEagerTCP+"=16384\n"+EnvPackTCP+"=0\n"+EnvPackRDMA+"=-1\n"+EnvReadRDMA+"=5\n"), 0o600))
	t.Setenv(EnvTuningFile, path)
	t.Setenv(EnvReadRDMA, "6")
	o, err := newOptions([]Option{WithTuning(EnvPackTCP + "=4096")})
	require.NoError(t, err)
	require.Equal(t, []string{"tcp"}, o.providers)
	require.Equal(t, crossovers{eager: 16 << 10, pack: 4 << 10, read: crossoversTCP.read}, o.tcp)
	require.Equal(t, crossovers{eager: eagerQueued, pack: crossoversRDMA.pack, read: 6}, o.rdma)

	for _, bad := range []string{EnvEagerTCP + "=65537", EnvEagerTCP + "=4095", EnvEagerRDMA + "=0", EnvEagerRDMA + "=-2", EnvPackTCP + "=x", "SLUICE_SHM_EAGER=1"} {
		_, err := newOptions([]Option{WithTuning(bad)})
		require.ErrorIs(t, err, ErrInvalid, bad)
		name, _, _ := strings.Cut(bad, "=")
		require.ErrorContains(t, err, name)
	}
}

// TestEagerLimit: messages on both sides of a limit other than by default arrive, each in
// its way.
func TestEagerLimit(t *testing.T) {
	for _, limit := range []int{leastEager, 5000, mostEager} {
		nodes := join(t, 2, WithProviders("tcp"), WithTuning(fmt.Sprintf("%s=%d", EnvEagerTCP, limit)))
		for _, size := range []int{0, limit, limit + 1} {
			s, r, out, in := sendReceiveBytes(t, nodes[0], nodes[1], size)
			random(rand.New(rand.NewPCG(1, uint64(size))), out)
			before := nodes[0].Stats().Peers[0].Sent.Eager
			pass(t, s, r, r)
			require.Equal(t, out, in)
			require.Equal(t, size <= limit, nodes[0].Stats().Peers[0].Sent.Eager > before, "%d bytes, limit %d", size, limit)
			require.NoError(t, errors.Join(s.Close(), r.Close()))
		}
	}
}

// TestSettingsOnTheWire: what a rank tells of its settings is what the others compare, whichever rank compares.
func TestSettingsOnTheWire(t *testing.T) {
	o, err := newOptions(nil)
	require.NoError(t, err)
	ours := settings{o.coll, o.routes}
	b, err := ours.append(nil)
	require.NoError(t, err)
	theirs, rest, err := parseSettings(append(b, "behind"...))
	require.NoError(t, err)
	require.Equal(t, ours, theirs)
	require.Empty(t, ours.differ(theirs))
	require.Equal(t, "behind", string(rest))
	for n := range b {
		_, _, err = parseSettings(b[:n])
		require.ErrorIs(t, err, ErrProtocol, "%d bytes of %d", n, len(b))
	}
	theirs.coll.XSize, theirs.routes.tcp.eager, theirs.routes.rdma.read = 7, 1, 2
	require.Equal(t, fmt.Sprintf("COLL_XSIZE is %d and 7, %s is 8192 and 1, %s is 16384 and 2", ours.coll.XSize, EnvEagerTCP, EnvReadRDMA), ours.differ(theirs))
}

func TestTuningFileErrors(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		line int
		says string
	}{
		"unknown":      {"\nexport=1\n", 2, "unknown setting"},
		"no value":     {coll.EnvXSize + "\n", 1, "want NAME=value"},
		"no number":    {coll.EnvXSize + "=1\n" + coll.EnvMaxLinear + "=many\n", 2, coll.EnvMaxLinear},
		"out of range": {coll.EnvXSize + "=99999999999999\n", 1, coll.EnvXSize},
		"twice":        {coll.EnvXSize + "=1\n" + coll.EnvXSize + "=1\n", 2, "twice"},
		"too long":     {strings.Repeat("#", maxTuningFile+1), 0, "more than"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		t.Setenv(EnvTuningFile, path)
		_, err := newOptions(nil)
		var bad *TuningFileError
		require.ErrorAs(t, err, &bad, name)
		require.ErrorIs(t, err, ErrInvalid, name)
		require.Equal(t, path, bad.File)
		require.Equal(t, c.line, bad.Line, name)
		require.Contains(t, bad.Error(), c.says, name)
	}
	t.Setenv(EnvTuningFile, filepath.Join(dir, "none"))
	_, err := newOptions(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Whatever is in a file, it is settings that can be meant, or an error that says where.
func FuzzTuning(f *testing.F) {
	f.Add(coll.EnvXSize + "=4096\n# no more\n")
	f.Add(coll.EnvAlgorithm + "=bcast:binomial\n")
	f.Add("=\n")
	f.Fuzz(func(t *testing.T, text string) {
		given, err := parseTuning("file", text)
		if err != nil {
			var bad *TuningFileError
			require.True(t, errors.As(err, &bad))
			require.Positive(t, bad.Line)
			return
		}
		for name := range given {
			require.Contains(t, append(settingNames(), EnvTransport), name)
		}
	})
}
