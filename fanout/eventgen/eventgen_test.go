package eventgen_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/eventgen"
	"github.com/sluice-hpc/sluice/fanout/ring"
)

func write(t testing.TB, c eventgen.Config) ([]byte, eventgen.Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := eventgen.Write(t.Context(), &b, c, false)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), s.Bytes)
	return b.Bytes(), s
}

// TestWrite reads the written file, and compares it with its Config.
func TestWrite(t *testing.T) {
	for _, c := range []eventgen.Config{
		{},
		{Events: 1, Version: ring.V11},
		{Events: 500, Sources: 3, FirstSource: 5, ScalerEvery: 7, NullEvery: 11, Extension: 5, Size: eventgen.Uniform(8, 60), Seed: 1},
		{Events: 300, Size: eventgen.Exponential(100), Rate: 2e6, Run: 77},
		{Events: 300, Size: eventgen.Fixed(99)},
	} {
		b, s := write(t, c)
		require.EqualValues(t, -1, s.Damaged)
		version := c.Version
		if version == 0 {
			version = ring.V12
		}
		rd := ring.NewReader(bytes.NewReader(b), 0)
		counts := map[ring.Type]int{}
		sources := map[uint32]int{}
		var last uint64
		nulls, items := 0, 0
		for {
			var it ring.Item
			raw, err := rd.Next(&it)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.Equal(t, raw, it.Append(nil, version))
			switch {
			case items == 0:
				f, err := ring.ParseFormat(it.Body)
				require.NoError(t, err)
				require.EqualValues(t, version, f.Major)
			case it.Type == ring.BeginRun || it.Type == ring.EndRun:
				change, err := ring.ParseStateChange(it.Body, version)
				require.NoError(t, err)
				require.Equal(t, c.Run, change.Run)
			case it.Type == ring.PhysicsEvent:
				require.EqualValues(t, counts[ring.PhysicsEvent], binary.LittleEndian.Uint64(it.Body))
				require.Len(t, it.Header.Extension, c.Extension)
				sources[it.Header.SourceID]++
				if it.Header.Timestamp == ring.NullTimestamp {
					nulls++
				} else {
					require.GreaterOrEqual(t, it.Header.Timestamp, last)
					last = it.Header.Timestamp
				}
			}
			counts[it.Type]++
			items++
		}
		require.EqualValues(t, s.Items, items)
		require.Equal(t, c.Events, counts[ring.PhysicsEvent])
		require.Equal(t, 1, counts[ring.RingFormat])
		require.Equal(t, 1, counts[ring.BeginRun])
		require.Equal(t, 1, counts[ring.EndRun])
		if c.ScalerEvery > 0 {
			require.Equal(t, c.Events/c.ScalerEvery, counts[ring.PeriodicScalers])
			require.Equal(t, c.Events/c.NullEvery, nulls)
		}
		if c.Events > 1 {
			require.Len(t, sources, max(1, c.Sources))
			for id := range sources {
				require.GreaterOrEqual(t, id, c.FirstSource)
			}
			// The mean distance is 1/rate; so many events are within a fifth of it.
			rate := c.Rate
			if rate == 0 {
				rate = eventgen.DefaultRate
			}
			require.InEpsilon(t, float64(c.Events)/rate*1e9, float64(last), 0.2)
		}
	}
}

// TestDeterministic: the same bytes today, tomorrow and elsewhere.
func TestDeterministic(t *testing.T) {
	c := eventgen.Config{Events: 1000, Sources: 4, Size: eventgen.Exponential(50), Seed: 42, ScalerEvery: 10, NullEvery: 13, Extension: 3}
	b, _ := write(t, c)
	again, _ := write(t, c)
	require.True(t, bytes.Equal(b, again))
	sum := sha256.Sum256(b)
	require.Equal(t, "ea2c6b663f1333b33ed4706ff275a387e04c8502c8f93bd83f2aa237730ad984", hex.EncodeToString(sum[:]))
	c.Seed++
	other, _ := write(t, c)
	require.False(t, bytes.Equal(b, other))
}

