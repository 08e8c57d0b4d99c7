package ring_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout/ring"
)

// file makes n items; it returns all bytes, and the offset of each item.
func file(t testing.TB, r *rand.Rand, n, most int) (b []byte, starts []int64) {
	t.Helper()
	var out bytes.Buffer
	w := ring.NewWriter(&out, ring.V12)
	for range n {
		starts = append(starts, w.Offset())
		it := draw(r, most)
		require.NoError(t, w.Write(&it))
	}
	require.NoError(t, w.Flush())
	require.EqualValues(t, out.Len(), w.Offset())
	return out.Bytes(), starts
}

// TestReader reads files in pieces of every size, and gets all items.
func TestReader(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole":    func(r io.Reader) io.Reader { return r },
		"bytes":    iotest.OneByteReader,
		"halves":   iotest.HalfReader,
		"end":      iotest.DataErrReader,
		"nothings": func(r io.Reader) io.Reader { return &stutter{r: r} },
	} {
		for _, most := range []int{0, 30, 100_000, 700_000} { // beyond the buffer, too
			n := 200
			if most > 1000 {
				n = 12
			}
			if most > 1000 && (name == "bytes" || name == "nothings") {
				continue // a second, for nothing new
			}
			b, starts := file(t, r, n, most)
			rd := ring.NewReader(wrap(bytes.NewReader(b)), 0)
			var got []byte
			for i := range n {
				require.Equal(t, starts[i], rd.Offset(), name)
				var it, same ring.Item
				raw, err := rd.Next(&it)
				require.NoError(t, err, name)
				_, err = ring.Parse(&same, raw, 0)
				require.NoError(t, err, name)
				require.Equal(t, same, it, name)
				got = append(got, raw...)
			}
			require.True(t, bytes.Equal(b, got), name)
			for range 2 {
				_, err := rd.Next(new(ring.Item))
				require.Equal(t, io.EOF, err, name)
			}
		}
	}
}

// stutter returns nothing every second time.
type stutter struct {
	r io.Reader
	n int
}

func (s *stutter) Read(p []byte) (int, error) {
	if s.n++; s.n%2 == 0 {
		return 0, nil
	}
	return s.r.Read(p[:min(len(p), 7)])
}

// TestReaderDamage: the items before the damage are read, and it is named with its byte.
func TestReaderDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	b, starts := file(t, r, 20, 60)
	for cut := range len(b) + 1 {
		rd := ring.NewReader(bytes.NewReader(b[:cut]), 0)
		whole := 0
		for whole < len(starts)-1 && starts[whole+1] <= int64(cut) {
			whole++
		}
		if cut == len(b) {
			whole = len(starts)
		}
		for range whole {
			_, err := rd.Next(new(ring.Item))
			require.NoError(t, err)
		}
		for range 2 {
			_, err := rd.Next(new(ring.Item))
			if cut == len(b) || starts[whole] == int64(cut) {
				require.Equal(t, io.EOF, err)
				continue
			}
			var damage *ring.DamageError
			require.ErrorAs(t, err, &damage)
			require.ErrorIs(t, err, ring.ErrTruncated)
			require.Equal(t, starts[whole], damage.Offset)
			require.Equal(t, int64(cut)-starts[whole], damage.Have)
		}
	}
	for i, at := range starts {
		for want, size := range map[error]byte{ring.ErrTooSmall: 3, ring.ErrTooLarge: 0xff} {
			broken := bytes.Clone(b)
			copy(broken[at:], []byte{size, size & 0x80, 0, size & 0x80})
			rd := ring.NewReader(bytes.NewReader(broken), 0)
			for range i {
				_, err := rd.Next(new(ring.Item))
				require.NoError(t, err)
			}
			_, err := rd.Next(new(ring.Item))
			require.ErrorIs(t, err, want)
			require.Equal(t, at, err.(*ring.DamageError).Offset)
		}
	}
}

