//go:build unix

package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseHosts(t *testing.T) {
	for text, want := range map[string][]Host{
		"a":                 {{Name: "a", Slots: 1}},
		"a:4,b:4":           {{Name: "a", Slots: 4}, {Name: "b", Slots: 4}},
		"a,b,a:3":           {{Name: "a", Slots: 4}, {Name: "b", Slots: 1}},
		"me@a.example:2":    {{Name: "me@a.example", Slots: 2}},
		"10.0.0.1:65536":    {{Name: "10.0.0.1", Slots: 65536}},
		"[fd00::2]:3,[::1]": {{Name: "fd00::2", Slots: 3}, {Name: "::1", Slots: 1}},
		"me@[fd00::2]:3":    {{Name: "me@fd00::2", Slots: 3}},
		"[fe80::1%eth0]":    {{Name: "fe80::1%eth0", Slots: 1}},
	} {
		got, err := ParseHosts(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "a,", "a:0", "a:-1", "a:65537", "a:x", "a:", "-oProxyCommand=x", "a b", "a;b", "$(a)", "'a'", "[::1", "[::1]x", "[-x]", strings.Repeat("a", 301),
	} {
		_, err := ParseHosts(text)
		require.ErrorIs(t, err, ErrHost, text)
	}
}

func TestReadHosts(t *testing.T) {
	list, err := ReadHosts(strings.NewReader(`# the cluster
		a slots=4
		b slots = 2 max_slots=8   # old

		c:3
		d
		a slots=1
	`))
	require.NoError(t, err)
	require.Equal(t, []Host{{Name: "a", Slots: 5}, {Name: "b", Slots: 2}, {Name: "c", Slots: 3}, {Name: "d", Slots: 1}}, list)
	for _, text := range []string{"", "# none", "a slots=0", "a slots", "a cores=3", "-x", "a slots=1 -oX"} {
		_, err := ReadHosts(strings.NewReader(text))
		require.ErrorIs(t, err, ErrHost, text)
	}
	_, err = ReadHosts(strings.NewReader("a\nb c"))
	require.ErrorContains(t, err, "line 2:")
}

// FuzzHosts: no name that is accepted is an option of ssh, or more than one word of a shell.
func FuzzHosts(f *testing.F) {
	f.Add("a:4,[::1]:2,me@[fd00::1]")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseHosts(s)
		if err != nil {
			return
		}
		for _, h := range list {
			require.NotEmpty(t, h.Name)
			require.NotEqual(t, '-', rune(h.Name[0]))
			require.NotRegexp(t, `[^-A-Za-z0-9._@:%]`, h.Name)
			require.Positive(t, h.Slots)
		}
	})
}

// Every rank is on one host; hosts get no more than they have slots while there are some.
func TestDeal(t *testing.T) {
	hosts := []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 1}, {Name: "c", Slots: 3}}
	for _, c := range []struct {
		byNode bool
		size   int
		want   [][]int
	}{
		{false, 6, [][]int{{0, 1}, {2}, {3, 4, 5}}},
		{false, 2, [][]int{{0, 1}, nil, nil}},
		{false, 8, [][]int{{0, 1, 6}, {2, 7}, {3, 4, 5}}},
		{true, 6, [][]int{{0, 3}, {1}, {2, 4, 5}}},
		{true, 2, [][]int{{0}, {1}, nil}},
		{true, 8, [][]int{{0, 3, 6}, {1, 7}, {2, 4, 5}}},
	} {
		h := &Hosts{List: hosts, ByNode: c.byNode}
		require.Equal(t, c.want, h.deal(c.size))
	}
	require.NoError(t, (&Hosts{List: hosts}).check(6, false))
	require.ErrorContains(t, (&Hosts{List: hosts}).check(7, false), "7 ranks for 6 slots on 3 hosts")
	require.NoError(t, (&Hosts{List: hosts}).check(7, true))
	require.ErrorIs(t, (&Hosts{List: []Host{{Name: "-x", Slots: 1}}}).check(1, false), ErrHost)
	require.ErrorIs(t, (&Hosts{}).check(1, false), ErrHost)
}
