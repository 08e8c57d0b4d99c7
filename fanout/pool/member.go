package pool

import (
	"bufio"
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
)

// member is a worker as its supplier sees it: a connection, a goroutine that reads from
// it, and one that writes.
type member struct {
	s      *Supplier
	conn   net.Conn
	counts WorkerStats

	// Under the lock of the supplier.
	has   []uint64 // chunks, in the order in which they were given
	asked int      // chunks that it has asked for and not been given
	out   []uint64 // given, and not written
	last  bool     // the end is to be written, and nothing after it
	stop  bool
	wake  *sync.Cond
}

// strangers is how many connections may be proving themselves at a time; the oldest gives way to another.
const strangers = 1024

// accept takes workers until the listener is closed.
func (s *Supplier) accept() {
	said, evicted := false, false
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Too many open files, for example. This may pass; a worker tries again.
			if !said {
				said = true
				s.c.Log.Warn("pool: accepting a connection has failed", "error", limits.Files(err))
			}
			time.Sleep(acceptPause)
			evicted = errors.Is(err, limits.ErrFiles) && s.proving.Evict()
			continue
		}
		said, evicted = said && evicted, false
		if !s.proving.Enter(conn) {
			return
		}
		s.wg.Go(func() {
			m, err := s.admit(conn)
			if err != nil {
				s.c.Log.Warn("pool: a connection was refused", "from", conn.RemoteAddr(), "error", closing(err, conn.Close()))
				return
			}
			s.c.Log.Debug("pool: a worker has joined", "from", conn.RemoteAddr())
			err = m.run()
			s.c.Log.Debug("pool: a worker has left", "from", conn.RemoteAddr(), "error", err)
		})
	}
}

// acceptPause is the pause after an error of Accept, so that the loop does not spin, and in which those
// that are proving themselves may finish.
const acceptPause = 50 * time.Millisecond

// admit authenticates a worker and makes it a member. One that is held up, stopped or without a CPU,
// has time: strangers are bounded by their number.
func (s *Supplier) admit(conn net.Conn) (*member, error) {
	guarded := keepalive.Keep(conn, silence)
	_, err := proof.Accept(guarded, s.c.proof(), nil)
	if !s.proving.Leave(conn) {
		err = fmt.Errorf("%w: the supplier has ended, or newer connections took the place of this one, which had proved nothing yet (at most %d wait, fewer if descriptors run short)", ErrClosed, strangers)
	}
	if err != nil {
		return nil, err
	}
	m := &member{s: s, conn: guarded, wake: sync.NewCond(&s.mu)}
	m.counts.Addr = conn.RemoteAddr().String()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.done {
		return nil, ErrClosed
	}
	s.members[m] = struct{}{}
	return m, nil
}

// give queues a chunk to be written. The caller holds the lock.
func (m *member) give(seq uint64) {
	m.asked--
	m.has = append(m.has, seq)
	m.out = append(m.out, seq)
	m.wake.Signal()
}

// end queues the end to be written. The caller holds the lock.
func (m *member) end() {
	m.last = true
	m.wake.Signal()
}

// run serves the worker until its connection ends.
func (m *member) run() error {
	var writer sync.WaitGroup
	var werr error
	writer.Go(func() {
		if werr = m.write(); werr != nil {
			m.conn.Close() // so that the reader ends, too
		}
	})
	err := m.read()
	m.s.mu.Lock()
	m.stop = true
	m.wake.Signal()
	m.s.mu.Unlock()
	err = closing(err, m.conn.Close())
	writer.Wait() // from now on the memory of its chunks is not read
	m.leave()
	return errors.Join(err, werr)
}

// leave gives the worker's chunks to others.
func (m *member) leave() {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m)
	s.asking = slices.DeleteFunc(s.asking, func(a *member) bool { return a == m })
	for _, seq := range m.has {
		p := s.place(seq)
		p.holder = nil
		m.counts.Redelivered++
		if !p.watched || p.begun {
			p.attempts++
		}
		if p.attempts == s.c.Attempts {
			p.state = hopeless
			continue
		}
		p.state = waiting
		i, _ := slices.BinarySearch(s.again, seq)
		s.again = slices.Insert(s.again, i, seq)
	}
	if len(s.gone) == keptStats {
		s.gone = slices.Delete(s.gone, 0, 1)
	}
	s.gone = append(s.gone, m.counts)
	s.match()
	s.ring()
}

