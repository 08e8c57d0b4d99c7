package boot

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

const hexSecret = "000102030405060708090a0b0c0d0e0f"

// variables returns a lookup over NAME=value pairs.
func variables(pairs ...string) func(string) (string, bool) {
	m := make(map[string]string)
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		m[name] = value
	}
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

func TestParseEnvironment(t *testing.T) {
	secret, err := hex.DecodeString(hexSecret)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		env  []string
		want Environment
	}{
		{
			"all",
			[]string{"SLUICE_RANK=2", "SLUICE_SIZE=4", "SLUICE_SERVER=[::1]:4711", "SLUICE_JOB=j", "SLUICE_SECRET=" + hexSecret, "SLUICE_LOCAL_RANK=1", "SLUICE_LOCAL_SIZE=2"},
			Environment{Rank: 2, Size: 4, Server: "[::1]:4711", Job: "j", Secret: secret, LocalRank: 1, LocalSize: 2},
		},
		{
			"insecure, host name, not local",
			[]string{"SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_SERVER=head.cluster:1", "SLUICE_INSECURE=1"},
			Environment{Size: 2, Server: "head.cluster:1", Insecure: true, LocalRank: -1},
		},
		{
			"a secret goes before insecure",
			[]string{"SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_SERVER=127.0.0.1:65535", "SLUICE_INSECURE=1", "SLUICE_SECRET=" + hexSecret},
			Environment{Size: 2, Server: "127.0.0.1:65535", Secret: secret, LocalRank: -1},
		},
		{
			"one rank needs nothing else",
			[]string{"SLUICE_RANK=0", "SLUICE_SIZE=1"},
			Environment{Size: 1, LocalRank: -1},
		},
	} {
		e, found, err := parseEnvironment(variables(c.env...))
		require.NoError(t, err, c.name)
		require.True(t, found, c.name)
		require.Equal(t, c.want, e, c.name)
		// And back, except what need not be there.
		back, found, err := parseEnvironment(variables(e.Environ()...))
		if c.want.Size > 1 {
			require.NoError(t, err, c.name)
			require.True(t, found, c.name)
			require.Equal(t, e, back, c.name)
		}
	}
	_, found, err := parseEnvironment(variables("SLUICE_SECRET="+hexSecret, "SLUICE_RANK="))
	require.NoError(t, err)
	require.False(t, found, "a secret alone is no job, and an empty variable is none")
}

func TestBadEnvironment(t *testing.T) {
	good := []string{"SLUICE_RANK=1", "SLUICE_SIZE=2", "SLUICE_SERVER=127.0.0.1:1", "SLUICE_SECRET=" + hexSecret}
	for _, c := range []struct {
		set   string // NAME=value on top of good
		value string // in the error
		says  string
	}{
		{"SLUICE_RANK=", "", "not set"},
		{"SLUICE_RANK=one", "one", "not a number"},
		{"SLUICE_RANK=-1", "-1", "want 0 to 1"},
		{"SLUICE_RANK=2", "2", "must be below SLUICE_SIZE=2: want 0 to 1"},
		{"SLUICE_SIZE=", "", "not set"},
		{"SLUICE_SIZE=0", "0", "want 1 to"},
		{"SLUICE_SIZE=1048577", "1048577", "want 1 to 1048576"},
		{"SLUICE_SIZE=99999999999999999999", "99999999999999999999", "not a number"},
		{"SLUICE_SERVER=", "", "not set"},
		{"SLUICE_SERVER=host", "host", "missing port"},
		{"SLUICE_SERVER=::1:80", "::1:80", "too many colons"},
		{"SLUICE_SERVER=:80", ":80", "no host before the port"},
		{"SLUICE_SERVER=host:0", "host:0", `port "0"`},
		{"SLUICE_SERVER=host:65536", "host:65536", `port "65536"`},
		{"SLUICE_SERVER=host:http", "host:http", `port "http"`},
		{"SLUICE_JOB=" + strings.Repeat("j", 65), strings.Repeat("j", 65), "65 bytes, the most is 64"},
		{"SLUICE_SECRET=", "", "not set: set SLUICE_SECRET or SLUICE_SECRET_FILE"},
		{"SLUICE_SECRET=xyz", "", "not hexadecimal"},
		{"SLUICE_SECRET=00", "", "1 bytes, want 16 to 512"},
		{"SLUICE_SECRET_FILE=/x", "/x", "SLUICE_SECRET is also set: set only one of the two"},
		{"SLUICE_INSECURE=yes", "yes", "want 1 or 0"},
		{"SLUICE_LOCAL_RANK=0", "", "not set, although SLUICE_LOCAL_RANK is: set both or neither"},
		{"SLUICE_LOCAL_SIZE=1", "", "not set, although SLUICE_LOCAL_SIZE is: set both or neither"},
		{"SLUICE_LOCAL_SIZE=3 SLUICE_LOCAL_RANK=0", "3", "want 1 to 2"},
		{"SLUICE_LOCAL_RANK=1 SLUICE_LOCAL_SIZE=1", "1", "must be below SLUICE_LOCAL_SIZE=1: want 0"},
	} {
		name, _, _ := strings.Cut(c.set, "=")
		_, _, err := parseEnvironment(variables(append(good[:len(good):len(good)], strings.Split(c.set, " ")...)...))
		var e *EnvError
		require.ErrorAs(t, err, &e, c.set)
		switch c.set {
		case "SLUICE_LOCAL_RANK=0":
			name = EnvLocalSize
		case "SLUICE_LOCAL_SIZE=1":
			name = EnvLocalRank
		}
		require.Equal(t, name, e.Name, c.set)
		require.Equal(t, c.value, e.Value, c.set)
		require.ErrorContains(t, err, c.says, c.set)
		require.ErrorContains(t, err, name, c.set)
	}
	_, _, err := parseEnvironment(variables("SLUICE_RANK=1"))
	require.ErrorIs(t, err, errNotSet)
	// What a secret is must not appear anywhere.
	_, _, err = parseEnvironment(variables(append(good[:3:3], "SLUICE_SECRET=zz"+hexSecret)...))
	require.NotContains(t, err.Error(), "zz")
}

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	read := func(path string) ([]byte, error) {
		e, _, err := parseEnvironment(variables("SLUICE_RANK=0", "SLUICE_SIZE=2", "SLUICE_SERVER=h:1", "SLUICE_SECRET_FILE="+path))
		return e.Secret, err
	}
	secret, err := read(write("good", hexSecret+"\n", 0o600))
	require.NoError(t, err)
	require.Equal(t, hexSecret, hex.EncodeToString(secret))

	cases := []struct{ path, says string }{
		{filepath.Join(dir, "none"), "no such file"},
		{dir, "not a regular file"},
		{write("short", "00\n", 0o600), "1 bytes, want 16 to 512"},
		{write("long", strings.Repeat("0", 2000), 0o600), "more than 1026 bytes"},
		{write("text", "correct horse battery staple", 0o600), "not hexadecimal"},
	}
	if runtime.GOOS != "windows" {
		cases = append(cases, struct{ path, says string }{write("open", hexSecret, 0o640), "mode 0640, want 0600"})
	}
	for _, c := range cases {
		_, err := read(c.path)
		var e *EnvError
		require.ErrorAs(t, err, &e, c.path)
		require.Equal(t, EnvSecretFile, e.Name)
		require.Equal(t, c.path, e.Value)
		require.ErrorContains(t, err, c.says)
		require.Equal(t, 1, strings.Count(err.Error(), c.path), err)
	}
}

