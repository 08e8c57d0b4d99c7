package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func config() Config { return Config{Secret: []byte("of the pool"), Name: "test", Log: quiet} }

// over returns a context that has ended, so that no call waits.
func over(t testing.TB) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	t.Cleanup(cancel)
	return ctx
}

func listen(t testing.TB, c Config) *Supplier {
	t.Helper()
	s, err := Listen(t.Context(), "127.0.0.1:0", c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func chunk(i int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%d.", i)), 1+i*i%701)
}

// work returns the result of a chunk, which is empty for some.
func work(b []byte) []byte {
	if len(b)%5 == 0 {
		return nil
	}
	r := bytes.ToUpper(b)
	return append(r, '!')
}

// supply sends chunks and takes their results, which come in order, each once.
func supply(ctx context.Context, s *Supplier, count int) error {
	errs := make(chan error, 1)
	go func() {
		for i := range count {
			b := chunk(i)
			if err := s.Send(ctx, b[:i%len(b)], b[i%len(b):]); err != nil {
				errs <- err
				return
			}
		}
		errs <- s.End(ctx)
	}()
	for i := 0; ; i++ {
		r, err := s.Receive(ctx)
		if err == io.EOF && i == count {
			return <-errs
		}
		if err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
		if r.Seq() != uint64(i) || !bytes.Equal(r.Bytes(), work(chunk(i))) {
			return fmt.Errorf("result %d is %d: %.20q", i, r.Seq(), r.Bytes())
		}
		r.Release()
		r.Release()
	}
}

// Workers join at any time, leave, and vanish while they have chunks; the results are complete, in
// order and without duplicates.
func TestPool(t *testing.T) {
	for _, workers := range []int{1, 2, 5, 16} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			c := config()
			c.Chunks, c.Attempts = 1+rand.IntN(40), -1
			s := listen(t, c)
			ctx := ranks.Within(t)
			const count = 300
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for { // one after the other, until there is no supplier
						c := config()
						c.Window = 1 + rand.IntN(5)
						w, err := Join(ctx, c, s.Addr().String())
						if err != nil { // it has ended
							return
						}
						for life := rand.IntN(60); ; life-- {
							k, err := w.Receive(ctx)
							if err != nil || life == 0 && workers > 1 {
								break // it dies with what it has
							}
							if err := k.Done(work(k.Bytes())); err != nil {
								break
							}
							if life == 1 {
								w.Leave()
								life += 1000
							}
						}
						if err := w.Close(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			require.NoError(t, supply(ctx, s, count))
			wg.Wait()
			st := s.Stats()
			require.Equal(t, []uint64{count, count}, []uint64{st.Chunks, st.Results})
			require.Zero(t, st.Waiting+st.Held)
		})
	}
}

// A worker of two suppliers has chunks of both; when one dies it gets one error, and goes on with
// the other.
func TestSeveralSuppliers(t *testing.T) {
	ctx := ranks.Within(t)
	a, b := listen(t, config()), listen(t, config())
	w, err := Join(ctx, config(), a.Addr().String(), b.Addr().String())
	require.NoError(t, err)
	require.NoError(t, a.Send(ctx, []byte("of a")))
	k, err := w.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "of a", string(k.Bytes()))
	require.Equal(t, a.Addr().String(), k.Supplier())
	require.NoError(t, a.Close())
	_, err = w.Receive(ctx)
	var e *SupplierError
	require.ErrorAs(t, err, &e)
	require.Equal(t, a.Addr().String(), e.Addr)
	supplied := make(chan error, 1)
	go func() { supplied <- supply(ctx, b, 20) }()
	for n := 0; ; n++ {
		k, err := w.Receive(ctx)
		if err == io.EOF {
			require.Equal(t, 20, n)
			break
		}
		require.NoError(t, err)
		require.Equal(t, b.Addr().String(), k.Supplier())
		require.NoError(t, k.Done(work(k.Bytes())))
	}
	require.NoError(t, <-supplied)
	_, err = w.Receive(ctx)
	require.Equal(t, io.EOF, err)
	require.NoError(t, w.Close())
	_, err = a.Receive(ctx)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, a.Send(ctx, []byte("x")), ErrClosed)
}

