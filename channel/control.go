package channel

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// connect begins the wire-up unless it has begun.
func (p *peer) connect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() != peerIdle {
		return
	}
	p.state.Store(peerConnecting)
	ctx, cancel := context.WithCancel(p.node.life)
	p.stopDial = cancel
	p.node.wg.Go(func() { p.dial(ctx, cancel) })
}

// dial connects to the peer, which may do the same: the lower rank takes the first connection that
// has been proved to it, and says so over it. A peer that runs and does not answer is waited for: a
// system call may hold it up, or the lack of a CPU.
func (p *peer) dial(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	var gone error
	answered := p.node.silent.watch(p, func(why error) {
		gone = why
		cancel()
	})
	defer answered()
	pauses := wait.Redial()
	for refused := 0; ; {
		conn, err := p.node.dialRank(ctx, p)
		used := err == nil && p.take(conn)
		p.setProved(false)
		switch {
		case used:
			answered()
			p.serve(conn)
			return
		case err == nil:
			conn.Close()
			return
		case p.awaitTaken(ctx):
			return
		case errors.Is(err, proof.ErrRefused) || errors.Is(err, errNotTaken) || reach.HungUp(err):
			if refused++; refused < refusals {
				select {
				case <-pauses.After():
					continue
				case <-ctx.Done():
					if p.awaitTaken(ctx) {
						return
					}
				}
			}
		}
		if answered(); gone != nil {
			err = unmet(gone)
		} else {
			err = p.whyNot(err)
		}
		if p.giveUp(gone != nil) {
			p.fail(err)
		}
		return
	}
}

// giveUp ends the attempt to connect: no connection is taken any more. It waits for those that are
// offered unless it is to do so at once. False: one is used.
func (p *peer) giveUp(now bool) bool {
	for now || !p.awaitTaken(p.node.life) {
		p.mu.Lock()
		used := p.conn != nil
		p.hopeless = !used && (now || p.offers == 0 || p.node.life.Err() != nil)
		over := used || p.hopeless
		p.mu.Unlock()
		if over {
			return !used
		}
	}
	return false
}

// awaitTaken says whether a connection is used. While the peer offers one of which that is not
// decided yet, it waits.
func (p *peer) awaitTaken(ctx context.Context) bool {
	for pauses := wait.Redial(); ; {
		p.mu.Lock()
		used, offered := p.conn != nil, p.offers > 0
		p.mu.Unlock()
		if used || !offered {
			return used
		}
		select {
		case <-p.met:
		case <-pauses.After():
		case <-ctx.Done():
			return false
		}
	}
}

// whyNot returns why a peer could not be connected: it has left or died, according to the
// rendezvous, or is unreachable. A leaving peer closes its listener shortly before it says
// goodbye.
func (p *peer) whyNot(err error) error {
	if errors.Is(err, limits.ErrFiles) { // nothing is to be learnt of the peer
		return fmt.Errorf("%w: %w", ErrUnreachable, limits.Files(err))
	}
	// The wait ends with a connection of the peer's. A goodbye takes less than a timeout: then none is needed.
	stop := p.met
	if silent := net.Error(nil); errors.As(err, &silent) && silent.Timeout() {
		stop = make(chan struct{})
		close(stop)
	}
	return cmp.Or(p.became(stop), fmt.Errorf("%w: %w", ErrUnreachable, err))
}

// whyBroken returns why the wire-up has ended: if the connection has, the peer may have left.
func (p *peer) whyBroken(err error) error {
	if !reach.HungUp(err) {
		return err
	}
	return cmp.Or(p.became(nil), err)
}

// unmet is the error of a peer that was gone, as the rendezvous says, before it was connected.
func unmet(gone error) error {
	e := (*boot.RankError)(nil)
	switch named := errors.As(gone, &e); {
	case named && errors.Is(gone, ErrPeerLeft):
		return &unmetError{gone, fmt.Sprintf("%v: rank %d closed its node before the two ranks were connected", ErrPeerLeft, e.Rank)}
	case named && errors.Is(gone, ErrPeerDied):
		return &unmetError{gone, fmt.Sprintf("%v: rank %d ended before the two ranks were connected: look at its output", ErrPeerDied, e.Rank)}
	}
	return fmt.Errorf("%w, before the two ranks were connected", gone)
}

// unmetError is an error with another text.
type unmetError struct {
	error
	text string
}

func (e *unmetError) Error() string { return e.text }
func (e *unmetError) Unwrap() error { return e.error }

