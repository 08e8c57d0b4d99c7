package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/lobby"
	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// link connects two contexts: a control socket, and the peer's segments mapped.
// The context with the lower GID dials. All QPs between the two share it.
//
//	lower GID                          higher GID
//	   connect to the abstract socket ──▶
//	   hello + control segment        ──▶
//	   ◀── hello + control segment
//	   ◀─▶ arenas + their descriptors, can I read your memory
//	   ◀─▶ open, close, closed: of QPs
//
// When the socket ends, the peer has died.
type link struct {
	ctx  *Context
	gid  verbs.GID
	self bool // the peer is this same context: no socket, messages loop back

	// Set before up is closed, constant after.
	conn   *net.UnixConn
	ctrl   *control
	pid    int  // 0: not in our PID namespace
	pidfd  int  // -1 without one
	fenced bool // one of both has no membarrier: publishing is a full fence

	segments atomic.Pointer[[]*segment] // the peer's arenas by id; nil if not known (yet)
	canRead  atomic.Bool                // we may process_vm_readv the peer
	readable atomic.Bool                // the peer may process_vm_readv us

	mu       sync.Mutex
	ctrlSeg  *segment
	up       bool
	unmapped bool
	dead     bool
	reading  bool  // the socket is being read: messages may refer to the peer's segments
	gone     bool  // dead, and the peer no longer runs or has left all inboxes
	why      error // QPs can no longer use it
	queue    []outgoing
	wake     chan struct{} // capacity 1: the queue grew, or the link died
	qps      map[uint32]*QP
	opens    map[[2]uint32]ctl   // by {dst, src}: from QPs whose peer QP here is not in RTR yet
	retired  map[[2]uint32]block // by {QP, incarnation}: inboxes until the peer has left them
	asked    map[uint32]uint64   // the peer's arenas that were named before they came: number of the question; 0: they will not come
	asks     uint64              // questions so far
}

// outgoing is a control message, with an arena's descriptor if it has one.
type outgoing struct {
	msg   ctl
	arena *arena // whose descriptor goes with it
}

// maxOpens limits the state that a peer can create here.
const maxOpens = maxQP

// maxStrangers is how many connections may wait for a hello: a peer that has to make way connects again.
const maxStrangers = 256

// link returns the link to gid, on behalf of q unless that is nil, and starts to connect a
// new one.
func (c *Context) link(gid verbs.GID, q *QP) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, verbs.Errorf(deviceName, "connect", verbs.ErrClosed, "")
	}
	if l := c.links[gid]; l != nil {
		l.use(q)
		return l, nil
	}
	l := &link{ctx: c, gid: gid, pidfd: -1, wake: make(chan struct{}, 1), qps: map[uint32]*QP{},
		opens: map[[2]uint32]ctl{}, retired: map[[2]uint32]block{}, asked: map[uint32]uint64{}}
	l.segments.Store(new([]*segment))
	c.links[gid] = l
	c.all[l] = struct{}{}
	l.fenced = c.fenced
	l.use(q)
	switch {
	case gid == c.gid:
		l.self, l.up, l.ctrl, l.pid = true, true, c.ctrl, os.Getpid()
		l.canRead.Store(probeRead(l.pid, uint64(uintptr(unsafe.Pointer(c.ctrl)))))
		l.readable.Store(l.canRead.Load())
		c.wg.Go(l.loop)
	case string(c.gid[:]) < string(gid[:]):
		c.wg.Go(l.dial)
	}
	return l, nil
}

// use notes that a QP uses the link.
func (l *link) use(q *QP) {
	if q != nil {
		l.mu.Lock()
		l.qps[q.Num] = q
		l.mu.Unlock()
	}
}

// sayForbidden says once that processes of this host cannot read each other's memory.
func (l *link) sayForbidden() {
	l.ctx.forbidden.Do(func() {
		l.ctx.log.Info("shm: process_vm_readv(2) is forbidden between this process and a peer (seccomp, kernel.yama.ptrace_scope or another PID namespace): memory that AllocMR has not made is copied twice", "peer", l.gid)
	})
}

