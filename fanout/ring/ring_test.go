package ring_test

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// TestGolden has items as they are in files: size, type, size of the body header,
// timestamp, source id, barrier, extension; body.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name     string
		item     ring.Item
		v11, v12 string
	}{
		{"RING_FORMAT, no body header",
			ring.Item{Type: ring.RingFormat, Body: ring.Format{Major: 12, Minor: 1}.Append(nil)},
			"10000000 0c000000 00000000  0c00 0100",
			"10000000 0c000000 04000000  0c00 0100"},
		{"nothing at all",
			ring.Item{Type: ring.AbnormalEndRun, Body: []byte{}},
			"0c000000 05000000 00000000",
			"0c000000 05000000 04000000"},
		{"an event",
			ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Header: ring.Header{Timestamp: 0x0123456789abcdef, SourceID: 2, Barrier: 1, Extension: []byte{}}, Body: []byte("event")},
			"21000000 1e000000 14000000 efcdab8967452301 02000000 01000000  6576656e74",
			"21000000 1e000000 14000000 efcdab8967452301 02000000 01000000  6576656e74"},
		{"the null timestamp, an extension, no body",
			ring.Item{Type: ring.FirstUserItem, HasHeader: true, Header: ring.Header{Timestamp: ring.NullTimestamp, SourceID: 0xfffffffe, Extension: []byte{1, 2, 3}}, Body: []byte{}},
			"1f000000 00800000 17000000 ffffffffffffffff feffffff 00000000 010203",
			"1f000000 00800000 17000000 ffffffffffffffff feffffff 00000000 010203"},
	} {
		for v, text := range map[ring.Version]string{ring.V11: c.v11, ring.V12: c.v12} {
			wire := unhex(t, text)
			require.EqualValues(t, len(wire), c.item.Size(), c.name)
			require.Equal(t, wire, c.item.Append(nil, v), "%s, version %v", c.name, v)
			var got ring.Item
			n, err := ring.Parse(&got, append(wire, 0xee), 0)
			require.NoError(t, err, c.name)
			require.Equal(t, len(wire), n, c.name)
			require.Equal(t, c.item, got, "%s, version %v", c.name, v)
		}
	}
}

func TestGoldenBodies(t *testing.T) {
	f, err := ring.ParseFormat(unhex(t, "0b00 0300"))
	require.NoError(t, err)
	require.Equal(t, ring.Format{Major: 11, Minor: 3}, f)
	_, err = ring.ParseFormat(make([]byte, 5))
	require.EqualError(t, err, "ring: invalid body: RING_FORMAT of 5 bytes, want 4")

	s := ring.StateChange{Run: 7, Offset: 8, Time: 0x60000000, Divisor: 1, OriginalID: 9, Title: "a run"}
	title := "612072756e" + strings.Repeat("00", 76)
	v11 := unhex(t, "07000000 08000000 00000060 01000000"+title)
	v12 := unhex(t, "07000000 08000000 00000060 01000000 09000000"+title)
	require.Equal(t, v12, s.Append(nil, ring.V12))
	require.Equal(t, v11, s.Append(nil, ring.V11))
	got, err := ring.ParseStateChange(v12, ring.V12)
	require.NoError(t, err)
	require.Equal(t, s, got)
	s.OriginalID = 0
	got, err = ring.ParseStateChange(v11, ring.V11)
	require.NoError(t, err)
	require.Equal(t, s, got)

	s.Title = strings.Repeat("x", 100)
	got, err = ring.ParseStateChange(s.Append(nil, ring.V11), ring.V11)
	require.NoError(t, err)
	require.Equal(t, s.Title[:ring.TitleLen], got.Title)
	_, err = ring.ParseStateChange(v11, ring.V12)
	require.ErrorIs(t, err, ring.ErrBody)
	for i := range v11[16:] {
		v11[16+i] = 'y'
	}
	_, err = ring.ParseStateChange(v11, ring.V11)
	require.ErrorIs(t, err, ring.ErrBody)
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name, wire string
		limit      int64
		want       ring.DamageError
		says       string
	}{
		{"nothing", "", 0, ring.DamageError{Err: ring.ErrTruncated}, "item cut off after 0 bytes"},
		{"half a size", "1000", 0, ring.DamageError{Have: 2, Err: ring.ErrTruncated}, "item cut off after 2 bytes"},
		{"size 0", "00000000", 0, ring.DamageError{Err: ring.ErrTooSmall}, "item smaller than its headers: 0 bytes"},
		{"size 11", "0b000000 01000000 00000000", 0, ring.DamageError{Size: 11, Err: ring.ErrTooSmall}, "item smaller than its headers: 11 bytes"},
		{"too large", "ffffffff", 0, ring.DamageError{Size: math.MaxUint32, Limit: ring.DefaultLimit, Err: ring.ErrTooLarge}, "item larger than the limit: 4294967295 bytes, at most 16777216"},
		{"one too large", "0d000000 01000000 00000000 00", 12, ring.DamageError{Size: 13, Limit: 12, Err: ring.ErrTooLarge}, "item larger than the limit: 13 bytes, at most 12"},
		{"no type", "0c000000 0100", 0, ring.DamageError{Size: 12, Have: 6, Err: ring.ErrTruncated}, "item cut off after 6 of 12 bytes"},
		{"half a body", "0e000000 01000000 00000000 00", 0, ring.DamageError{Size: 14, Have: 13, Err: ring.ErrTruncated}, "item cut off after 13 of 14 bytes"},
		{"body header of 1", "20000000 01000000 01000000", 0, ring.DamageError{Size: 32, Err: ring.ErrBodyHeader}, "item with a body header of invalid size: 32 bytes"},
		{"body header of 19", "20000000 01000000 13000000", 0, ring.DamageError{Size: 32, Err: ring.ErrBodyHeader}, ""},
		{"no room for the body header", "1b000000 01000000 14000000", 0, ring.DamageError{Size: 27, Err: ring.ErrTooSmall}, ""},
		{"endless body header", "1c000000 01000000 ffffffff", 0, ring.DamageError{Size: 28, Err: ring.ErrTooSmall}, ""},
	} {
		var it ring.Item
		n, err := ring.Parse(&it, unhex(t, c.wire), c.limit)
		require.Zero(t, n, c.name)
		require.Equal(t, &c.want, err, c.name)
		require.ErrorIs(t, err, c.want.Err, c.name)
		require.Equal(t, ring.Item{}, it, c.name)
		if c.says != "" {
			require.EqualError(t, err, "ring: byte 0: "+c.says)
		}
	}
}

