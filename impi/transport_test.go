package impi

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// TestTransport: the environment variable that names the transports of channels names those of packets
// too, where the program names none.
func TestTransport(t *testing.T) {
	need.Provider(t, "shm")
	for value, want := range map[string]string{
		"": "shm", "shm": "shm", "shm, tcp": "shm", "tcp": "", "tcp,shm": "",
	} {
		t.Run(value, func(t *testing.T) {
			t.Setenv(channel.EnvTransport, value)
			jobs, errs := tryJoin(t, place{hosts: 2, processes: 1})
			for i, err := range errs {
				require.NoError(t, err)
				require.Equal(t, want, jobs[i].Provider(1-i))
			}
			closeAll(t, jobs)
		})
	}
	t.Setenv(channel.EnvTransport, "")
	file := filepath.Join(t.TempDir(), "tuning")
	require.NoError(t, os.WriteFile(file, []byte("SLUICE_TRANSPORT=tcp\nCOLL_XSIZE=4096\n"), 0o600))
	t.Setenv(channel.EnvTuningFile, file)
	tuned, errs := tryJoin(t, place{hosts: 2, processes: 1})
	require.Equal(t, []error{nil, nil}, errs)
	require.Empty(t, tuned[0].Provider(1), "the tuning file of channels is one of packets, too")
	closeAll(t, tuned)
	alone, err := fromTeam(within(t), teams(t, 1)[0], nil, Config{})
	require.NoError(t, err)
	require.Equal(t, 4096, alone.roster.settings.XSize)
	closeAll(t, []*Job{alone})
	t.Setenv(channel.EnvTransport, "smh")
	_, err = Config{}.complete()
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `SLUICE_TRANSPORT="smh"`)
	t.Setenv(channel.EnvTransport, "shm")
	c, err := Config{Log: slog.New(slog.DiscardHandler)}.complete()
	require.NoError(t, err)
	c.Providers = []string{} // as if it did not reach
	_, errs = tryJoin(t, place{hosts: 2, processes: 1, config: c})
	for _, err := range errs {
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorContains(t, err, "SLUICE_TRANSPORT=shm")
	}
	jobs := join(t, place{hosts: 2, processes: 1, config: Config{Providers: []string{"shm"}}})
	require.Equal(t, "shm", jobs[0].Provider(1), "what the program says goes first")
	closeAll(t, jobs)
}

// TestWaitSetting: a job waits as its configuration says, or else the environment.
func TestWaitSetting(t *testing.T) {
	t.Setenv(channel.EnvWait, "sleep:5us")
	c, err := Config{}.complete()
	require.NoError(t, err)
	require.Equal(t, wait.Setting{Mode: wait.Sleeping, For: 5 * time.Microsecond}, c.waits)
	c, err = Config{Wait: "yield"}.complete()
	require.NoError(t, err)
	require.Equal(t, wait.Setting{Mode: wait.Yielding}, c.waits)
	_, err = Config{Wait: "nap"}.complete()
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `wait as "nap"`)
}