// announce sends a new arena to all peers.
func (c *Context) announce(a *arena) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.all {
		l.mu.Lock()
		if l.up && !l.dead {
			l.sendLocked(ctl{kind: ctlArena, arena: a.id, size: uint64(len(a.mem))}, a)
		}
		l.mu.Unlock()
	}
}

// release frees a block, and tells all peers of an arena that is given back.
func (c *Context) release(b block) {
	a := c.arenas.release(b)
	if a == nil {
		return
	}
	c.tellGone(a)
	if err := a.giveBack(); err != nil {
		c.log.Warn("shm: give back an arena", "error", err)
	}
}

// tellGone tells all peers of an arena that is given back.
func (c *Context) tellGone(a *arena) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.all {
		l.send(ctl{kind: ctlGone, arena: a.id})
	}
}

func (l *link) send(m ctl) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sendLocked(m, nil)
}

// sendLocked queues a message; messages wait until the link is up.
func (l *link) sendLocked(m ctl, a *arena) {
	if l.dead {
		return
	}
	l.queue = append(l.queue, outgoing{m, a})
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next waits for the messages to send; nil means that the link is dead.
func (l *link) next() []outgoing {
	for {
		l.mu.Lock()
		q, dead := l.queue, l.dead
		l.queue = nil
		l.mu.Unlock()
		if dead {
			return nil
		}
		if len(q) > 0 {
			return q
		}
		<-l.wake
	}
}

// loop is the link of a context with itself.
func (l *link) loop() {
	l.ctx.shareArenas(l)
	for q := l.next(); q != nil; q = l.next() {
		for _, o := range q {
			if err := l.handle(o.msg, -1); err != nil {
				l.ctx.log.Error("shm: link of the context to itself failed", "error", err)
			}
		}
	}
}

// shareArenas queues the existing arenas. Context.mu is held, so none is announced
// meanwhile; one that is sent twice is mapped once.
func (c *Context) shareArenas(l *link) {
	as := c.arenas.snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	var first []outgoing
	for _, a := range as {
		first = append(first, outgoing{ctl{kind: ctlArena, arena: a.id, size: uint64(len(a.mem))}, a})
	}
	l.queue = append(first, l.queue...)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// dial connects to the peer, retrying while QPs use the link: the peer's process may start
// late, and each QP gives up by its own retry counters. Without a descriptor the link ends at once.
func (l *link) dial() {
	pauses := wait.Pauses{Least: time.Millisecond, Most: 100 * time.Millisecond}
	for {
		conn, err := net.DialUnix("unixpacket", nil, socketAddr(l.gid))
		final := errors.Is(err, limits.ErrFiles)
		if err == nil {
			if err = l.handshake(conn, true, hello{}, -1); err == nil {
				return
			}
			final = !passing(err)
		}
		over := l.failed(err, final)
		if conn != nil {
			conn.Close() // which may have the peer end the link: what has failed here is known by now
		}
		if over {
			return
		}
		select {
		case <-l.ctx.closing:
			return
		case <-pauses.After():
		}
		l.mu.Lock()
		idle := len(l.qps) == 0
		l.mu.Unlock()
		if idle && l.ctx.forget(l) {
			return
		}
	}
}

// failed ends the link if an error of dial is final, and says whether dial is over.
func (l *link) failed(err error, final bool) bool {
	select {
	case <-l.ctx.closing:
		return true
	default:
	}
	if final {
		err = limits.Files(err)
		l.ctx.log.Warn("shm: cannot connect to peer", "peer", l.gid, "error", err)
		l.end(err, false)
	}
	return final
}

// passing says whether an error is transient: the peer was too busy, not running, or went
// away, so a later handshake may succeed.
func passing(err error) bool {
	var timeout net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ETOOMANYREFS) || errors.As(err, &timeout) && timeout.Timeout()
}

// forget drops a link that never came up and that no QP uses.
func (c *Context) forget(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.qps) > 0 || l.up {
		return false
	}
	l.dead = true
	delete(c.links, l.gid)
	delete(c.all, l)
	return true
}

