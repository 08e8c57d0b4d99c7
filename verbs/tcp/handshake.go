package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/verbs"
)

// The handshake of two QPs. The one with the smaller identity dials.
//
//	dialer                                  acceptor
//	   | <---- proof of the job's secret ----> |
//	   | -- OPEN ----------------------------> |  which QP? in RTR? its peer? the PSNs?
//	   |                                       |  (parked until the QP is in RTR)
//	   | <-------------- OPENED, or REFUSED -- |
//	   | -- CONFIRM -------------------------> |  both QPs are connected
//
// The acceptor's QP adopts the connection only on CONFIRM: a dialer that has timed out
// in the meantime must not break the QP.

// refusal says why an acceptor refuses a connection. The numbers are on the wire.
type refusal uint32

const (
	refusedNoQP  refusal = 1 // no such QP
	refusedPeer  refusal = 2 // the QP's peer is another QP
	refusedPSN   refusal = 3 // one end is from before a reset of its QP
	refusedState refusal = 4 // the QP is in ERR, or was connected and no longer is
	refusedBusy  refusal = 5 // the QP is already connected
	refusedLater refusal = 6 // the QP did not get to RTR in time
)

func (r refusal) Error() string {
	switch r {
	case refusedNoQP:
		return "refused: no such QP"
	case refusedPeer:
		return "refused: the QP is configured for another peer"
	case refusedPSN:
		return "refused: the PSNs do not match"
	case refusedState:
		return "refused: the QP is in ERR or was disconnected"
	case refusedBusy:
		return "refused: the QP is already connected"
	case refusedLater:
		return "refused: the QP did not reach RTR in time"
	}
	return fmt.Sprintf("refused: reason %d", uint32(r))
}

// Times of the handshake.
const (
	maxHandshake = 5 * time.Second // for steps that a live peer takes at once
	firstRetry   = time.Millisecond
	lastRetry    = 250 * time.Millisecond
)

func (a *adapter) handshakeTime() time.Duration { return min(a.cfg.PeerTimeout, maxHandshake) }

// parkTime is how long an accepted connection waits for its QP to reach RTR.
func (a *adapter) parkTime() time.Duration { return a.cfg.PeerTimeout }

func (a *adapter) proofParams(self identity) proof.Params {
	return proof.Params{Secret: a.cfg.Secret, Insecure: a.cfg.Insecure, Protocol: protocolName,
		Major: wireMajor, Minor: wireMinor, Job: a.cfg.Job, Self: self.bytes()}
}

// readHandshake reads exactly one frame of the handshake.
func readHandshake(r io.Reader) (frame, error) {
	var f frame
	var b [handshakeSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return f, fmt.Errorf("read handshake: %w", err)
	}
	n, err := f.Parse(b[:])
	if err == nil && n != handshakeSize {
		err = fmt.Errorf("%w: %v during the handshake", errFrame, f.kind)
	}
	return f, err
}

func writeHandshake(w io.Writer, f *frame) error {
	_, err := w.Write(f.Append(nil))
	return err
}

// welcome takes an accepted connection through the handshake.
func (a *adapter) welcome(nc net.Conn, gid verbs.GID) {
	if err := a.admit(nc, gid); err != nil {
		nc.Close()
		log := &a.log
		if p := new(proof.Error); errors.As(err, &p) && p.Peer == nil {
			log = &a.noise // it did not even identify itself
		}
		if a.life.Err() == nil {
			log.warn("tcp: connection refused", "from", nc.RemoteAddr().String(), "err", err)
		}
	}
}

// admit does the work of welcome and returns the error. Without an error, the caller no
// longer owns the connection.
func (a *adapter) admit(nc net.Conn, gid verbs.GID) error {
	if err := nc.SetDeadline(time.Now().Add(a.handshakeTime())); err != nil {
		return err
	}
	self := identity{gid: gid, port: a.port}
	peer, err := proof.Accept(nc, a.proofParams(self), func(id []byte) bool { return len(id) == identitySize })
	if err != nil {
		return err
	}
	if !a.hall.admit(nc) {
		return errCrowded
	}
	theirs, err := readHandshake(nc)
	if err != nil {
		return err
	}
	if theirs.kind != kindOpen {
		return fmt.Errorf("%w: got %v, want OPEN", errFrame, theirs.kind)
	}
	q, life, ours, err := a.park(peer.ID, &theirs)
	if err := nc.SetDeadline(time.Now().Add(a.handshakeTime())); err != nil {
		return err
	}
	if err != nil {
		var why refusal
		if errors.As(err, &why) {
			no := frame{kind: kindRefused, dst: theirs.src, src: theirs.dst, status: uint32(why)}
			return errors.Join(err, writeHandshake(nc, &no))
		}
		return err
	}
	if err := writeHandshake(nc, &ours); err != nil {
		return err
	}
	confirm, err := readHandshake(nc)
	if err != nil {
		return err
	}
	if confirm.kind != kindConfirm || confirm.dst != theirs.dst || confirm.src != theirs.src {
		return fmt.Errorf("%w: got %v, want CONFIRM", errFrame, confirm.kind)
	}
	a.hall.leave(nc) // the end of the context closes guests, but lets QPs' connections finish sending
	return q.takeOver(life, &theirs, nc)
}

var errCrowded = errors.New("too many connections are waiting for their queue pairs")

