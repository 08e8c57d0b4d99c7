package pool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/proof"
)

// Worker is a worker of one supplier, or of several: it asks for chunks, and answers them.
// Its methods may be called from several goroutines, each of which has chunks of its own.
type Worker struct {
	c     Config
	links []*link
	come  chan arrival // what has come from suppliers; it has room for all that was asked for
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
	held    int // chunks that have come and were not answered
	leaving bool
	ended   bool // by the supplier
	free    [][]byte
}

// arrival is a chunk, or the end of a supplier.
type arrival struct {
	link  *link
	seq   uint64
	bytes []byte
	tell  bool  // the supplier is to hear when it is begun with
	err   error // io.EOF: it has said so
}

// Chunk is a chunk that a worker has. It is a value; the zero Chunk is none.
type Chunk struct{ a arrival }

// SupplierError is the death of a supplier, or what else ended its connection.
type SupplierError struct {
	Addr string // as it was given to Join
	Err  error
}

// Error names the supplier.
func (e *SupplierError) Error() string { return fmt.Sprintf("pool: supplier %s: %v", e.Addr, e.Err) }

// Unwrap returns the reason.
func (e *SupplierError) Unwrap() error { return e.Err }

// Join connects to suppliers, and asks each for chunks.
//
// Errors: [ErrInvalid]; a [*SupplierError] for one that cannot be reached, or refuses.
func Join(ctx context.Context, c Config, addrs ...string) (*Worker, error) {
	c, err := c.check()
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("%w: no supplier", ErrInvalid)
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
			return nil, &SupplierError{addr, err}
		}
		l.asked = c.Window
	}
	for _, l := range w.links {
		w.wg.Go(l.run)
	}
	return w, nil
}

// connect connects to a supplier, both proving themselves.
func (w *Worker) connect(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, w.c.Timeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepalive.Within(silence)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
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

// Receive returns the next chunk of any supplier. It is the caller's until Done.
//
// Errors: [io.EOF] when all suppliers have ended; a [*SupplierError], once for each that has
// died, after which the others' chunks come; [ErrClosed]; that of ctx.
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
			close(w.closed) // who else waits in Receive need not
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

// why says why nothing more comes.
func (w *Worker) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live == 0 {
		return io.EOF
	}
	return fmt.Errorf("pool: receive: %w", ErrClosed)
}

// Seq is the number of the chunk at its supplier, from 0.
func (k Chunk) Seq() uint64 { return k.a.seq }

// Supplier is the address of the chunk's supplier, as it was given to Join.
func (k Chunk) Supplier() string {
	if k.a.link == nil {
		return ""
	}
	return k.a.link.addr
}

// Bytes are those of the chunk. They may be changed.
func (k Chunk) Bytes() []byte { return k.a.bytes }

// Done sends the result of the chunk, which may be nothing, and asks for more. It is to be
// called once; the bytes are no longer the caller's, but may be among the parts.
//
// Errors: [ErrInvalid] for a result that is longer than [Config.MaxBytes]; else a
// [*SupplierError]: the supplier is gone, which Receive says, too.
func (k Chunk) Done(parts ...[]byte) error {
	l := k.a.link
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > l.w.c.MaxBytes {
		return fmt.Errorf("pool: %w: a result of %d bytes, at most %d", ErrInvalid, n, l.w.c.MaxBytes)
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

// Leave says that the worker asks for no more: Receive returns what it has been given, then
// [io.EOF].
func (w *Worker) Leave() {
	for _, l := range w.links {
		l.mu.Lock()
		if !l.leaving {
			l.leaving = true
			if err := l.write(header{kind: kindLeave}, nil); err != nil {
				w.c.Log.Debug("pool: no supplier to leave", "supplier", l.addr, "error", err) // Receive says it
			}
		}
		l.mu.Unlock()
	}
}

// Close ends the connections: chunks that have not been answered go to others.
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

// gatherMost is up to how many bytes a result is copied behind its header.
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
	_, err := bufs.WriteTo(l.conn)
	return err
}

// begun tells the supplier that a chunk is begun with. One that is gone Receive tells of.
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

// run takes what the supplier sends. After its end the supplier waits for that of the
// connection, which comes when all its chunks have been answered.
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
			if err == io.EOF { // it has not said its end
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
			return fmt.Errorf("%w: a supplier sends chunks and its end", ErrProtocol)
		}
		b := l.memory(int(h.length))
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		select {
		case l.w.come <- arrival{link: l, seq: h.seq, bytes: b, tell: h.watched}:
		default:
			return fmt.Errorf("%w: more chunks than were asked for", ErrProtocol)
		}
	}
}
