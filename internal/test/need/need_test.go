package need

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stated runs a subtest that states a need, and returns whether it went on, and the lines
// that it logged.
func stated(t *testing.T, name string, state func(t testing.TB)) (ran bool, log string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "needs")
	t.Setenv(LogVariable, path)
	t.Run(name, func(t *testing.T) {
		state(t)
		ran = true
	})
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return ran, string(text)
}

func TestLong(t *testing.T) {
	for _, test := range []struct {
		value string
		runs  bool
	}{{"", false}, {"0", false}, {"1", true}} {
		t.Run("value "+test.value, func(t *testing.T) {
			t.Setenv(LongVariable, test.value)
			ran, log := stated(t, "long", func(t testing.TB) { Long(t) })
			want, outcome := test.runs && !testing.Short(), "missing"
			if want {
				outcome = "met"
			}
			require.Equal(t, want, ran)
			require.Equal(t, "internal/test/need\t"+t.Name()+"/long\tlong tests\t"+outcome+"\n", log)
		})
	}
}

func TestByForm(t *testing.T) {
	for value, want := range map[string][]int{"": {2, 5, 7}, "0": {2, 5, 7}, "1": {3, 5, 8}} {
		t.Setenv(LongVariable, value)
		if testing.Short() {
			want = []int{1, 4, 7}
		}
		require.Equal(t, want, []int{ByForm(1, 2, 3), InShort(4, 5), InLong(7, 8)}, "value %q", value)
	}
}

// Whatever is needed: what is missing skips the test, and either outcome is logged.
func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		name  string
		state func(t testing.TB)
		runs  bool
		log   string // need and outcome
	}{
		{"probed", func(t testing.TB) { Probe(t, "the moon", nil) }, true, "the moon\tmet"},
		{"probed in vain", func(t testing.TB) { Probe(t, "the moon", errors.New("it is far")) }, false, "the moon\tmissing"},
		{"program", func(t testing.TB) { Program(t, "go") }, true, "program go\tmet"},
		{"no program", func(t testing.TB) { Program(t, "/none/carrier-pigeon") }, false, "program carrier-pigeon\tmissing"},
		{"no provider", func(t testing.TB) { Provider(t, "carrier-pigeon") }, false, "a device of provider carrier-pigeon\tmissing"},
		{"no RDMA", func(t testing.TB) { RDMA(t) }, false, "an RDMA device\tmissing"}, // this program has no provider
		{"no memory", func(t testing.TB) { Memory(t, 1<<30) }, false, "1073741824 GiB of memory\tmissing"},
		{"no files", func(t testing.TB) { Files(t, 1<<62) }, false, "4611686018427387904 open files\tmissing"},
		{"no address", func(t testing.TB) { Address(t, "192.0.2.1") }, false, "address 192.0.2.1\tmissing"},
		{"capability", func(t testing.TB) { Capability(t, "wings", true) }, true, "wings\thas"},
		{"no capability", func(t testing.TB) { Capability(t, "wings", false) }, false, "wings\tlacks"},
		{"full run", func(t testing.TB) { Full(t) }, !testing.Short(), "a run without -short\t" + map[bool]string{true: "missing", false: "met"}[testing.Short()]},
		{"race detector", func(t testing.TB) { NoRace(t, "it allocates") }, !Race, "no race detector\t" + map[bool]string{true: "missing", false: "met"}[Race]},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran, log := stated(t, "test", c.state)
			require.Equal(t, c.runs, ran)
			require.Equal(t, "internal/test/need\t"+t.Name()+"/test\t"+c.log+"\n", log)
		})
	}
}

// Root has no limits, and a user with limits is not root.
func TestUser(t *testing.T) {
	root, _ := stated(t, "root", func(t testing.TB) { Root(t) })
	user, _ := stated(t, "user", func(t testing.TB) { User(t) })
	require.False(t, root && user)
	require.Equal(t, os.Geteuid() == 0, root)
}

// No other package skips a test, or what is skipped would run nowhere unnoticed.
func TestNoOtherSkips(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "LICENSE"))
	skip := regexp.MustCompile(`\b(t|b|tb)\.Skip(f|Now)?\(`)
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasPrefix(path, filepath.Join(root, "internal", "test", "need")+string(filepath.Separator)) {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Empty(t, skip.FindString(string(text)), path)
		return nil
	}))
	require.Greater(t, files, 500)
}
