package pool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Worker is a worker of one or more suppliers: it asks for chunks and answers them. Several
// goroutines may call its methods, each with chunks of its own.
type Worker struct {
	c     Config
	links []*link
	come  chan arrival // from suppliers; it has room for every chunk that was asked for
	wg    sync.WaitGroup

	mu     sync.Mutex
	live   int // suppliers that have neither ended nor died
	closed chan struct{}
	over   bool
}

// link is the connection to a supplier.
type link struct {
	w    *Worker
	addr string
	conn net.Conn

	mu      sync.Mutex // of what is written
	out     []byte
	asked   int // chunks that were asked for and not answered
	held    int // chunks that have arrived and were not answered
	leaving bool
	ended   bool // by the supplier
	free    [][]byte
}

// arrival is a chunk, or the end of a supplier.
type arrival struct {
	link  *link
	seq   uint64
	bytes []byte
	tell  bool  // the worker must report when it begins with the chunk
	err   error // io.EOF: the supplier has sent its end
}

// Chunk is a chunk that a worker has. It is a value type; the zero Chunk is none.
type Chunk struct{ a arrival }

// SupplierError says that a supplier has died, or why else its connection has ended.
type SupplierError struct {
	Addr string // as it was given to Join
	Err  error
}

// Error returns the address of the supplier and the reason.
func (e *SupplierError) Error() string { return fmt.Sprintf("pool: supplier %s: %v", e.Addr, e.Err) }

// Unwrap returns the reason.
func (e *SupplierError) Unwrap() error { return e.Err }

// Join connects to all the given suppliers and asks each for chunks. ctx bounds only this
// call, and alone bounds the wait for one that has accepted and does not answer, which is logged. Close
// the worker after use.
//
// Errors: [ErrInvalid]; a [*SupplierError] for a supplier that cannot be reached or refuses.
func Join(ctx context.Context, c Config, addrs ...string) (*Worker, error) {
	c, err := c.check()
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("%w: no supplier address is given", ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("pool: join: %w", err)
	}
	w := &Worker{c: c, come: make(chan arrival, len(addrs)*(c.Window+1)), live: len(addrs), closed: make(chan struct{})}
	for _, addr := range addrs {
		l, err := w.connect(ctx, addr)
		if err == nil {
			w.links = append(w.links, l)
			err = l.write(header{kind: kindAsk, asks: uint32(c.Window)}, nil)
		}
		if err != nil {
			for _, l := range w.links {
				err = errors.Join(err, l.conn.Close())
			}
			return nil, &SupplierError{addr, limits.Files(err)}
		}
		l.asked = c.Window
	}
	for _, l := range w.links {
		w.wg.Go(l.run)
	}
	return w, nil
}

// connect connects to a supplier; both ends authenticate. One that is held up, stopped or without a CPU,
// is waited for: its kernel answers.
func (w *Worker) connect(ctx context.Context, addr string) (*link, error) {
	conn, err := w.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer w.warn("pool: a supplier has accepted and does not answer; it is waited for", addr)()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err = proof.Dial(conn, w.c.proof(), nil)
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &link{w: w, addr: addr, conn: conn}, nil
}

// dial connects to the address of a supplier. On this host only a full queue delays a connection: its
// process is held up, and is waited for.
func (w *Worker) dial(ctx context.Context, addr string) (net.Conn, error) {
	o := reach.Options{Dialer: net.Dialer{Timeout: w.c.Timeout}, Silence: silence}
	stop := func() {}
	defer func() { stop() }()
	for waits := false; ; waits = true {
		conn, err := o.Connect(ctx, addr)
		if err == nil || ctx.Err() != nil || !queueFull(err) {
			return conn, err
		}
		if !waits {
			stop = w.warn("pool: the queue of a supplier is full; it is waited for", addr)
		}
	}
}

// queueFull says whether an error is that of a connection within this host which was not accepted in time.
func queueFull(err error) bool {
	var dial *net.OpError
	if !errors.As(err, &dial) || !dial.Timeout() {
		return false
	}
	to, ok := dial.Addr.(*net.TCPAddr)
	own, _ := reach.Addresses()
	return ok && (to.IP.IsLoopback() || slices.Contains(own, to.AddrPort().Addr().Unmap()))
}

