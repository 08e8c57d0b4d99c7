package ring_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/ring"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestAllocs: nothing allocates once its buffers have grown.
func TestAllocs(t *testing.T) {
	need.NoRace(t, "it allocates")
	items, _ := file(t, rand.New(rand.NewPCG(21, 22)), 20_000, 60)
	rd := ring.NewReader(bytes.NewReader(items), 0)
	w := ring.NewWriter(io.Discard, ring.V11)
	event := ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Body: make([]byte, 50)}
	raw := event.Append(nil, ring.V12)
	var it ring.Item
	var again ring.Clock
	var few []byte
	for range 10 {
		few = ring.AppendStamped(few, 1, raw)
	}
	room := make([]byte, 0, 1<<20)
	for name, do := range map[string]func() error{
		"Append": func() error { room = event.Append(room[:0], ring.V12); return nil },
		"Parse":  func() error { _, err := ring.Parse(&it, raw, 0); return err },
		"Next":   func() error { _, err := rd.Next(&it); return err },
		"Write":  func() error { return w.Write(&event) },
		"Stamp":  func() error { room = ring.AppendStamped(room[:0], again.Stamp(&event), raw); return nil },
		"Check":  func() error { _, err := ring.Check(few, 0); return err },
		"AppendStripped": func() (err error) {
			room, err = ring.AppendStripped(room[:0], few, 0)
			return err
		},
		"AppendAll": func() (err error) {
			room, _, err = ring.AppendAll(room[:0], raw, &again, 0)
			return err
		},
	} {
		require.NoError(t, do(), name)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if do() != nil {
				panic("refused")
			}
		}), name)
	}
}

func BenchmarkParse(b *testing.B) {
	event := ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Body: make([]byte, 200)}
	raw := event.Append(nil, ring.V12)
	var it ring.Item
	for b.Loop() {
		if _, err := ring.Parse(&it, raw, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReader reads a file of events of up to 400 bytes from memory.
func BenchmarkReader(b *testing.B) {
	items, _ := file(b, rand.New(rand.NewPCG(23, 24)), 10_000, 400)
	b.SetBytes(int64(len(items)))
	var it ring.Item
	for b.Loop() {
		rd := ring.NewReader(bytes.NewReader(items), 0)
		var err error
		for err == nil {
			_, err = rd.Next(&it)
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
}