// A worker without the secret is refused, and takes no place from others.
func TestStrangers(t *testing.T) {
	ctx := ranks.Within(t)
	c := config()
	c.Timeout = time.Second
	s := listen(t, c)
	for _, change := range []func(*Config){
		func(c *Config) { c.Secret = []byte("another") },
		func(c *Config) { c.Secret, c.Insecure = nil, true },
		func(c *Config) { c.Name = "another" },
	} {
		c := config()
		change(&c)
		_, err := Join(ctx, c, s.Addr().String())
		var e *SupplierError
		require.ErrorAs(t, err, &e)
		var p *proof.Error
		require.ErrorAs(t, err, &p)
	}
	conn := ranks.Dial(t, s.Addr().String())
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, conn) // until it is hung up on
	require.True(t, err == nil || errors.As(err, new(*net.OpError)), err)
	require.NoError(t, conn.Close())
	silent := ranks.Dial(t, s.Addr().String()) // it stays
	require.NoError(t, s.Send(ctx, chunk(0)))
	w, err := Join(ctx, config(), s.Addr().String())
	require.NoError(t, err)
	k, err := w.Receive(ctx)
	require.NoError(t, err)
	require.NoError(t, k.Done(nil))
	r, err := s.Receive(ctx)
	require.NoError(t, err)
	require.Empty(t, r.Bytes())
	require.NoError(t, s.End(ctx))
	require.NoError(t, s.End(ctx))
	_, err = w.Receive(ctx)
	require.Equal(t, io.EOF, err)
	require.NoError(t, w.Close())
	require.NoError(t, silent.Close())
}

// A worker that is held up while it joins has time.
func TestHeld(t *testing.T) {
	c := config()
	c.Timeout = 1
	s := listen(t, c)
	w, err := Join(ranks.Within(t), config(), s.Addr().String())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, w.Close())
}

// While no results are received, the supplier takes no more chunks than it has places.
func TestBounded(t *testing.T) {
	ctx := ranks.Within(t)
	c := config()
	c.Chunks = 3
	s := listen(t, c)
	w, err := Join(ctx, config(), s.Addr().String())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, s.Send(ctx, []byte("x")))
		k, err := w.Receive(ctx)
		require.NoError(t, err)
		require.NoError(t, k.Done(k.Bytes()))
	}
	require.ErrorIs(t, s.Send(over(t), []byte("x")), context.DeadlineExceeded)
	r, err := s.Receive(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, s.Send(over(t), []byte("x")), context.DeadlineExceeded)
	r.Release()
	require.NoError(t, s.Send(ctx, []byte("x")))
	r.Release() // it is no longer ours
	require.ErrorIs(t, s.Send(over(t), []byte("x")), context.DeadlineExceeded)
	require.ErrorIs(t, s.End(over(t)), context.DeadlineExceeded)
	require.NoError(t, w.Close())
	_, err = w.Receive(ctx)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, s.Close())
}

// A chunk that kills its workers is given up after Attempts of them, and no chunk that only waits
// in their windows.
func TestHopeless(t *testing.T) {
	for _, attempts := range []int{1, 2, 0} {
		for _, window := range []int{1, 2, 8} {
			ctx := ranks.Within(t)
			c := config()
			c.Attempts, c.Window = attempts, window
			s := listen(t, c)
			const count = 10
			for range count {
				require.NoError(t, s.Send(ctx, []byte("chunk")))
			}
			died := make(chan int)
			go func() {
				n := 0
				for ; ; n++ { // one after the other, until the supplier has ended
					w, err := Join(ctx, c, s.Addr().String())
					if err != nil {
						break
					}
					k, err := w.Receive(ctx)
					for err == nil && k.Seq() != 0 {
						if err = k.Done(); err == nil {
							k, err = w.Receive(ctx)
						}
					}
					assert.NoError(t, w.Close())
					if err != nil {
						break
					}
				}
				died <- n
			}()
			want := attempts
			if want == 0 {
				want = defaultAttempts
			}
			_, err := s.Receive(ctx)
			var e *HopelessError
			require.ErrorAs(t, err, &e)
			require.Equal(t, HopelessError{0, want}, *e)
			for i := 1; i < count; i++ {
				r, err := s.Receive(ctx)
				require.NoError(t, err, "chunk %d, window %d", i, window)
				r.Release()
			}
			require.NoError(t, s.End(ctx))
			require.Equal(t, want, <-died)
		}
	}
}

// The loss of a worker does not count against a chunk that it has received but not begun.
func TestNotBegun(t *testing.T) {
	ctx := ranks.Within(t)
	c := config()
	c.Attempts = 1
	s := listen(t, c)
	require.NoError(t, s.Send(ctx, []byte("chunk")))
	for i := range 5 {
		w, err := Join(ctx, c, s.Addr().String())
		require.NoError(t, err)
		ranks.Eventually(t, func() bool { return s.Stats().Held == 1 && len(w.come) == 1 })
		if i == 4 {
			k, err := w.Receive(ctx)
			require.NoError(t, err)
			require.NoError(t, k.Done([]byte("result")))
			break
		}
		require.NoError(t, w.Close())
	}
	r, err := s.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "result", string(r.Bytes()))
	r.Release()
	require.NoError(t, s.End(ctx))
}

