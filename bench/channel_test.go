package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

func TestChannel(t *testing.T) {
	need.Full(t)
	for _, c := range []struct {
		name    string
		args    []string
		pattern string
		want    []string // memory, axis and bytes
		mode    string
	}{
		{"lat", []string{"channel", "lat", "--sizes", "0,8,64,64k,1M"}, patternLat,
			[]string{"alloc 0", "alloc 8", "alloc 64", "alloc 65536", "alloc 1048576"}, modeEach},
		{"lat batch, both memories", []string{"channel", "lat", "--sizes", "8,64k", "--batch", "--memory", "alloc,heap"}, patternLat,
			[]string{"alloc 8", "alloc 65536", "heap 8", "heap 65536"}, modeBatch},
		{"lat rounds", []string{"channel", "lat", "--sizes", "8,5k", "--rounds", "3"}, patternLat, []string{"alloc 8", "alloc 5120"}, modeEach},
		{"bw", []string{"channel", "bw", "--sizes", "1,64k,1M"}, patternBW, []string{"alloc 1", "alloc 65536", "alloc 1048576"}, modeBatch},
		{"bw heap, window of 1", []string{"channel", "bw", "--sizes", "64k", "--window", "1", "--memory", "heap"}, patternBW, []string{"heap 65536"}, modeBatch},
		{"bw, more handles than slots", []string{"channel", "bw", "--sizes", "8,8k", "--window", "200"}, patternBW, []string{"alloc 8", "alloc 8192"}, modeBatch},
		{"lat of blocks", []string{"channel", "lat", "--sizes", "4k,64k", "--blocks", "256,4k", "--memory", "alloc,heap"}, patternLat,
			[]string{"alloc 4096", "alloc 65536", "alloc 4096", "alloc 65536", "heap 4096", "heap 65536", "heap 4096", "heap 65536"}, modeEach},
		{"lat of blocks to one piece, late", []string{"channel", "lat", "--sizes", "64k", "--blocks", "256,16k", "--packed", "--late"}, patternLat, []string{"alloc 65536", "alloc 65536"}, modeEach},
		{"lat late", []string{"channel", "lat", "--sizes", "0,8,64k", "--late", "--memory", "heap"}, patternLat, []string{"heap 0", "heap 8", "heap 65536"}, modeEach},
		{"bw of blocks to one piece", []string{"channel", "bw", "--sizes", "64k", "--blocks", "1k", "--packed"}, patternBW, []string{"alloc 65536"}, modeBatch},
		{"bw of blocks", []string{"channel", "bw", "--sizes", "64k", "--blocks", "1k"}, patternBW, []string{"alloc 65536"}, modeBatch},
		{"bibw", []string{"channel", "bibw", "--sizes", "8,64k", "--window", "7"}, patternBiBW, []string{"alloc 8", "alloc 65536"}, modeBatch},
		{"rate", []string{"channel", "rate", "--sizes", "0,8", "--iters", "5000"}, patternRate, []string{"alloc 0", "alloc 8"}, modeBatch},
		{"halo", []string{"halo"}, patternHalo,
			[]string{"alloc x 1572864", "alloc y 1572864", "alloc z 1572864", "alloc t 1572864", "alloc all 6291456"}, modeBatch},
		{"halo strided", []string{"halo", "--halo", "strided", "--axis", "x,all", "--rounds", "2"}, patternHalo,
			[]string{"alloc x 1572864", "alloc all 6291456"}, modeBatch},
		{"halo heap, three ranks", []string{"halo", "--ranks", "3", "--axis", "y", "--memory", "heap"}, patternHalo, []string{"heap y 1572864"}, modeBatch},
		{"ring", []string{"ring", "--ranks", "3"}, patternRing, []string{"alloc 8"}, modeEach},
		{"ring batch", []string{"ring", "--ranks", "2", "--batch", "--sizes", "8,64"}, patternRing, []string{"alloc 8", "alloc 64"}, modeBatch},
		{"local", []string{"local", "--sizes", "8,64k", "--memory", "alloc,heap"}, patternLocal,
			[]string{"alloc 8", "alloc 65536", "heap 8", "heap 65536"}, modeEach},
	} {
		over := providers(t)
		if c.pattern == patternLocal {
			over = []string{providerSelf}
		}
		for _, provider := range over {
			t.Run(provider+" "+c.name, func(t *testing.T) {
				args := append(append(slices.Clone(c.args), "--json"), tiny...)
				if provider != providerSelf {
					args = append(args, "--provider", provider)
				}
				r := decode(t, output(t, args...))
				require.NotEmpty(t, r.Environment.Ranks)
				if provider != providerSelf {
					require.NotEmpty(t, r.Environment.Devices)
					require.Equal(t, provider, r.Environment.Devices[0].Provider)
					require.Positive(t, r.Environment.Devices[0].MTU)
				}
				var got []string
				for _, v := range r.Results {
					require.Equal(t, c.pattern, v.Pattern)
					require.Equal(t, layerChannel, v.Layer)
					require.Equal(t, provider, v.Provider)
					require.Equal(t, peerSluice, v.Peer)
					require.Equal(t, c.mode, v.Mode)
					require.True(t, v.Verified)
					require.NotNil(t, v.AllocsPerMessage)
					require.Positive(t, v.P50)
					what := v.Op + " "
					if v.Axis != "" {
						what += v.Axis + " "
						require.Len(t, r.Environment.Ranks, int(v.Ranks))
					}
					got = append(got, what+strconv.FormatInt(v.Bytes, 10))
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

func TestChannelTable(t *testing.T) {
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"channel", "lat", "--sizes", "8", "--provider", "tcp"}, []string{"tcp channel lat, alloc: half a round trip", "p99.9"}},
		{[]string{"channel", "rate", "--sizes", "8", "--provider", "tcp"}, []string{"tcp channel rate, alloc, up to 64 outstanding: one way", "msg/s"}},
		{[]string{"halo", "--axis", "t,all", "--provider", "tcp"}, []string{"tcp channel halo, alloc, 2 ranks, received packed: that each rank sends", "axis", "s  ", "1536k", " all "}},
		{[]string{"ring", "--ranks", "3", "--provider", "tcp"}, []string{"tcp channel ring, alloc, 3 ranks: a hop"}},
		{[]string{"local", "--batch"}, []string{"a start and a successful test", "means of batches"}},
	} {
		out := string(output(t, append(c.args, tiny...)...))
		for _, part := range c.parts {
			require.Contains(t, out, part)
		}
	}
}

// Ranks of a job that is there already are as many as it has.
func TestChannelInJob(t *testing.T) {
	r, out := inJob(t, 3, append([]string{os.Args[0], "ring", "--json"}, tiny...)...)
	require.Zero(t, r.ExitStatus(), out)
	require.EqualValues(t, 3, decode(t, []byte(out)).Results[0].Ranks)
	for _, c := range []struct {
		size    int
		command string
		says    string
	}{
		{1, "ring", "between at least 2 ranks, but the job has 1"},
		{3, "channel lat", "between 2 ranks, but the job has 3"},
		{2, "local", "within one rank, but the job has 2"},
	} {
		r, out := inJob(t, c.size, append([]string{os.Args[0]}, strings.Fields(c.command)...)...)
		require.Equal(t, exitFailed, r.ExitStatus(), c.command)
		require.Contains(t, out, c.says)
	}
}

// The faces of an axis are 16^3 sites each, disjoint, and at the places where a
// lattice with x fastest has them.
func TestFace(t *testing.T) {
	t.Parallel()
	field := make([]byte, fieldBytes)
	for i, blocks := range []int{4096, 256, 16, 1} {
		for _, at := range []int{0, latticeSide - 1} {
			l := face(field, i, at)
			require.NoError(t, l.Err())
			require.Equal(t, faceBytes, l.Len())
			require.Equal(t, blocks, l.Blocks())
		}
	}
	fillPattern(field, 1)
	packed := make([]byte, faceBytes+guard)
	copyFace(packed, field, haloFace{axis: 1, at: 15, packed: true})
	for site := range latticeSide * latticeSide * latticeSide {
		x, z, u := site%16, site/16%16, site/256
		from := (((u*16+z)*16+15)*16 + x) * siteBytes
		require.Equal(t, field[from:from+siteBytes], packed[site*siteBytes:][:siteBytes])
	}
	strided := make([]byte, fieldBytes)
	copyFace(strided, field, haloFace{axis: 0, at: 0})
	require.Equal(t, field[16*siteBytes:17*siteBytes], strided[16*siteBytes:17*siteBytes])
	require.Equal(t, make([]byte, 15*siteBytes), strided[siteBytes:16*siteBytes])
}

// What is checked after an exchange: every byte of the faces, and around them.
func TestHaloCheck(t *testing.T) {
	need.Full(t)
	t.Parallel()
	need.NoRace(t, "one goroutine checks memory, and is slow")
	for _, halo := range []string{haloPacked, haloStrided} {
		s := haloExchange{spec: spec{op: memoryAlloc, axis: axisAll, halo: halo}}
		theirs := make([]byte, fieldBytes)
		var shared []byte
		for _, axis := range axesOf(axisAll) {
			for _, from := range []int{1, 2} {
				f := haloFace{axis: axis, at: (from - 1) * (latticeSide - 1), from: from, packed: halo == haloPacked}
				if f.packed {
					f.into = make([]byte, faceBytes+guard)
					fillGuard(f.into)
				} else {
					if from == 1 {
						shared = make([]byte, fieldBytes)
						fillGuard(shared)
					}
					f.into = shared
				}
				fillPattern(theirs, s.seed(from))
				copyFace(f.into, theirs, f)
				s.faces = append(s.faces, f)
			}
		}
		require.NoError(t, try(s.check), halo)
		for i, f := range s.faces {
			for _, at := range []int{0, faceBytes - 1, len(f.into) - 1} {
				f.into[at] ^= 1
				var corrupt *CorruptError
				require.ErrorAs(t, try(s.check), &corrupt, "%s, face %d", halo, i)
				require.Equal(t, at, corrupt.Offset)
				f.into[at] ^= 1
			}
		}
	}
}