// accept takes connections from peers.
func (c *Context) accept() {
	strangers := &lobby.Lobby{Max: maxStrangers}
	defer strangers.Close()
	for {
		conn, err := c.listener.AcceptUnix()
		if err != nil {
			select {
			case <-c.closing:
				return
			case <-time.After(10 * time.Millisecond): // e.g. out of descriptors: keep listening
				if !errors.Is(err, limits.ErrFiles) || !strangers.Evict() {
					c.refuse(err)
				}
				continue
			}
		}
		if _, err := peerOf(conn); err != nil { // before it can occupy a place
			conn.Close()
			c.log.Warn("shm: refused a connection", "error", err)
			continue
		}
		if !strangers.Enter(conn) {
			return
		}
		c.wg.Go(func() {
			switch err := c.welcome(conn, strangers); {
			case err == nil:
			case errors.Is(err, errCrowded):
				c.log.Debug("shm: refused a connection", "error", err)
			default:
				c.refuse(err)
				conn.Close() // as in dial
			}
		})
	}
}

// refuse logs why there is no link to a peer, which tries again and again. Without a descriptor the
// links that wait for their peers end.
func (c *Context) refuse(err error) {
	select {
	case <-c.closing:
		return
	default:
	}
	err = limits.Files(err)
	level := slog.LevelWarn
	lacking := errors.Is(err, limits.ErrFiles)
	if last := c.refused.Swap(&err); last != nil && ((*last).Error() == err.Error() || lacking && errors.Is(*last, limits.ErrFiles)) {
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "shm: refused a connection", "error", err)
	if !lacking {
		return
	}
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.all))
	c.mu.Unlock()
	for _, l := range all {
		if string(l.gid[:]) < string(c.gid[:]) {
			l.endIf(func() bool { return !l.up }, err, false)
		}
	}
}

// errCrowded: a connection has been closed to make room for others, or because the context closes.
var errCrowded = errors.New("too many connections wait for a hello")

// welcome is the accepting side of the handshake.
func (c *Context) welcome(conn *net.UnixConn, strangers *lobby.Lobby) error {
	h, fd, err := readHello(conn)
	if !strangers.Leave(conn) {
		if err == nil {
			unix.Close(fd)
		}
		return errCrowded
	}
	if err != nil {
		return err
	}
	if h.to != c.gid || string(h.from[:]) >= string(c.gid[:]) {
		unix.Close(fd)
		return fmt.Errorf("hello from %v is for %v, this context is %v", h.from, h.to, c.gid)
	}
	l, err := c.link(h.from, nil)
	if err != nil {
		unix.Close(fd)
		return err
	}
	if err = l.handshake(conn, false, h, fd); err != nil {
		c.forget(l)
	} else {
		c.refused.Store(nil)
	}
	return err
}

// closeOn closes conn when ch is closed, until stop is called.
func closeOn(ch <-chan struct{}, conn io.Closer) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ch:
			conn.Close()
		case <-done:
		}
	})
	return func() { close(done); wg.Wait() }
}