// draw makes any item.
func draw(r *rand.Rand, most int) ring.Item {
	noise := func() []byte {
		b := make([]byte, r.IntN(most+1))
		for rest := b; len(rest) > 0; {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], r.Uint64())
			rest = rest[copy(rest, word[:]):]
		}
		return b
	}
	types := []ring.Type{ring.BeginRun, ring.EndRun, ring.RingFormat, ring.PeriodicScalers, ring.PhysicsEvent, ring.PhysicsEvent, ring.EVBFragment, ring.FirstUserItem + 9}
	it := ring.Item{Type: types[r.IntN(len(types))], HasHeader: r.IntN(4) > 0, Body: noise()}
	if it.HasHeader {
		it.Header = ring.Header{Timestamp: r.Uint64N(1 << 40), SourceID: r.Uint32(), Barrier: r.Uint32(), Extension: []byte{}}
		if r.IntN(3) == 0 {
			it.Header.Extension = noise()
		}
		if r.IntN(5) == 0 {
			it.Header.Timestamp = ring.NullTimestamp
		}
	}
	return it
}

// TestProperty: any item is read as it was written, after other bytes in the buffer, and every
// truncation of it is an error.
func TestProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		want := draw(r, 40)
		v := ring.V11 + ring.Version(r.IntN(2))
		prefix := make([]byte, r.IntN(5))
		b := want.Append(prefix, v)
		require.Equal(t, prefix, b[:len(prefix)])
		b = b[len(prefix):]
		require.EqualValues(t, want.Size(), len(b))
		var got ring.Item
		n, err := ring.Parse(&got, b, 0)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Equal(t, want, got)
		cut := r.IntN(len(b))
		_, err = ring.Parse(&got, b[:cut], 0)
		require.ErrorIs(t, err, ring.ErrTruncated)
		require.EqualValues(t, cut, err.(*ring.DamageError).Have)
	}
}

func TestAppendPanics(t *testing.T) {
	require.PanicsWithValue(t, "ring: no version 10", func() { (&ring.Item{}).Append(nil, 10) })
	require.PanicsWithValue(t, "ring: no version 13", func() { ring.NewWriter(nil, 13) })
}

func TestNames(t *testing.T) {
	require.Equal(t, "PHYSICS_EVENT", ring.PhysicsEvent.String())
	require.Equal(t, "ABNORMAL_ENDRUN", ring.AbnormalEndRun.String())
	require.Equal(t, "type 32768", ring.FirstUserItem.String())
	require.Equal(t, "12", ring.V12.String())
}

// FuzzParse: an item that Parse accepts is written again unchanged, in one version or the other,
// and the error of any other matches its bytes.
func FuzzParse(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 8 {
		it := draw(r, 9)
		f.Add(it.Append(nil, ring.V11+ring.Version(r.IntN(2))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 10
		var it ring.Item
		n, err := ring.Parse(&it, b, limit)
		if err == nil {
			require.LessOrEqual(t, n, len(b))
			require.LessOrEqual(t, n, limit)
			require.EqualValues(t, n, it.Size())
			require.Contains(t, []string{string(it.Append(nil, ring.V11)), string(it.Append(nil, ring.V12))}, string(b[:n]))
			return
		}
		var damage *ring.DamageError
		require.ErrorAs(t, err, &damage)
		require.Zero(t, damage.Offset)
		size := int64(0)
		if len(b) >= 4 {
			size = int64(binary.LittleEndian.Uint32(b))
		}
		require.Equal(t, size, damage.Size)
		switch damage.Err {
		case ring.ErrTruncated:
			require.True(t, len(b) < 4 || int64(len(b)) < size)
			require.EqualValues(t, len(b), damage.Have)
		case ring.ErrTooLarge:
			require.Greater(t, size, int64(limit))
		case ring.ErrTooSmall:
			require.True(t, size < ring.MinItem || int64(binary.LittleEndian.Uint32(b[8:]))+8 > size)
		default:
			require.Equal(t, ring.ErrBodyHeader, damage.Err)
			require.Less(t, binary.LittleEndian.Uint32(b[8:]), uint32(ring.HeaderLen))
		}
	})
}