// became asks the rendezvous what has become of a peer that has just ended a connection, for as long as a
// goodbye takes, or until stop is closed, or this rank leaves too, which is ErrClosed then. nil: nothing is known.
func (p *peer) became(stop <-chan struct{}) error {
	soon, cancel := wait.Patience(p.node.open, goodbyeTime)
	defer cancel()
	for pauses := wait.Redial(); ; {
		if gone := p.node.gone(soon, p.rank); gone != nil && !errors.Is(gone, ErrUnreachable) {
			return unmet(gone)
		}
		select {
		case <-stop:
			return nil
		default:
		}
		select {
		case <-pauses.After():
			continue
		case <-p.node.job.Done():
		case <-soon.Done():
		case <-stop:
		}
		if p.node.closing.Load() {
			return ErrClosed
		}
		return nil
	}
}

// How often a rank is refused before it gives up: a connection is also refused if too many others wait to
// be authenticated.
const refusals = 3

// offer counts a connection that the peer is about to prove, or refuses it. The caller ends that
// with endOffer, when the connection has been taken or has ended.
func (p *peer) offer() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() >= peerFailed || p.hopeless {
		return false
	}
	if p.rank < p.node.rank && (p.conn != nil || p.offers >= maxOffers) { // that rank has decided, or makes no sense
		return false
	}
	p.offers++
	return true
}

// maxOffers bounds the connections that a lower rank leaves undecided. It makes one at a time.
const maxOffers = 4

// setProved notes that a connection of this rank's has been proved, until it is used or has ended.
func (p *peer) setProved(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proved = is
}

func (p *peer) endOffer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offers--
}

// taken is what the lower rank says over the connection that is used; it closes others.
const taken = 1

// errNotTaken: the lower rank has closed a connection that was proved to it.
var errNotTaken = errors.New("this connection is not used")

// awaitUse waits, at the higher rank, until the lower one says that it uses a connection. Closing
// that ends the wait.
func (p *peer) awaitUse(conn io.Reader) error {
	if p.rank > p.node.rank {
		return nil
	}
	var b [1]byte
	switch _, err := io.ReadFull(conn, b[:]); {
	case err == io.EOF:
		return errNotTaken
	case err != nil:
		return err
	case b[0] != taken:
		return fmt.Errorf("%w: %d in place of %d, by which a rank takes a connection", ErrProtocol, b[0], taken)
	}
	return nil
}

// take makes conn the connection that is used. False: there is one, or none is taken any more. The
// lower rank says so over it.
func (p *peer) take(conn net.Conn) bool {
	p.mu.Lock()
	if p.state.Load() >= peerFailed || p.hopeless || p.conn != nil {
		p.mu.Unlock()
		return false
	}
	p.conn = conn
	close(p.met)
	if p.state.Load() == peerIdle {
		p.state.Store(peerConnecting)
	}
	if p.stopDial != nil {
		p.stopDial()
	}
	p.mu.Unlock()
	if p.rank > p.node.rank {
		conn.Write([]byte{taken}) // if it fails, so does what follows
	}
	return true
}

