package qmp

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/jobtest"
)

// TestArguments: our options are found and removed wherever they are.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		in   string
		want arguments
		rest string
		err  string
	}{
		{in: "p", rest: "p"},
		{in: "p a -b 3", rest: "p a -b 3"},
		{in: "p -qmp-geom 2 2 4 8", want: arguments{geom: []int{2, 2, 4, 8}}, rest: "p"},
		{in: "p a -qmp-geom 2 2 -qmp-alloc-map 1 0 b -qmp-logic-map 0 1 -c -qmp-job 1 2 d", want: arguments{geom: []int{2, 2}, allocMap: []int{1, 0}, logicMap: []int{0, 1}, job: []int{1, 2}}, rest: "p a b -c d"},
		{in: "p -qmp-geom native 4 a", want: arguments{geom: []int{}}, rest: "p 4 a"},
		{in: "p -qmp-geom 4 -- -qmp-geom 3", want: arguments{geom: []int{4}}, rest: "p -- -qmp-geom 3"},
		{in: "p -qmp-geom 4 -2", want: arguments{geom: []int{4}}, rest: "p -2"},
		{in: "-qmp-geom 4", rest: "-qmp-geom 4"}, // the name of the program
		{in: "p -qmp-geom", err: "option -qmp-geom needs at least one number"},
		{in: "p -qmp-job native", err: "option -qmp-job needs at least one number"},
		{in: "p -qmp-geom 4x4", err: `option -qmp-geom: "4x4" is not a number`},
		{in: "p -qmp-geom 99999999999999999999", err: `option -qmp-geom: "99999999999999999999" is not a number`},
		{in: "p -qmp-geom 2 -qmp-geom 2", err: "option -qmp-geom is given twice"},
		{in: "p -qmp-geometry 2", err: "unknown option -qmp-geometry: the options are -qmp-geom, -qmp-alloc-map, -qmp-logic-map and -qmp-job"},
	} {
		args := strings.Fields(c.in)
		got, rest, err := parseArguments(&args)
		if c.err != "" {
			require.EqualError(t, err, c.err, c.in)
			continue
		}
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got, c.in)
		require.Equal(t, strings.Fields(c.rest), rest, c.in)
	}
	_, rest, err := parseArguments(nil)
	require.NoError(t, err)
	require.Nil(t, rest)
}

// TestArgumentErrors: Init says which option does not fit the nodes, and leaves the
// arguments as they are.
func TestArgumentErrors(t *testing.T) {
	jobtest.Alone(t)
	for in, want := range map[string]struct {
		status Status
		says   string
	}{
		"-qmp-geom 2 2":                {StatusInvalidTopology, "-qmp-geom: invalid declared topology: a grid of [2 2] does not have 1 nodes"},
		"-qmp-geom 0":                  {StatusInvalidTopology, "axis 0 has 0 nodes"},
		"-qmp-alloc-map 0":             {StatusInvalidTopology, "it needs -qmp-geom"},
		"-qmp-geom 1 -qmp-alloc-map 1": {StatusInvalidTopology, "the map [1] is not a permutation of the axes"},
		"-qmp-job 2":                   {StatusInvalidTopology, "[2] jobs in a machine of [1]"},
		"-qmp-job 0":                   {StatusInvalidTopology, "[0] jobs in a machine of [1]"},
		"-qmp-job 1 1":                 {StatusInvalidTopology, "[1 1] jobs in a machine of [1]"},
		"-qmp-nothing":                 {StatusInvalidArg, "option -qmp-nothing"},
	} {
		args := append([]string{"p"}, strings.Fields(in)...)
		before := slices.Clone(args)
		_, err := Init(&args, ThreadSingle)
		status(t, want.status, err)
		require.ErrorContains(t, err, want.says)
		require.Equal(t, before, args)
		require.False(t, IsInitialized())
	}
	_, err := Init(nil, ThreadMultiple+1)
	status(t, StatusInvalidArg, err)
}

// FuzzArguments: what is ours goes, what is not stays in its order, and nothing panics.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"p -qmp-geom 2 2 a", "p -qmp-geom native", "p -qmp-job", "p -- -qmp-geom", "-qmp-geom", "p -qmp-logic-map 1 0 -x 3 -qmp-alloc-map 0 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		args := strings.Split(s, " ")
		before := slices.Clone(args)
		a, rest, err := parseArguments(&args)
		require.Equal(t, before, args)
		if err != nil {
			return
		}
		require.Equal(t, before[0], rest[0])
		numbers := 0
		for _, list := range [][]int{a.geom, a.allocMap, a.logicMap, a.job} {
			numbers += len(list)
			for _, n := range list {
				require.GreaterOrEqual(t, n, 0)
			}
			if list != nil {
				numbers++
			}
		}
		if a.geom != nil && len(a.geom) == 0 {
			numbers++ // the word native
		}
		require.Equal(t, len(before), numbers+len(rest))
		i := 0
		for _, r := range rest { // a subsequence
			for before[i] != r {
				i++
			}
			i++
		}
		for k, r := range rest {
			if r == "--" && k > 0 {
				break
			}
			require.False(t, k > 0 && strings.HasPrefix(r, "-qmp-"), "%q", rest)
		}
	})
}