// handshake exchanges hellos (the acceptor has read the peer's), maps the
// peer's control segment, and starts the link.
func (l *link) handshake(conn *net.UnixConn, dialer bool, h hello, fd int) (err error) {
	c := l.ctx
	stop := closeOn(c.closing, conn)
	defer stop()
	defer func() {
		if fd >= 0 {
			unix.Close(fd)
		}
	}()
	pid, err := peerOf(conn)
	if err != nil {
		return err
	}
	mine := hello{major: wireMajor, minor: wireMinor, arch: archCode(), pageSize: uint32(os.Getpagesize()), from: c.gid, to: l.gid, features: c.features(),
		probeAddr: uint64(uintptr(unsafe.Pointer(c.ctrl))), ctrlSize: uint64(len(c.ctrlSeg.mem))}
	if _, _, err := conn.WriteMsgUnix(mine.append(nil), unix.UnixRights(c.ctrlSeg.fd), nil); err != nil {
		return err
	}
	if dialer {
		if h, fd, err = readHello(conn); err != nil {
			return err
		}
		if h.from != l.gid || h.to != c.gid {
			return fmt.Errorf("hello from %v to %v, want %v to %v", h.from, h.to, l.gid, c.gid)
		}
	}
	seg, err := openSegment(fd, h.ctrlSize)
	fd = -1
	if err != nil {
		return err
	}
	ctrl, err := viewControl(seg)
	if err != nil {
		return errors.Join(err, seg.close())
	}
	pidfd := -1
	if pid > 0 {
		switch pidfd, err = unix.PidfdOpen(pid, 0); {
		case err == limits.ErrFiles: // without one, CMA would be given up for good
			return errors.Join(os.NewSyscallError("pidfd_open", err), seg.close())
		case err != nil:
			pidfd = -1
		}
	}
	can := ctl{kind: ctlCMA}
	if pidfd >= 0 && probeRead(pid, h.probeAddr) && processAlive(pidfd) {
		can.size = 1
	}

	c.mu.Lock()
	l.mu.Lock()
	if c.closed || l.up || l.dead {
		err = fmt.Errorf("peer %v is already connected", l.gid)
		l.mu.Unlock()
		c.mu.Unlock()
		if pidfd >= 0 {
			unix.Close(pidfd)
		}
		return errors.Join(err, seg.close())
	}
	l.conn, l.ctrlSeg, l.ctrl, l.pid, l.pidfd, l.up, l.reading = conn, seg, ctrl, pid, pidfd, true, true
	l.fenced = c.fenced || h.features&featureFenced != 0
	l.canRead.Store(can.size == 1)
	l.sendLocked(can, nil)
	l.mu.Unlock()
	c.shareArenas(l)
	c.mu.Unlock()
	c.wg.Go(l.read)
	c.wg.Go(l.write)
	return nil
}

// features returns the features of this end, for the hello.
func (c *Context) features() uint32 {
	if c.fenced {
		return featureFenced
	}
	return 0
}

// peerOf returns the PID of the peer, which must run as the same user, or 0 if it is in
// another PID namespace.
func peerOf(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, os.NewSyscallError("SO_PEERCRED", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("peer runs as user %d, this process as user %d", cred.Uid, os.Geteuid())
	}
	return int(cred.Pid), nil
}

// readHello reads the first message and the descriptor that must come with it.
func readHello(conn *net.UnixConn) (hello, int, error) {
	var buf [helloLen + 1]byte
	n, fds, err := readPacket(conn, buf[:])
	if err != nil {
		return hello{}, -1, err
	}
	h, err := parseHello(buf[:n])
	if err == nil && len(fds) != 1 {
		err = fmt.Errorf("%w: hello has %d descriptors, want 1", errWire, len(fds))
	}
	if err != nil {
		closeAll(fds)
		return h, -1, err
	}
	return h, fds[0], nil
}

// readPacket reads one packet and its descriptors, which the caller owns.
func readPacket(conn *net.UnixConn, buf []byte) (int, []int, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	var fds []int
	cms, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range cms {
		if f, ferr := unix.ParseUnixRights(&cms[i]); ferr == nil {
			fds = append(fds, f...)
		}
	}
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0 && len(fds) < 4: // the room would have been for more
		err = fmt.Errorf("%w: receive a descriptor: %w", errLack, limits.ErrFiles)
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = fmt.Errorf("%w: truncated", errWire)
	case n == 0:
		err = io.EOF
	}
	if err != nil {
		closeAll(fds)
		return 0, nil, err
	}
	return n, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// write sends the queued messages. A peer that does not read blocks only this goroutine.
