package coll

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func environment(pairs ...string) func(string) string {
	values := map[string]string{}
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

// TestSettingsDefaults: nothing set, and -1, are the defaults of IMPI; the finer
// thresholds follow the first two, unless they are set themselves.
func TestSettingsDefaults(t *testing.T) {
	t.Parallel()
	d := DefaultSettings()
	require.NoError(t, d.Validate())
	require.Equal(t, 1024, d.XSize)
	require.Equal(t, 4, d.MaxLinear)

	none, err := ParseSettings(environment())
	require.NoError(t, err)
	require.Equal(t, d, none)
	all := []string{}
	for _, n := range d.numbers() {
		all = append(all, n.variable+"=-1")
	}
	minus, err := ParseSettings(environment(all...))
	require.NoError(t, err)
	require.Equal(t, d, minus)
	require.Empty(t, d.Environ())

	s, err := ParseSettings(environment("COLL_XSIZE=4096", "COLL_MAXLINEAR=0", "SLUICE_COLL_SEGMENT=100", "SLUICE_COLL_BLOCK=0",
		"SLUICE_COLL_ALGORITHM= allreduce=ring, bcast=binomial,scan=auto"))
	require.NoError(t, err)
	want := DeriveSettings(4096, 0)
	want.Segment, want.Block = 100, 0
	want.Force[Allreduce], want.Force[Broadcast] = Ring, Binomial
	require.Equal(t, want, s)
	require.Equal(t, 256*4096, s.RingBlock)

	again, err := ParseSettings(environment(s.Environ()...))
	require.NoError(t, err)
	require.Equal(t, s, again)
}

// TestDerivedSettings: whatever the two are, what is derived is valid.
func TestDerivedSettings(t *testing.T) {
	t.Parallel()
	for _, x := range []int{0, 1, 15, 1024, mostBytes - 1, mostBytes} {
		require.NoError(t, DeriveSettings(x, mostMembers).Validate(), x)
	}
}

// TestBadSettings: an error names the variable and its value.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variable, value, says string }{
		{"COLL_XSIZE", "many", "not a number"},
		{"COLL_XSIZE", "-2", "must be from 0 to 1073741824, or -1 for the default"},
		{"COLL_XSIZE", "1073741825", "must be from 0 to"},
		{"COLL_MAXLINEAR", "99999999999999999999", "not a number"},
		{"SLUICE_COLL_SEGMENT", "0", "must be from 1 to"},
		{"SLUICE_COLL_ALGORITHM", "ring", `"ring": want KIND=ALGORITHM, such as allreduce=ring`},
		{"SLUICE_COLL_ALGORITHM", "all=ring", `unknown kind "all"; choose from barrier, bcast`},
		{"SLUICE_COLL_ALGORITHM", "bcast=ring", `"ring" is not an algorithm of bcast; choose from linear, binomial, scatter-allgather, pipeline`},
		{"SLUICE_COLL_ALGORITHM", "bcast=linear,bcast=binomial", "bcast is set twice"},
		{"SLUICE_COLL_ALGORITHM", "bcast=linear,", `"": want KIND=ALGORITHM`},
	} {
		_, err := ParseSettings(environment(c.variable + "=" + c.value))
		var e *SettingError
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, ErrSettings)
		require.Equal(t, c.variable, e.Variable)
		require.Equal(t, c.value, e.Value)
		require.ErrorContains(t, err, c.says)
	}
	s := DefaultSettings()
	s.Force[Barrier] = Ring
	require.ErrorContains(t, s.Validate(), `SLUICE_COLL_ALGORITHM="barrier=ring"`)
}

// TestSettingsBinary: equal bytes are equal settings; what differs is named.
func TestSettingsBinary(t *testing.T) {
	t.Parallel()
	a, b := DefaultSettings(), DeriveSettings(2048, 8)
	b.Force[Barrier] = Binomial
	for _, s := range []Settings{a, b} {
		wire, err := s.AppendBinary([]byte("before"))
		require.NoError(t, err)
		var parsed Settings
		n, err := parsed.ParseBinary(append(wire[6:], "behind"...))
		require.NoError(t, err)
		require.Equal(t, len(wire)-6, n)
		require.Equal(t, s, parsed)
		for short := range n {
			_, err := parsed.ParseBinary(wire[6 : 6+short])
			require.ErrorIs(t, err, ErrSettings)
		}
	}
	_, err := new(Settings).ParseBinary([]byte{9})
	require.ErrorContains(t, err, "version 9, want 1")

	require.Empty(t, Diff(a, a))
	d := Diff(a, b)
	require.Contains(t, d, "COLL_XSIZE is 1024 and 2048, COLL_MAXLINEAR is 4 and 8, ")
	five := DeriveSettings(5, 4)
	require.Equal(t, "COLL_XSIZE is 1024 and 5", Diff(DefaultSettings(), five), "nothing that the user has not set")
	five.Segment++
	require.Equal(t, fmt.Sprintf("COLL_XSIZE is 1024 and 5, SLUICE_COLL_SEGMENT is 32768 and %d", five.Segment), Diff(DefaultSettings(), five))
	require.Contains(t, d, "SLUICE_COLL_ALGORITHM has barrier=auto and binomial")
}

func FuzzParseSettings(f *testing.F) {
	f.Add("1024", "4", "", "")
	f.Add("-1", "0", "65536", "allreduce=ring,bcast=binomial")
	f.Add(" 7 ", "x", "-2", "bcast=")
	f.Add("0", "1", "1", "scan=auto,reduce-scatter=recursive-halving")
	f.Fuzz(func(t *testing.T, xsize, maxLinear, segment, force string) {
		s, err := ParseSettings(func(name string) string {
			return map[string]string{EnvXSize: xsize, EnvMaxLinear: maxLinear, EnvSegment: segment, EnvAlgorithm: force}[name]
		})
		if err != nil {
			var e *SettingError
			require.ErrorAs(t, err, &e)
			return
		}
		require.NoError(t, s.Validate())
		again, err := ParseSettings(environment(s.Environ()...))
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

func FuzzSettingsBinary(f *testing.F) {
	wire, _ := DefaultSettings().AppendBinary(nil)
	f.Add(wire)
	f.Add(wire[:10])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Settings
		n, err := s.ParseBinary(b)
		if err != nil {
			require.ErrorIs(t, err, ErrSettings)
			require.Zero(t, s)
			return
		}
		require.NoError(t, s.Validate())
		again, err := s.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b[:n], again)
	})
}
