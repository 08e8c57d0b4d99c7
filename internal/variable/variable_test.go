package variable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	var names []string
	for _, s := range Sections() {
		for _, v := range s.List {
			names = append(names, v.Name)
		}
	}
	for misspelt, want := range map[string]string{
		"SLUICE_TRANSPRT":   "SLUICE_TRANSPORT",
		"SLUICE_TRANSPORTS": "SLUICE_TRANSPORT",
		"SLUICE_WIAT":       "SLUICE_WAIT",
		"COLL_XSIEZ":        "COLL_XSIZE",
		"SLUICE_COLL_XSIZE": "",
		"SLUICE_JOINTIMOUT": "SLUICE_JOIN_TIMEOUT",
		"SLUICE_PROVIDERS":  "",
		"SLUICE_":           "",
		"COLL_X":            "",
	} {
		require.Equal(t, want, Nearest(misspelt, names), misspelt)
	}
}

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"a", ""}: 1, {"ab", "ba"}: 1, {"abc", "abd"}: 1, {"abcd", "acbd"}: 1, {"kitten", "sitting"}: 3, {"abcdef", "uvwxyz"}: 5,
	} {
		require.Equal(t, want, distance(pair[0], pair[1], 5), pair)
		require.Equal(t, want, distance(pair[1], pair[0], 5), pair)
	}
}
