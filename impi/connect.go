package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/lobby"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// connectHosts connects this host with all others: it connects to those with lower numbers and sends its
// own number as four bytes; those with higher numbers connect to it (IMPI 0.0, section 2.5). Hosts
// of this package then prove to each other that they know the key of the job. The result has a
// connection for each host, nil for this one.
func (r *roster) connectHosts(ctx context.Context, l net.Listener, c *Config) (conns []*net.TCPConn, err error) {
	d := &connecting{roster: r, conns: make([]*net.TCPConn, len(r.hosts)), config: c, change: make(chan struct{}, 1),
		greeting: lobby.Lobby{Max: maxGreetings + 2*len(r.hosts)}, probes: map[int]net.Conn{}}
	defer d.endProbes()
	ctx, cancel := r.await(ctx, c, d.missing, d.ended)
	defer cancel()
	defer func() {
		if err != nil {
			for _, conn := range conns {
				if conn != nil {
					conn.Close()
				}
			}
			conns = nil
		}
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		cancel()
		// It stays open until the caller has finished: see ended.
		l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Unix(1, 0))
	}()
	failed := make(chan error, r.me+1)
	wg.Go(func() {
		if err := d.accept(ctx, l, &wg); err != nil {
			failed <- err
		}
	})
	for i := range r.me {
		wg.Go(func() { failed <- d.dial(ctx, i) })
	}
	for dialed := 0; ; {
		if dialed == r.me && len(d.missing()) == 0 {
			return d.conns, nil
		}
		select {
		case err := <-failed:
			if err != nil {
				return d.taken(), r.cause(ctx, err)
			}
			dialed++
		case <-d.change:
		case <-ctx.Done():
			err := context.Cause(ctx)
			if list := d.missing(); len(list) > 0 {
				err = r.cause(ctx, r.unreachable(list[0], err))
			}
			return d.taken(), err
		}
	}
}

// first returns the rank of the first process of a host.
func (r *roster) first(host int) int {
	n := 0
	for i := range host {
		n += len(r.hosts[i].procs)
	}
	return n
}

// connecting is the state of connectHosts.
type connecting struct {
	*roster
	config *Config
	change chan struct{} // a host has connected

	greeting lobby.Lobby // those not identified or not authenticated yet

	mu     sync.Mutex
	conns  []*net.TCPConn
	over   bool
	probes map[int]net.Conn // to the listeners of hosts that have yet to connect
	probed sync.WaitGroup
}

// missing returns the hosts that have not connected.
func (d *connecting) missing() (list []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range d.conns {
		if c == nil && i != d.me {
			list = append(list, i)
		}
	}
	return list
}

// ended is an endedFunc. Of a foreign host only time tells. Another host listens until it has agreed
// with this one on the way of packets, and its kernel accepts for it while it is stopped. One
// connection to the listener is kept: more would crowd out those of other hosts.
func (d *connecting) ended(ctx context.Context, host int) error {
	near := d.near(host)
	switch known, err := d.asked(ctx, host); {
	case known:
		return err
	case d.hosts[host].foreign:
		return fmt.Errorf("%w: it has not connected within %v", ErrTimeout, d.config.PeerTimeout)
	case near && host < d.me: // the connection that dial makes tells
		return nil
	}
	d.mu.Lock()
	probe := d.probes[host]
	d.mu.Unlock()
	if probe != nil {
		return nil
	}
	within, stop := wait.Patience(ctx, d.config.PeerTimeout)
	defer stop()
	addrs := d.hosts[host].texts()
	loops := func(a string) bool { return netip.MustParseAddrPort(a).Addr().IsLoopback() }
	if !near && !loops(addrs[0]) { // loopback, which comes last, leads to another process
		addrs = slices.DeleteFunc(addrs, loops)
	}
	probe, err := reach.Dial(within, addrs, reach.Options{
		Silence: d.config.PeerTimeout,
		Meet:    func(net.Conn) (bool, error) { return false, nil },
	})
	switch {
	case err == nil:
		return d.keep(host, probe)
	case ctx.Err() != nil || errors.Is(limits.Files(err), limits.ErrFiles): // this tells nothing of it
		return nil
	case near && within.Err() != nil: // its queue is full
		return nil
	case within.Err() != nil:
		return fmt.Errorf("%w: it has not accepted a connection within %v: %w", ErrTimeout, d.config.PeerTimeout, err)
	}
	return err
}

// keep keeps a connection to the listener of a host until the host ends it, or has connected. The host
// may have ended, or refused it for want of room: the next one tells.
func (d *connecting) keep(host int, probe net.Conn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[host] != nil {
		probe.Close()
		return nil
	}
	d.probes[host] = probe
	d.probed.Go(func() {
		io.Copy(io.Discard, probe)
		probe.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.probes, host)
	})
	return nil
}

// dropProbe closes one probe, for its descriptor. False: there is none.
func (d *connecting) dropProbe() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, probe := range d.probes {
		probe.Close() // see keep
		return true
	}
	return false
}

// endProbes closes all probes. No host is asked any more.
func (d *connecting) endProbes() {
	d.mu.Lock()
	for _, probe := range d.probes {
		probe.Close()
	}
	d.mu.Unlock()
	d.probed.Wait()
}

// taken refuses further connections and returns the connections made so far.
func (d *connecting) taken() []*net.TCPConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	return d.conns
}