// serve runs a connection: the wire-up, then the declarations.
func (p *peer) serve(conn net.Conn) {
	n := p.node
	defer close(p.served)
	r := bufio.NewReader(conn)
	err := p.wireUp(conn, r)
	if err != nil {
		err = p.whyBroken(err)
	} else {
		conn.SetDeadline(time.Time{})
		n.wg.Go(func() { p.write(conn) })
		err = p.read(r)
	}
	p.mu.Lock()
	leaving := p.bye
	p.mu.Unlock()
	switch {
	case n.life.Err() != nil || leaving || errors.Is(err, ErrClosed):
		err = ErrClosed
	case errors.Is(err, errBye):
		err = ErrPeerLeft
	case errors.Is(err, ErrUnreachable) || errors.Is(err, ErrProtocol) || errors.Is(err, ErrPeerDied) || errors.Is(err, ErrPeerLeft):
	case errors.Is(err, limits.ErrFiles): // of this rank
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	case reach.HungUp(err):
		err = fmt.Errorf("%w: the connection to its process ended; look at the output of rank %d", ErrPeerDied, p.rank)
	default:
		err = fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	if q := p.queue; q != nil && errors.Is(err, ErrPeerLeft) {
		// What the peer received before it left is acknowledged through the queue pair.
		ctx, cancel := n.patience()
		p.drain(ctx, q)
		cancel()
	}
	p.fail(err)
	if !leaving && !errors.Is(err, ErrPeerLeft) {
		n.log.Debug("channel: lost a peer", "peer", p.rank, "error", *p.err.Load())
	}
}

// lost ends the peer because its queue pair has ended. If it has left or died, the
// control connection is about to say which.
func (p *peer) lost(err error) {
	switch {
	case errors.Is(err, ErrProtocol):
		p.fail(err)
		return
	case errors.Is(err, limits.ErrFiles): // it is this rank that cannot go on
		p.fail(fmt.Errorf("%w: %w", ErrUnreachable, err))
		return
	}
	soon, cancel := wait.Patience(context.Background(), verdictTime)
	defer cancel()
	select {
	case <-p.served:
	case <-soon.Done():
		p.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	}
}

// unmapped ends the peer if its memory can no longer be reached. If its process has ended, the
// control connection is about to say so, or has done so.
func (p *peer) unmapped() {
	switch cause := p.link.qp.Cause(); {
	case errors.Is(cause, verbs.ErrPeerDied):
		p.mu.Lock()
		p.bury()
		p.mu.Unlock()
	case cause != nil:
		p.fail(fmt.Errorf("%w: %w", ErrUnreachable, cause))
	}
}

// verdictTime is how long to wait for the control connection to say why a queue pair ended.
const verdictTime = time.Second

// ping asks the peer for a pong, which comes behind all that the peer has queued, and returns the
// number of both. The pong of a higher number says the same.
func (p *peer) ping() uint64 {
	n := p.pings.Add(1)
	p.nudge()
	return n
}

// heardPing handles a ping or a pong.
func (p *peer) heardPing(k kind, body []byte) error {
	n := uint64(0)
	if len(body) == 8 {
		n = binary.BigEndian.Uint64(body)
	}
	switch last := p.pings.Load(); {
	case n == 0 || k == kindPong && (n > last || p.queue == nil):
		return fmt.Errorf("%w: %v of %d bytes, number %d; last ping is %d", ErrProtocol, k, len(body), n, last)
	case k == kindPing:
		p.pong.Store(n)
		p.nudge()
	default:
		p.queue.ponged(n)
	}
	return nil
}

// errBye: the peer has said goodbye.
var errBye = errors.New("bye")

// write sends queued messages until the peer fails or goodbye has been sent.
func (p *peer) write(conn net.Conn) {
	pinged := uint64(0)
	for {
		pong := p.pong.Swap(0) // before what is queued is taken
		p.mu.Lock()
		out, bye := p.out, p.bye
		p.out, p.once = nil, nil
		if len(out) == 0 {
			p.node.unwritten.set(&p.unwritten, false)
		}
		p.mu.Unlock()
		if !bye {
			if pong > 0 {
				out = append(out, frame(nil, kindPong, binary.BigEndian.AppendUint64(nil, pong)))
			}
			if ping := p.pings.Load(); ping > pinged {
				out = append(out, frame(nil, kindPing, binary.BigEndian.AppendUint64(nil, ping)))
				pinged = ping
			}
		}
		for _, b := range out {
			if _, err := conn.Write(b); err != nil {
				return // the reader sees the error too
			}
		}
		if bye {
			conn.(interface{ CloseWrite() error }).CloseWrite()
			return
		}
		if p.state.Load() >= peerFailed {
			return
		}
		if len(out) == 0 {
			<-p.wake
		}
	}
}

// read handles the declarations of the peer.
func (p *peer) read(r io.Reader) error {
	for {
		k, body, err := readFrame(r)
		if err != nil {
			return err
		}
		switch k {
		case kindStream, kindPipe:
			var s streamInfo
			switch s, err = parseStream(k, body); {
			case err != nil:
			case k == kindStream:
				err = p.addStream(s)
			default:
				err = p.addPipe(s)
			}
		case kindLayout:
			var l layoutInfo
			if l, err = parseLayout(body); err == nil {
				err = p.learn(l)
			}
		case kindDrop:
			if len(body) != 4 {
				return fmt.Errorf("%w: %v of %d bytes", ErrProtocol, k, len(body))
			}
			p.dropLayout(binary.BigEndian.Uint32(body))
		case kindEnd:
			err = p.ended(body)
		case kindRest:
			err = p.heardRest(body)
		case kindFault:
			var f faultInfo
			if f, err = parseFault(body); err == nil {
				p.node.faulted(p.rank, f)
			}
		case kindCall:
			var c callInfo
			if c, err = parseCall(body); err == nil {
				p.node.checkCall(c, p.rank)
			}
		case kindPing, kindPong:
			err = p.heardPing(k, body)
		case kindBye:
			return errBye
		default:
			err = fmt.Errorf("%w: %v after the wire-up", ErrProtocol, k)
		}
		if err != nil {
			return err
		}
		p.node.bell.Ring() // what it has said may be what messages wait for
		select {
		case p.node.heard <- struct{}{}:
		default:
		}
	}
}