// park waits until the QP that an OPEN names accepts or refuses.
func (a *adapter) park(id []byte, theirs *frame) (q *qp, life uint32, ours frame, err error) {
	late := time.NewTimer(a.parkTime())
	defer late.Stop()
	for {
		q, ok := a.qps.Get(theirs.dst)
		if !ok {
			return nil, 0, frame{}, refusedNoQP
		}
		life, ours, changed, err := q.consider(id, theirs)
		if err != refusedLater {
			return q, life, ours, err
		}
		select {
		case <-changed:
		case <-late.C:
			return nil, 0, frame{}, err
		case <-a.life.Done():
			return nil, 0, frame{}, a.life.Err()
		}
	}
}

// consider says whether the QP accepts the connection of the dialer with the given
// identity: with a nil error, ours is the OPENED for it. After refusedLater, call it again
// when changed is closed.
func (q *qp) consider(id []byte, theirs *frame) (life uint32, ours frame, changed <-chan struct{}, err error) {
	q.Lock.Lock()
	defer q.Unlock()
	switch q.State() {
	case verbs.QPReset, verbs.QPInit:
		return 0, ours, q.changed, refusedLater
	case verbs.QPErr:
		return 0, ours, nil, refusedState
	}
	switch {
	case string(id) != string(q.remote.bytes()), theirs.src != q.remote.qpn, q.local.compare(q.remote) <= 0:
		return 0, ours, nil, refusedPeer
	case !q.agrees(theirs):
		return 0, ours, nil, refusedPSN
	case q.link == linkUp:
		return 0, ours, nil, refusedBusy
	case q.link != linkWiring:
		return 0, ours, nil, refusedState
	}
	return q.life, q.terms(kindOpened), nil, nil
}

// terms returns a handshake frame with the QP's terms.
func (q *qp) terms(k kind) frame {
	f := frame{kind: k, dst: q.remote.qpn, src: q.Num, psn: q.Attr.SQPSN, expectPSN: q.Attr.RQPSN, maxAnswers: q.Attr.MaxDestRdAtomic}
	if q.State() != verbs.QPRTR {
		f.flags = flagFinal
	}
	return f
}

// agrees compares the first PSNs of both ends, as far as they are final. They differ if
// either QP has been reset since.
func (q *qp) agrees(theirs *frame) bool {
	if theirs.flags&flagFinal != 0 && theirs.psn != q.Attr.RQPSN {
		return false
	}
	return q.State() == verbs.QPRTR || theirs.expectPSN == q.Attr.SQPSN
}

// takeOver hands a connection to the QP.
func (q *qp) takeOver(life uint32, theirs *frame, nc net.Conn) error {
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return err
	}
	ok, err := q.attach(life, theirs, q.adoptNet(nc))
	if err == nil && !ok {
		err = refusedState
	}
	return err
}

// dial connects to the peer, retrying until ctx ends.
func (q *qp) dial(ctx context.Context, life uint32) {
	var told string
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := q.dialOnce(ctx, life)
		if err == nil || ctx.Err() != nil {
			return
		}
		err = limits.Files(err)
		q.Lock.Lock()
		if q.life == life {
			q.undialed = err
		}
		q.Lock.Unlock()
		if told != err.Error() {
			told = err.Error()
			q.a.log.warn("tcp: cannot connect to peer, retrying", "qp", q.Num, "peer", q.remote.String(), "err", err)
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

func (q *qp) dialOnce(ctx context.Context, life uint32) error {
	q.Lock.Lock()
	local, remote := q.local, q.remote
	q.Unlock()
	a := q.a
	d := net.Dialer{Timeout: a.handshakeTime(), KeepAliveConfig: keepalive.Within(a.cfg.PeerTimeout),
		LocalAddr: &net.TCPAddr{IP: local.gid.Addr().AsSlice()}, Control: lendPort}
	nc, err := d.DialContext(ctx, "tcp", remote.addrPort().String())
	if err != nil {
		return err
	}
	// When ctx ends, calls that block here end.
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	theirs, err := q.open(ctx, nc, local, remote)
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err == nil {
		err = q.takeOver(life, theirs, nc)
	}
	if err != nil {
		nc.Close()
	}
	return err
}

// open is the dialer's side of the handshake.
func (q *qp) open(ctx context.Context, nc net.Conn, local, remote identity) (*frame, error) {
	a := q.a
	if err := nc.SetDeadline(time.Now().Add(a.handshakeTime())); err != nil {
		return nil, err
	}
	if _, err := proof.Dial(nc, a.proofParams(local), remote.any().bytes()); err != nil {
		return nil, err
	}
	q.Lock.Lock()
	ours := q.terms(kindOpen)
	q.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err() // the QP has been reset since
	}
	if err := writeHandshake(nc, &ours); err != nil {
		return nil, err
	}
	if err := nc.SetDeadline(time.Now().Add(a.parkTime() + a.handshakeTime())); err != nil {
		return nil, err
	}
	theirs, err := readHandshake(nc)
	switch {
	case err != nil:
		return nil, err
	case theirs.kind == kindRefused:
		return nil, refusal(theirs.status)
	case theirs.kind != kindOpened || theirs.dst != ours.src || theirs.src != ours.dst:
		return nil, fmt.Errorf("%w: got %v, want OPENED", errFrame, theirs.kind)
	}
	q.Lock.Lock()
	agreed := q.agrees(&theirs)
	q.Unlock()
	if !agreed {
		return nil, refusedPSN
	}
	confirm := frame{kind: kindConfirm, dst: ours.dst, src: ours.src}
	return &theirs, writeHandshake(nc, &confirm)
}