// An error of the underlying reader is neither damage nor the end, wherever it comes.
func TestReaderError(t *testing.T) {
	b, starts := file(t, rand.New(rand.NewPCG(9, 10)), 3, 20)
	for _, cause := range []error{errors.New("I/O"), io.ErrUnexpectedEOF} {
		for cut := range len(b) + 1 {
			rd := ring.NewReader(io.MultiReader(bytes.NewReader(b[:cut]), iotest.ErrReader(cause)), 0)
			var err error
			for err == nil {
				_, err = rd.Next(new(ring.Item))
			}
			require.ErrorIs(t, err, cause)
			var damage *ring.DamageError
			require.False(t, errors.As(err, &damage))
		}
	}
	rd := ring.NewReader(io.MultiReader(bytes.NewReader(b[:starts[1]]), silence{}), 0)
	_, err := rd.Next(new(ring.Item))
	require.NoError(t, err)
	_, err = rd.Next(new(ring.Item))
	require.ErrorIs(t, err, io.ErrNoProgress)
}

type silence struct{}

func (silence) Read([]byte) (int, error) { return 0, nil }

// TestReaderMemory: a wrong size costs no more memory than the file has bytes.
func TestReaderMemory(t *testing.T) {
	it := ring.Item{Type: ring.PhysicsEvent, Body: make([]byte, 100)}
	b := it.Append(nil, ring.V12)
	copy(b, []byte{0, 0, 0, 0xf0})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ring.NewReader(bytes.NewReader(b), 1<<32).Next(&it)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, ring.ErrTruncated)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// FuzzReader: a Reader finds what Parse finds, at the same bytes.
func FuzzReader(f *testing.F) {
	b, starts := file(f, rand.New(rand.NewPCG(11, 12)), 5, 12)
	f.Add(b)
	f.Add(b[:starts[4]+3])
	b[starts[2]] = 1
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 9
		rd := ring.NewReader(iotest.HalfReader(bytes.NewReader(b)), limit)
		for at := 0; ; {
			require.EqualValues(t, at, rd.Offset())
			var got, want ring.Item
			raw, err := rd.Next(&got)
			if at == len(b) {
				require.Equal(t, io.EOF, err)
				return
			}
			if format := ring.CheckFormat(b, limit); at == 0 && format != nil {
				require.Equal(t, format, err)
				return
			}
			n, wantErr := ring.Parse(&want, b[at:], limit)
			if wantErr != nil {
				wantErr.(*ring.DamageError).Offset = int64(at)
				require.Equal(t, wantErr, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, b[at:at+n], raw)
			require.Equal(t, want, got)
			at += n
		}
	})
}

// bare returns an item of version 10: its size, its type and its body.
func bare(order binary.AppendByteOrder, t ring.Type, body []byte) []byte {
	b := order.AppendUint32(nil, uint32(8+len(body)))
	return append(order.AppendUint32(b, uint32(t)), body...)
}

// older returns items of version 10, in a byte order: BEGIN_RUN of a run, and events.
func older(order binary.AppendByteOrder, run uint32, events int) []byte {
	begin := order.AppendUint32(order.AppendUint32(order.AppendUint32(nil, run), 0), 1_200_000_000)
	b := bare(order, ring.BeginRun, append(begin, make([]byte, ring.TitleLen+1)...))
	for i := range events {
		b = append(b, bare(order, ring.PhysicsEvent, order.AppendUint16(nil, uint16(i)))...)
	}
	return b
}

// swapped returns items of version 11 in the other byte order, without bodies.
func swapped(n int) (b []byte) {
	for i := range n {
		t := ring.PhysicsEvent
		if i == 0 {
			t = ring.RingFormat
		}
		for _, v := range []uint32{12, uint32(t), 0} {
			b = binary.BigEndian.AppendUint32(b, v)
		}
	}
	return b
}

// TestFormats: files of version 10 and big-endian files are a FormatError, with any run number;
// readable files and damaged ones are not.
func TestFormats(t *testing.T) {
	for _, run := range []uint32{0, 1, 4, 20, 93, 100_000} {
		for _, c := range []struct {
			b    []byte
			want ring.FormatError
			says string
		}{
			{older(binary.LittleEndian, run, 3), ring.FormatError{Version: 10}, "NSCLDAQ 10, little-endian"},
			{older(binary.LittleEndian, run, 0), ring.FormatError{Version: 10}, "NSCLDAQ 10, little-endian"},
			{older(binary.BigEndian, run, 0), ring.FormatError{Version: 10, BigEndian: true}, "NSCLDAQ 10, big-endian"},
			{older(binary.BigEndian, run, 3), ring.FormatError{Version: 10, BigEndian: true}, "NSCLDAQ 10, big-endian"},
			{swapped(1), ring.FormatError{Version: 11, BigEndian: true}, "NSCLDAQ 11 or 12, big-endian"},
			{swapped(5000), ring.FormatError{Version: 11, BigEndian: true}, "NSCLDAQ 11 or 12, big-endian"},
		} {
			_, err := ring.NewReader(bytes.NewReader(c.b), 0).Next(new(ring.Item))
			var e *ring.FormatError
			require.ErrorAs(t, err, &e, "run %d", run)
			require.Equal(t, c.want, *e)
			require.ErrorContains(t, err, c.says)
			require.False(t, errors.As(err, new(*ring.DamageError)))
		}
	}
	r := rand.New(rand.NewPCG(9, 10))
	b, starts := file(t, r, 20, 60)
	require.NoError(t, ring.CheckFormat(b, 0))
	require.NoError(t, ring.CheckFormat(nil, 0))
	broken := bytes.Clone(b)
	broken[starts[1]+8] = 5 // a body header that there is not
	require.NoError(t, ring.CheckFormat(broken, 0))
	require.NoError(t, ring.CheckFormat(bytes.Repeat([]byte("text"), 100), 0))
}