// admit records a connection as that of a host, unless the host has one already.
func (d *connecting) admit(host int, conn *net.TCPConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[host] != nil || d.over {
		return fmt.Errorf("IMPI host %d is already connected", host)
	}
	if err := keepalive.Spare(conn); err != nil {
		return err
	}
	d.conns[host] = conn
	if probe := d.probes[host]; probe != nil {
		probe.Close()
	}
	select {
	case d.change <- struct{}{}:
	default:
	}
	return nil
}

// dial connects to a host with a lower number.
func (d *connecting) dial(ctx context.Context, host int) error {
	h := &d.hosts[host]
	dialer := net.Dialer{Timeout: d.config.PeerTimeout, KeepAliveConfig: keepalive.Within(d.config.PeerTimeout)}
	if d.config.Addr.IsValid() && !d.config.Addr.IsUnspecified() {
		// A foreign host may recognize us by our address, as LAM/MPI does.
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.config.Addr, 0))
	}
	pauses := wait.Redial()
	for refused := 0; ; refused++ {
		nc, err := reach.Dial(ctx, h.texts(), reach.Options{
			Dialer: dialer, Patient: !h.foreign && d.near(host),
			Meet: func(conn net.Conn) (bool, error) { return false, d.introduce(conn, host) },
		})
		if err == nil {
			conn := nc.(*net.TCPConn)
			if err = d.admit(host, conn); err == nil {
				return nil
			}
			conn.Close()
		}
		if !reach.HungUp(err) || refused == refusals {
			return d.unreachable(host, err)
		}
		select {
		case <-pauses.After():
		case <-ctx.Done():
			return d.unreachable(host, err)
		}
	}
}

// How often a refused connection is retried: one is also refused if too many others have not identified
// themselves.
const refusals = 3

func (d *connecting) introduce(conn net.Conn, host int) error {
	if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(d.me))); err != nil {
		return err
	}
	if d.hosts[host].foreign || d.hosts[d.me].foreign {
		return nil
	}
	_, err := proof.Dial(conn, d.params(), binary.BigEndian.AppendUint32(nil, uint32(host)))
	return err
}

func (d *connecting) params() proof.Params {
	return proof.Params{Secret: d.secret, Insecure: len(d.secret) == 0, Protocol: "sluice-impi", Major: wireMajor, Job: d.job,
		Self: binary.BigEndian.AppendUint32(nil, uint32(d.me))}
}

// accept takes connections until taken. A peer that sends nothing, or something
// invalid, does not hold up the others. The error is that there is no descriptor for one, after those that
// do not identify themselves have been closed.
func (d *connecting) accept(ctx context.Context, l net.Listener, wg *sync.WaitGroup) error {
	said := false
	for {
		nc, err := l.Accept()
		if err != nil {
			lacking := errors.Is(err, limits.ErrFiles)
			switch {
			case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
				return nil
			case !said && !lacking:
				said = true
				d.config.Log.Warn("impi: cannot accept a connection", "error", limits.Files(err))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(10 * time.Millisecond):
			}
			if lacking && !d.dropProbe() && !d.greeting.Evict() {
				return err
			}
			continue
		}
		said = false
		conn := nc.(*net.TCPConn)
		if !d.greeting.Enter(conn) {
			return nil
		}
		wg.Go(func() {
			defer d.greeting.Leave(conn)
			if err := d.greet(ctx, conn); err != nil {
				level := slog.LevelWarn
				if err == io.EOF || ctx.Err() != nil { // it has said nothing, or is not needed any more
					level = slog.LevelDebug
				}
				d.config.Log.Log(ctx, level, "impi: connection refused", "from", conn.RemoteAddr(), "error", err)
				conn.Close()
			}
		})
	}
}

// maxGreetings bounds the connections that have not identified themselves yet, in addition to two
// for each host: see ended.
const maxGreetings = 64

// comesFrom says whether a connection comes from one of the host's known addresses. Hosts of this
// package authenticate; for a foreign one this is the only check.
func (m *member) comesFrom(conn *net.TCPConn) bool {
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	return slices.ContainsFunc(m.addrs, func(a netip.AddrPort) bool {
		return a.Addr().Unmap() == from || a.Addr().IsUnspecified()
	})
}

// wireMajor is the version of what hosts of this package say to each other over a connection.
const wireMajor = 3

// greet identifies and authenticates a connection.
func (d *connecting) greet(ctx context.Context, conn *net.TCPConn) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [4]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return err
	}
	host := binary.BigEndian.Uint32(b[:])
	if uint64(host) >= uint64(len(d.hosts)) || int(host) <= d.me {
		return fmt.Errorf("%w: IMPI host %d connected to host %d, which accepts only higher numbers below %d", ErrProtocol, host, d.me, len(d.hosts))
	}
	if d.hosts[host].foreign && !d.hosts[host].comesFrom(conn) {
		return fmt.Errorf("%w: IMPI host %d did not connect from its announced address, %v", ErrProtocol, host, d.hosts[host].addrs[0].Addr())
	}
	if !d.hosts[host].foreign && !d.hosts[d.me].foreign {
		known := func(id []byte) bool { return len(id) == 4 && binary.BigEndian.Uint32(id) == host }
		if _, err := proof.Accept(conn, d.params(), known); err != nil {
			return err
		}
	}
	if !stop() {
		return context.Cause(ctx)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if !d.greeting.Leave(conn) {
		return errors.New("it did not prove itself in time, and newer connections took its place")
	}
	return d.admit(int(host), conn)
}