// warn logs at doubling pauses, the first of which is Timeout, that a supplier is waited for.
func (w *Worker) warn(text, addr string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		start := time.Now()
		for pause := w.c.Timeout; ; pause *= 2 {
			patience, stop := wait.Patience(ctx, pause)
			<-patience.Done()
			stop()
			if ctx.Err() != nil {
				return
			}
			w.c.Log.Warn(text, "supplier", addr, "time", time.Since(start).Round(time.Second))
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// Receive returns the next chunk of any supplier. It is the caller's until Done.
//
// Errors: [io.EOF] when all suppliers have ended; a [*SupplierError], once for each supplier
// that has died, while the chunks of the others still come; [ErrClosed]; that of ctx.
func (w *Worker) Receive(ctx context.Context) (Chunk, error) {
	for {
		if w.isClosed() { // select chooses at random
			return Chunk{}, w.why()
		}
		var a arrival
		select {
		case a = <-w.come:
		case <-w.closed:
			return Chunk{}, w.why()
		case <-ctx.Done():
			return Chunk{}, fmt.Errorf("pool: receive: %w", ctx.Err())
		}
		if a.err == nil {
			if a.tell {
				a.link.begun(a.seq)
			}
			return Chunk{a}, nil
		}
		w.mu.Lock()
		if w.live--; w.live == 0 && !w.over {
			w.over = true
			close(w.closed) // ends every other waiting Receive
		}
		w.mu.Unlock()
		if !errors.Is(a.err, io.EOF) {
			return Chunk{}, &SupplierError{a.link.addr, a.err}
		}
	}
}

func (w *Worker) isClosed() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

// why returns why no more chunks come.
func (w *Worker) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live == 0 {
		return io.EOF
	}
	return fmt.Errorf("pool: receive: %w", ErrClosed)
}

// Seq returns the number of the chunk at its supplier, from 0.
func (k Chunk) Seq() uint64 { return k.a.seq }

// Supplier returns the address of the chunk's supplier, as it was given to Join.
func (k Chunk) Supplier() string {
	if k.a.link == nil {
		return ""
	}
	return k.a.link.addr
}

// Bytes returns the bytes of the chunk. They may be changed until Done.
func (k Chunk) Bytes() []byte { return k.a.bytes }

// Done sends the result of the chunk, which may be empty, and asks for more chunks. Call it
// once for each chunk. The parts may be parts of the chunk's bytes, which are no longer the
// caller's when Done returns.
//
// Errors: [ErrInvalid] for a result that is longer than [Config.MaxBytes], after which Done
// may be called again; else a [*SupplierError], as the supplier is gone: Receive also
// reports that.
func (k Chunk) Done(parts ...[]byte) error {
	l := k.a.link
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > l.w.c.MaxBytes {
		return fmt.Errorf("pool: done: %w: the result has %d bytes, more than MaxBytes, %d", ErrInvalid, n, l.w.c.MaxBytes)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := header{kind: kindResult, seq: k.a.seq, length: uint64(n)}
	l.asked--
	l.held--
	if window := l.w.c.Window; l.asked <= window/2 && !l.leaving {
		h.asks = uint32(window - l.asked)
		l.asked = window
	}
	err := l.write(h, parts)
	l.free = append(l.free, k.a.bytes)
	if l.ended && l.held == 0 {
		err = errors.Join(err, l.conn.Close())
	}
	if err != nil {
		return &SupplierError{l.addr, err}
	}
	return nil
}

// Leave tells the suppliers that the worker asks for no more chunks: Receive returns those that
// it has been given already, then [io.EOF].
func (w *Worker) Leave() {
	for _, l := range w.links {
		l.mu.Lock()
		if !l.leaving {
			l.leaving = true
			if err := l.write(header{kind: kindLeave}, nil); err != nil {
				w.c.Log.Debug("pool: leaving a supplier has failed", "supplier", l.addr, "error", err) // Receive returns it
			}
		}
		l.mu.Unlock()
	}
}

// Close ends the connections. Chunks that have not been answered go to other workers.
func (w *Worker) Close() error {
	w.mu.Lock()
	if !w.over {
		w.over = true
		close(w.closed)
	}
	w.mu.Unlock()
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.conn.Close())
	}
	w.wg.Wait()
	return closing(errs...)
}

// gatherMost is the length in bytes up to which a result is copied behind its header.
const gatherMost = 16 << 10

// write writes a frame. The caller holds mu, or has the link alone.
func (l *link) write(h header, parts [][]byte) error {
	b := h.append(l.out[:0])
	if h.length <= gatherMost {
		for _, p := range parts {
			b = append(b, p...)
		}
		l.out = b
		_, err := l.conn.Write(b)
		return err
	}
	l.out = b
	bufs := append(net.Buffers{b}, parts...)
	_, err := keepalive.WriteBuffers(l.conn, &bufs)
	return err
}

// begun tells the supplier that work on a chunk begins. If the supplier is gone, Receive
// reports that.
func (l *link) begun(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.write(header{kind: kindBegun, seq: seq}, nil)
}

// memory returns n bytes for a chunk.
func (l *link) memory(n int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	if k := len(l.free); k > 0 {
		b := l.free[k-1]
		l.free = l.free[:k-1]
		if cap(b) >= n {
			return b[:n]
		}
	}
	return make([]byte, n)
}

// run receives the supplier's frames. After its end, the supplier waits until the worker has
// answered all its chunks and closes the connection.
func (l *link) run() {
	err := l.read()
	l.mu.Lock()
	l.ended = true
	if err != io.EOF || l.held == 0 {
		err = errors.Join(err, closing(l.conn.Close()))
	}
	l.mu.Unlock()
	select {
	case l.w.come <- arrival{link: l, err: err}:
	case <-l.w.closed:
	}
}

func (l *link) read() error {
	in := bufio.NewReaderSize(l.conn, 64<<10)
	head := make([]byte, headerLen)
	for {
		if _, err := io.ReadFull(in, head); err != nil {
			if err == io.EOF { // the supplier has not sent its end
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		h, err := parseHeader(head, l.w.c.MaxBytes)
		switch {
		case err != nil:
			return err
		case h.kind == kindEnd:
			return io.EOF
		case h.kind != kindChunk:
			return fmt.Errorf("%w: the supplier has sent a frame of kind %d, which only a worker sends", ErrProtocol, h.kind)
		}
		b := l.memory(int(h.length))
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		select {
		case l.w.come <- arrival{link: l, seq: h.seq, bytes: b, tell: h.watched}:
		default:
			return fmt.Errorf("%w: the supplier has sent more chunks than the worker asked for", ErrProtocol)
		}
	}
}