// TestFormatsByMost: no item alone decides which version the items are of, but for BEGIN_RUN.
func TestFormatsByMost(t *testing.T) {
	le := binary.LittleEndian
	nonincr := bare(le, 21, []byte("0123456789"))
	event := bare(le, ring.PhysicsEvent, []byte{26, 0, 0x12, 0x34, 5, 6})
	none := bare(le, ring.PeriodicScalers, make([]byte, 32)) // in version 11: no body header
	fits := bare(le, ring.PhysicsEvent, append([]byte{20, 0, 0, 0}, make([]byte, 30)...))
	good := (&ring.Item{Type: ring.PhysicsEvent, HasHeader: true, Body: make([]byte, 40)}).Append(nil, ring.V11)
	damaged := bytes.Clone(good)
	damaged[8] = 8
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"a type that only 10 has":          {slices.Concat(nonincr, bytes.Repeat(event, 9), nonincr), true},
		"BEGIN_RUN and what is no item":    {append(older(le, 4, 0), bytes.Repeat([]byte("text"), 9)...), true},
		"BEGIN_RUN behind others":          {slices.Concat(none, older(le, 20, 0), bytes.Repeat(fits, 9)), true},
		"a first body like a header":       {append(bytes.Clone(fits), bytes.Repeat(event, 9)...), true},
		"a first body like none":           {append(bytes.Clone(none), bytes.Repeat(event, 9)...), true},
		"11 with a damaged header":         {append(damaged, bytes.Repeat(good, 100)...), false},
		"11 with RING_FORMAT, all damaged": {append(bare(le, ring.RingFormat, make([]byte, 8)), bytes.Repeat(event, 9)...), false},
	} {
		_, err := ring.NewReader(bytes.NewReader(c.b), 0).Next(new(ring.Item))
		require.Equal(t, c.want, errors.As(err, new(*ring.FormatError)), "%s: %v", name, err)
	}
	// By small pieces, which are read until they tell.
	for _, order := range []binary.AppendByteOrder{le, binary.BigEndian} {
		b := bytes.Repeat(bare(order, ring.PhysicsEvent, []byte{26, 0, 0x12, 0x34, 5, 6}), 9)
		_, err := ring.NewReader(iotest.OneByteReader(bytes.NewReader(b)), 0).Next(new(ring.Item))
		require.Equal(t, &ring.FormatError{Version: 10, BigEndian: order == binary.AppendByteOrder(binary.BigEndian)}, err)
	}
}

// TestNotSwapped: what is no item, or one that is too large, is not taken for a big-endian one.
func TestNotSwapped(t *testing.T) {
	le := binary.LittleEndian
	const large = 1 << 30
	for name, c := range map[string]struct {
		b     []byte
		limit int64
		want  error
	}{
		"beyond the limit": {le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 16<<20+256), 30), 0), 0, ring.ErrTooLarge},
		"an unknown type":  {le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 0x300), 256), 0), 0, ring.ErrTruncated},
		"a gzip file":      {[]byte{0x1f, 0x8b, 8, 0, 0x12, 0x34, 0x56, 0x67, 0, 3, 0, 0, 0}, large, ring.ErrTruncated},
	} {
		_, err := ring.NewReader(bytes.NewReader(c.b), c.limit).Next(new(ring.Item))
		require.ErrorIs(t, err, c.want, name)
	}
}