// write writes the chunks that the worker is given.
func (m *member) write() error {
	s := m.s
	var head []byte
	var bufs net.Buffers
	these := new(net.Buffers) // WriteTo changes it
	for {
		s.mu.Lock()
		for len(m.out) == 0 && !m.last && !m.stop {
			m.wake.Wait()
		}
		if m.stop {
			s.mu.Unlock()
			return nil
		}
		n := min(len(m.out), writeMost)
		head, bufs = head[:0], bufs[:0]
		for _, seq := range m.out[:n] {
			p := s.place(seq)
			head = header{kind: kindChunk, watched: p.watched, seq: seq, length: uint64(len(p.chunk))}.append(head)
		}
		for i, seq := range m.out[:n] {
			bufs = append(bufs, head[i*headerLen:(i+1)*headerLen], s.place(seq).chunk)
		}
		m.out = slices.Delete(m.out, 0, n)
		last := n == 0
		s.mu.Unlock()
		if last {
			head = header{kind: kindEnd}.append(head)
			bufs = append(bufs, head)
		}
		*these = bufs
		if _, err := keepalive.WriteBuffers(m.conn, these); err != nil {
			return err
		}
		if last { // the worker closes its end when it has answered all its chunks
			return nil
		}
	}
}

// writeMost is how many chunks go in one system call.
const writeMost = 64

// read reads and handles the worker's frames.
func (m *member) read() error {
	in := bufio.NewReaderSize(m.conn, 32<<10)
	head := make([]byte, headerLen)
	for {
		if _, err := io.ReadFull(in, head); err != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
		h, err := parseHeader(head, m.s.c.MaxBytes)
		if err != nil {
			return err
		}
		switch h.kind {
		case kindResult:
			err = m.answer(in, h)
		case kindLeave:
			m.s.mu.Lock()
			m.s.asking = slices.DeleteFunc(m.s.asking, func(a *member) bool { return a == m })
			m.asked = 0
			m.end()
			m.s.mu.Unlock()
		case kindAsk:
		case kindBegun:
			err = m.begun(h.seq)
		default:
			err = fmt.Errorf("%w: a worker has sent a frame of kind %d, which only a supplier sends", ErrProtocol, h.kind)
		}
		if err == nil {
			err = m.ask(h.asks)
		}
		if err != nil {
			return err
		}
	}
}

// begun records that the worker has begun with a chunk.
func (m *member) begun(seq uint64) error {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if !slices.Contains(m.has, seq) {
		return fmt.Errorf("%w: a worker reports work on chunk %d, which it has not been given", ErrProtocol, seq)
	}
	m.s.place(seq).begun = true
	return nil
}

// ask records that the worker asks for more chunks.
func (m *member) ask(n uint32) error {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > maxWindow || m.asked+len(m.has)+int(n) > maxWindow {
		return fmt.Errorf("%w: a worker asks for %d chunks in addition to %d, more than %d together", ErrProtocol, n, m.asked+len(m.has), maxWindow)
	}
	if m.last { // no more chunks will come
		return nil
	}
	m.asked += int(n)
	for range n {
		s.asking = append(s.asking, m)
	}
	s.match()
	return nil
}

// answer reads the result of a chunk.
func (m *member) answer(in *bufio.Reader, h header) error {
	s := m.s
	s.mu.Lock()
	i := slices.Index(m.has, h.seq)
	if i < 0 {
		s.mu.Unlock()
		return fmt.Errorf("%w: a worker sends a result of chunk %d, which it has not been given", ErrProtocol, h.seq)
	}
	p := s.place(h.seq)
	s.mu.Unlock()
	// While the chunk is on the worker's list, only this goroutine writes here.
	if uint64(cap(p.result)) < h.length {
		p.result = make([]byte, h.length)
	}
	p.result = p.result[:h.length]
	if _, err := io.ReadFull(in, p.result); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.has = slices.Delete(m.has, i, i+1)
	p.state, p.holder = answered, nil
	m.counts.Chunks++
	m.counts.Bytes += uint64(len(p.chunk))
	if h.seq == s.result {
		s.ring()
	}
	return nil
}