// A frame that violates the protocol ends its connection.
func TestProtocol(t *testing.T) {
	ctx := ranks.Within(t)
	s := listen(t, config())
	require.NoError(t, s.Send(ctx, chunk(0)))
	for _, bad := range [][]byte{
		header{kind: kindResult, seq: 5}.append(nil),
		header{kind: kindAsk, asks: maxWindow + 1}.append(nil),
		header{kind: kindEnd}.append(nil),
		header{kind: kindResult, length: 1 << 40}.append(nil),
		header{kind: kindBegun}.append(nil),
		header{kind: kindAsk, watched: true}.append(nil),
		append(header{kind: kindAsk, asks: maxWindow}.append(nil), header{kind: kindAsk, asks: 1}.append(nil)...),
	} {
		conn := ranks.Dial(t, s.Addr().String())
		_, err := proof.Dial(conn, config().proof(), nil)
		require.NoError(t, err)
		_, err = conn.Write(bad)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, conn) // until it is hung up on
		require.True(t, err == nil || errors.As(err, new(*net.OpError)), err)
		require.NoError(t, conn.Close())
	}
	for _, c := range []Config{{}, {Insecure: true, Chunks: -1}, {Insecure: true, Window: maxWindow + 1}, {Insecure: true, MaxBytes: -1}} {
		_, err := Listen(ctx, "127.0.0.1:0", c)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = Join(ctx, c, s.Addr().String())
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err := Join(ctx, config())
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, s.Send(ctx), ErrInvalid)
}

// A worker has, and has asked for, at most the largest window of chunks together; it can begin only
// with chunks that it has; when it leaves, they go in order to workers that ask.
func TestMember(t *testing.T) {
	s := &Supplier{c: Config{Attempts: -1}, places: make([]place, 16)}
	join := func(has ...uint64) *member {
		return &member{s: s, has: has, wake: sync.NewCond(&s.mu)}
	}
	for _, has := range [][]uint64{nil, {3}, {3, 1, 7}} {
		m := join(has...)
		require.ErrorIs(t, m.ask(maxWindow+1), ErrProtocol)
		require.ErrorIs(t, m.ask(uint32(maxWindow-len(has)+1)), ErrProtocol, "with %d chunks", len(has))
		require.NoError(t, m.ask(uint32(maxWindow-len(has))), "with %d chunks", len(has))
		require.NoError(t, m.ask(0))
		require.ErrorIs(t, m.ask(1), ErrProtocol, "with %d chunks", len(has))
		s.asking = nil
	}
	m := join(3, 1, 7)
	s.next = 10
	require.ErrorIs(t, m.begun(2), ErrProtocol)
	require.False(t, s.places[2].begun)
	require.NoError(t, m.begun(1))
	require.True(t, s.places[1].begun)

	s.again, s.fresh = []uint64{0, 9}, 10
	m.leave()
	require.Equal(t, []uint64{0, 1, 3, 7, 9}, s.again)

	for i := range 2 * keptStats {
		m := join()
		m.counts.Chunks = uint64(i)
		m.leave()
		require.LessOrEqual(t, len(s.gone), keptStats)
	}
	for i, g := range s.gone {
		require.EqualValues(t, keptStats+i, g.Chunks)
	}
}

// Releasing a result twice does not release the next one in its place.
func TestReleasedLate(t *testing.T) {
	s := &Supplier{places: make([]place, 2), next: 3, low: 1}
	s.places[0] = place{state: lent, gen: 2}
	Result{s, 0}.Release()
	require.Equal(t, lent, s.places[0].state, "chunk 2 is released as chunk 0")
	Result{s, 2}.Release()
	require.Equal(t, free, s.places[0].state)
}

// The length of a body is checked before memory is allocated for it.
func TestLyingHeader(t *testing.T) {
	const most = 1 << 20
	for _, k := range []kind{kindResult, kindChunk} {
		for _, length := range []uint64{most, most + 1, 1 << 40, 1<<62 + 1, math.MaxInt64, 1 << 63, math.MaxUint64} {
			h, err := parseHeader(header{kind: k, length: length}.append(nil), most)
			if length <= most {
				require.NoError(t, err)
				require.Equal(t, length, h.length)
				continue
			}
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, fmt.Sprintf("a body of %d bytes, more than MaxBytes, %d", length, most))
		}
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, h := range []header{{kind: kindAsk, asks: 3}, {kindResult, false, 1, 7, 100}, {kindChunk, true, 0, 7, 1}, {kind: kindEnd}, {kind: kindLeave}, {kind: kindBegun, seq: 7}, {kind: 9}} {
		f.Add(h.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h, err := parseHeader(b, 1<<20)
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.LessOrEqual(t, h.length, uint64(1<<20))
		require.Equal(t, b[:headerLen], h.append(nil))
	})
}