func (l *link) write() {
	buf := make([]byte, 0, ctlLen)
	for q := l.next(); q != nil; q = l.next() {
		for _, o := range q {
			if err := l.writeOne(o, buf); err != nil {
				if !closed(err) { // else read hears of it
					l.end(fmt.Errorf("write to the peer's control socket: %w", err), false)
				}
				return
			}
		}
	}
}

// writeOne sends a message, with the descriptor of an arena unless that has been given back.
func (l *link) writeOne(o outgoing, buf []byte) error {
	var oob []byte
	if o.arena != nil {
		if !o.arena.pass() {
			return nil
		}
		defer func() {
			if err := o.arena.passed(); err != nil {
				l.ctx.log.Warn("shm: give back an arena", "error", err)
			}
		}()
		oob = unix.UnixRights(o.arena.fd)
	}
	for pauses := (wait.Pauses{}); ; <-pauses.After() {
		_, _, err := l.conn.WriteMsgUnix(o.msg.append(buf), oob, nil)
		if !errors.Is(err, syscall.ETOOMANYREFS) {
			return err
		}
		// Too many descriptors are in flight (unix(7)): the peer will receive them.
	}
}

// read handles the peer's messages until it is gone.
func (l *link) read() {
	var buf [ctlLen + 1]byte
	met := false // the first message comes when the peer has mapped what it needs
	for {
		n, fds, err := readPacket(l.conn, buf[:])
		switch {
		case err == nil:
			met = true
			err = l.packet(buf[:n], fds)
		case closed(err) && !met:
			l.stop(errors.New("the peer has given up connecting"), true)
			return
		case closed(err):
			l.stop(fmt.Errorf("%w: its control socket is closed", verbs.ErrPeerDied), true)
			return
		case errors.Is(err, net.ErrClosed):
			l.stop(err, false)
			return
		}
		switch {
		case errors.Is(err, errLack):
			l.unusable(limits.Files(err))
		case err != nil:
			l.ctx.log.Warn("shm: control socket", "peer", l.gid, "error", err)
			l.stop(err, false)
			return
		}
	}
}