// TestDamage: a Reader returns the items before the damage, and the expected error.
func TestDamage(t *testing.T) {
	whole, _ := write(t, eventgen.Config{Events: 20})
	for damage, want := range map[eventgen.Damage]error{
		eventgen.Cut: ring.ErrTruncated, eventgen.TooSmall: ring.ErrTooSmall,
		eventgen.TooLarge: ring.ErrTooLarge, eventgen.LyingHeader: ring.ErrBodyHeader,
	} {
		for item := range 24 {
			b, s := write(t, eventgen.Config{Events: 20, Damage: damage, DamageItem: item})
			rd := ring.NewReader(bytes.NewReader(b), 0)
			n := 0
			var err error
			for err == nil {
				if _, err = rd.Next(new(ring.Item)); err == nil {
					n++
				}
			}
			if item == 23 { // one that there is not
				require.Equal(t, whole, b)
				require.EqualValues(t, -1, s.Damaged)
				require.Equal(t, io.EOF, err)
				continue
			}
			require.Equal(t, item, n)
			require.ErrorIs(t, err, want)
			require.Equal(t, s.Damaged, err.(*ring.DamageError).Offset)
			require.Equal(t, whole[:s.Damaged], b[:s.Damaged])
		}
	}
}

// TestPaced: at one event a second the last of 50 is written when its time has come.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := eventgen.Config{Events: 50, Rate: 1}
		var slow, fast bytes.Buffer
		start := time.Now()
		_, err := eventgen.Write(t.Context(), &slow, c, true)
		require.NoError(t, err)
		took := time.Since(start)
		_, err = eventgen.Write(t.Context(), &fast, c, false)
		require.NoError(t, err)
		require.Equal(t, took, time.Since(start))
		require.Equal(t, fast.Bytes(), slow.Bytes())
		var last uint64
		rd := ring.NewReader(&fast, 0)
		for {
			var it ring.Item
			if _, err := rd.Next(&it); err != nil {
				break
			}
			last = max(last, it.Header.Timestamp)
		}
		require.Equal(t, time.Duration(last), took)

		ctx, cancel := context.WithTimeout(t.Context(), took/2)
		defer cancel()
		_, err = eventgen.Write(ctx, io.Discard, c, true)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestErrors(t *testing.T) {
	for _, c := range []eventgen.Config{
		{Version: 10}, {Events: -1}, {Sources: -1}, {Sources: 2, FirstSource: 1<<32 - 1}, {Rate: -1}, {Rate: 1e13},
		{Extension: 9 << 20}, {Damage: 5}, {Size: eventgen.Fixed(7)}, {Size: eventgen.Uniform(9, 8)}, {Size: eventgen.Exponential(1 << 20)},
	} {
		_, err := eventgen.New(c)
		require.ErrorIs(t, err, eventgen.ErrConfig, "%+v", c)
	}
	full := errors.New("full")
	_, err := eventgen.Write(t.Context(), failing{full}, eventgen.Config{Events: 10_000}, false)
	require.ErrorIs(t, err, full)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = eventgen.Write(ctx, io.Discard, eventgen.Config{}, false)
	require.ErrorIs(t, err, context.Canceled)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestSize(t *testing.T) {
	for _, text := range []string{"256", "8", "64:4096", "exp:1024"} {
		var s eventgen.Size
		require.NoError(t, s.Set(text))
		require.Equal(t, text, s.String())
	}
	require.Equal(t, "256", eventgen.Size{}.String())
	for _, text := range []string{"", "x", "7", "1:2", "9:8", "exp:", "exp:x", "8:", ":8", "8:9:10", "9000000"} {
		var s eventgen.Size
		require.ErrorIs(t, s.Set(text), eventgen.ErrConfig, text)
		require.Equal(t, eventgen.Size{}, s)
	}
	require.Equal(t, []string{"none", "cut", "small", "large", "header"}, eventgen.DamageNames())
	require.Equal(t, "damage 9", eventgen.Damage(9).String())
}

// BenchmarkWrite makes a file of 10000 events of 256 bytes.
func BenchmarkWrite(b *testing.B) {
	c := eventgen.Config{Events: 10_000}
	_, s := write(b, c)
	b.SetBytes(s.Bytes)
	for b.Loop() {
		write(b, c)
	}
}