func TestVariables(t *testing.T) {
	listed := make(map[string]bool)
	for _, v := range Variables() {
		require.NotEmpty(t, v.Meaning, v.Name)
		listed[v.Name] = true
	}
	for _, v := range ForeignVariables() {
		require.NotEmpty(t, v.Meaning, v.Name)
		require.NotContains(t, listed, v.Name)
		listed[v.Name] = true
	}
	// joinFrom asks for those and for no others, in an environment where it
	// has a reason to ask for all of them.
	asked := make(map[string]bool)
	for _, environment := range [][]string{
		{"SLUICE_RANK=0", "SLUICE_SIZE=1", "SLUICE_LOCAL_RANK=0", "SLUICE_LOCAL_SIZE=1"},
		{"PMI_FD=x", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "SLUICE_INSECURE=1", "SLUICE_PMIX=none"},
		{"PMI_FD=x"},
		{"PMI_PORT=127.0.0.1:1", "PMI_ID=x"},
		{"PMIX_RANK=0", "PMIX_NAMESPACE=x", "SLUICE_PMIX=none", "SLURM_STEP_ID=0", "SLURM_PROCID=0"},
		{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=1(x2)",
			"SLURM_STEP_NODELIST=a,b", "SLURMD_NODENAME=b", "SLUICE_INSECURE=1"},
		{"JOB_COMPLETION_INDEX=0"},
		{"SLUICE_IMPI_SERVER=127.0.0.1", "SLUICE_RANK=0", "SLUICE_INSECURE=1"},
	} {
		lookup := variables(environment...)
		j, err := joinFrom(ranks.Within(t), func(name string) (string, bool) {
			asked[name] = true
			return lookup(name)
		})
		if err == nil {
			require.NoError(t, j.Close())
		}
	}
	// Hydra's are asked for once it has been talked to.
	delete(listed, envHydraLocal)
	delete(listed, envHydraLocals)
	listed[EnvSame] = true        // internal/variable has it: 'sluice run' leaves it to its ranks
	listed[reach.EnvPorts] = true // one that all listeners heed; under Slurm the other ranks must know the port
	require.Equal(t, listed, asked)
}

// TestWithEnvironment: a context describes the rank, whatever the environment says, and the rank is
// checked like that of Environment.Join.
func TestWithEnvironment(t *testing.T) {
	t.Setenv(EnvRank, "no number")
	job, err := Join(WithEnvironment(t.Context(), Environment{Size: 1, Job: "mine"}))
	require.NoError(t, err)
	require.Equal(t, "mine", job.ID())
	require.Equal(t, 1, job.Size())
	require.NoError(t, job.Close())
	_, err = Join(WithEnvironment(t.Context(), Environment{Size: 1, Rank: 1}))
	require.ErrorIs(t, err, ErrOptions)
	_, err = Join(t.Context())
	var bad *EnvError
	require.ErrorAs(t, err, &bad)
}