// closed says whether an error of a socket means that the other end is closed. A writer may be told
// of it as of a socket that nothing listens at, and the reader then has a socket without a peer.
func closed(err error) bool {
	for _, e := range []error{io.EOF, syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// stop ends the link after the last message.
func (l *link) stop(why error, gone bool) {
	l.mu.Lock()
	l.reading = false
	l.mu.Unlock()
	l.end(why, gone)
}

// packet handles a message and its descriptors, which it owns.
func (l *link) packet(b []byte, fds []int) error {
	m, err := parseCtl(b)
	if err == nil && (m.kind == ctlArena) != (len(fds) == 1) || len(fds) > 1 {
		err = fmt.Errorf("%w: message of kind %d has %d descriptors", errWire, m.kind, len(fds))
	}
	if err != nil {
		closeAll(fds)
		return err
	}
	fd := -1
	if len(fds) == 1 {
		fd = fds[0]
	}
	return l.handle(m, fd)
}

// errLack: something of the peer's could not be had here.
var errLack = errors.New("memory of the peer is out of reach")

// unusable fails all QPs of the link, now and later: something of the peer's is missing here. The
// link goes on, because the peer runs, and leaves them in order.
func (l *link) unusable(err error) {
	l.mu.Lock()
	first := l.why == nil
	if first {
		l.why = err
	}
	qps := slices.Collect(maps.Values(l.qps))
	l.mu.Unlock()
	if first {
		l.ctx.log.Warn("shm: control socket", "peer", l.gid, "error", err)
	}
	for _, q := range qps {
		q.endLink(l, err, verbs.WCGeneralErr)
	}
}

// handle acts on a control message; it owns fd.
func (l *link) handle(m ctl, fd int) error {
	switch m.kind {
	case ctlArena:
		return l.addArena(m, fd)
	case ctlOpen:
		return l.opened(m)
	case ctlClose:
		l.mu.Lock()
		if o, ok := l.opens[[2]uint32{m.dst, m.src}]; ok && o.inc == m.inc {
			delete(l.opens, [2]uint32{m.dst, m.src})
		}
		l.mu.Unlock()
		if q, ok := l.ctx.qps.Get(m.dst); ok {
			q.peerClosed(l, m)
		}
		l.send(ctl{kind: ctlClosed, src: m.dst, dst: m.src, inc: m.inc})
	case ctlClosed:
		l.mu.Lock()
		b, ok := l.retired[[2]uint32{m.dst, m.inc}]
		delete(l.retired, [2]uint32{m.dst, m.inc})
		l.mu.Unlock()
		if ok {
			l.ctx.freeInbox(b)
		}
	case ctlGone:
		l.dropArena(m.arena)
	case ctlAsk:
		l.send(ctl{kind: ctlAnswer, arena: m.arena, size: m.size})
	case ctlAnswer:
		l.answered(m)
	case ctlCMA:
		l.readable.Store(m.size == 1)
	}
	return nil
}

func (l *link) addArena(m ctl, fd int) error {
	old := *l.segments.Load()
	if m.arena >= maxArenas || int(m.arena) < len(old) && old[m.arena] != nil {
		if !l.self && fd >= 0 {
			unix.Close(fd)
		}
		if m.arena >= maxArenas {
			return fmt.Errorf("%w: unexpected arena %d", errWire, m.arena)
		}
		return nil
	}
	var s *segment
	if l.self {
		a := l.ctx.arenas.get(m.arena)
		if a == nil { // given back
			return nil
		}
		s = &segment{mem: a.all, fd: -1}
	} else {
		var err error
		if s, err = openSegment(fd, m.size); err != nil {
			return fmt.Errorf("%w: %w", errLack, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unmapped {
		if l.self {
			return nil
		}
		return s.close()
	}
	segs := append([]*segment(nil), old...)
	for len(segs) <= int(m.arena) {
		segs = append(segs, nil)
	}
	segs[m.arena] = s
	l.segments.Store(&segs)
	delete(l.asked, m.arena)
	l.ctx.kick() // operations may be waiting for it
	return nil
}

// dropArena takes back what addArena has mapped. Nothing of it is in use: its owner has closed all
// regions, and waited for those inside. Slices of [QP.Map] that are nevertheless used find pages of
// zeroes, as far as package retire keeps addresses.
func (l *link) dropArena(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	segs := slices.Clone(*l.segments.Load())
	if int(id) >= len(segs) || segs[id] == nil { // it was given back before it was sent
		return
	}
	s := segs[id]
	segs[id] = nil
	l.segments.Store(&segs)
	if l.self {
		return
	}
	if err := retire.Unmap(s.mem); err != nil { // s stays as readers that are through have found it
		l.ctx.log.Warn("shm: take back a peer's arena", "peer", l.gid, "error", err)
	}
}

// lacks says whether an arena that is not mapped here is still to come. It was queued before it was
// named, so it comes before the answer to a question that is asked now, however long that takes.
func (l *link) lacks(arena uint32) reach {
	if arena >= maxArenas {
		return reachFault
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	number, asked := l.asked[arena]
	switch segs := *l.segments.Load(); {
	case int(arena) < len(segs) && segs[arena] != nil: // it has come
	case !asked:
		l.asks++
		l.asked[arena] = l.asks
		l.sendLocked(ctl{kind: ctlAsk, arena: arena, size: l.asks}, nil)
	case number == 0:
		return reachFault
	}
	return reachLater
}

// answered notes that the peer has sent what it has of an arena that was asked for.
func (l *link) answered(m ctl) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.size != 0 && l.asked[m.arena] == m.size { // it has not come before the answer
		l.asked[m.arena] = 0
		l.ctx.kick()
	}
}

// inboxAt returns the peer's inbox, after checking that it is inside its arena.
func (l *link) inboxAt(m ctl) (*inbox, error) {
	segs := *l.segments.Load()
	if int(m.arena) >= len(segs) || segs[m.arena] == nil {
		l.mu.Lock()
		why := l.why
		l.mu.Unlock()
		if why != nil { // it could not be had
			return nil, why
		}
		return nil, fmt.Errorf("%w: inbox in arena %d, which was not sent", errWire, m.arena)
	}
	mem := segs[m.arena].mem
	if m.offset%uint64(blockAlign) != 0 || m.offset > uint64(len(mem)) || uint64(len(mem))-m.offset < inboxSize {
		return nil, fmt.Errorf("%w: inbox at %#x does not fit an arena of %#x bytes", errWire, m.offset, len(mem))
	}
	return (*inbox)(unsafe.Pointer(&mem[m.offset])), nil
}

// end marks the link dead: its QPs fail. If the peer is gone, its inboxes here are free;
// otherwise they are kept until the context is closed, because the peer may still be
// writing. The socket is closed once our QPs have left the peer's inboxes, which is what
// its end tells the peer.
func (l *link) end(why error, gone bool) {
	l.endIf(func() bool { return true }, why, gone)
}

// endIf is end, unless is, with the lock held, says no.
func (l *link) endIf(is func() bool, why error, gone bool) {
	c := l.ctx
	c.mu.Lock()
	l.mu.Lock()
	if !is() {
		l.mu.Unlock()
		c.mu.Unlock()
		return
	}
	if c.links[l.gid] == l {
		delete(c.links, l.gid)
	}
	if l.dead {
		l.mu.Unlock()
		c.mu.Unlock()
		l.unmapIfUnused()
		return
	}
	l.dead, l.gone = true, gone
	if gone {
		l.why = why
	}
	l.why = cmp.Or(l.why, why)
	why = l.why
	select {
	case l.wake <- struct{}{}:
	default:
	}
	retired := l.retired
	l.retired = map[[2]uint32]block{}
	qps := slices.Collect(maps.Values(l.qps))
	conn := l.conn
	l.mu.Unlock()
	c.mu.Unlock()
	for _, q := range qps {
		q.endLink(l, why, verbs.WCRetryExcErr)
	}
	if conn != nil {
		conn.Close()
	}
	if gone {
		for _, b := range retired {
			c.freeInbox(b)
		}
	}
	l.unmapIfUnused()
}

// drop removes a QP from the link.
func (l *link) drop(num uint32) {
	l.mu.Lock()
	delete(l.qps, num)
	l.mu.Unlock()
	l.unmapIfUnused()
}

// unmapIfUnused unmaps the segments of a dead peer, once no QP is left that may have handed
// out slices of them, and the socket, whose messages may refer to them, is no longer read.
func (l *link) unmapIfUnused() {
	l.ctx.mu.Lock()
	defer l.ctx.mu.Unlock()
	l.mu.Lock()
	unused := l.dead && len(l.qps) == 0 && !l.reading
	l.mu.Unlock()
	if unused {
		if _, there := l.ctx.all[l]; there {
			delete(l.ctx.all, l)
			l.unmap()
		}
	}
}

// unmap unmaps the peer's memory.
func (l *link) unmap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unmapped = true
	if l.pidfd >= 0 {
		unix.Close(l.pidfd)
		l.pidfd = -1
	}
	if l.self {
		return
	}
	for _, s := range *l.segments.Swap(new([]*segment)) {
		if s != nil {
			s.close()
		}
	}
	if l.ctrlSeg != nil {
		l.ctrlSeg.close()
		l.ctrlSeg = nil
	}
}

// ring wakes the peer's engine.
func (l *link) ring() {
	atomic.AddUint32(&l.ctrl.doorbell, 1)
	wait.FutexWake(&l.ctrl.doorbell)
}
