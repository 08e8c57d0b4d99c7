package channel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/proof"
)

// meet opens the listener for control connections and exchanges its address with
// all ranks.
func (n *Node) meet(ctx context.Context) error {
	if n.size == 1 {
		return nil
	}
	lc := net.ListenConfig{KeepAliveConfig: keepalive.Within(n.opt.peerTimeout)}
	l, err := lc.Listen(ctx, "tcp", ":0")
	if err != nil {
		return err
	}
	n.listener = l
	mine := address{host: machine.ID(), kernel: machine.Kernel(), port: uint16(l.Addr().(*net.TCPAddr).Port), cpus: machine.CPUs(), addrs: localAddresses()}
	settings, err := n.opt.coll.AppendBinary(nil)
	if err != nil {
		return err
	}
	settings = n.opt.routes.append(settings)
	all, err := n.job.Exchange(ctx, mine.append(settings))
	if abort := (*boot.AbortError)(nil); errors.As(err, &abort) {
		err = fmt.Errorf("%w: %w", ErrAborted, err)
	}
	if err != nil {
		return err
	}
	n.addresses = make([]address, n.size)
	for i, b := range all {
		var theirs coll.Settings
		k, err := theirs.ParseBinary(b)
		if err != nil {
			return fmt.Errorf("rank %d: %w: %w", i, ErrProtocol, err)
		}
		if differ := coll.Diff(n.opt.coll, theirs); differ != "" {
			return fmt.Errorf("%w: collective settings differ between rank %d and rank %d: %s", ErrInvalid, n.rank, i, differ)
		}
		differ, rest, err := n.opt.routes.differ(b[k:])
		if err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
		if differ != "" {
			return fmt.Errorf("%w: message settings differ between rank %d and rank %d: %s", ErrInvalid, n.rank, i, differ)
		}
		if n.addresses[i], err = parseAddress(rest); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	n.spins = spins(n.addresses, n.addresses[n.rank].kernel)
	n.wg.Go(n.accept)
	return nil
}

// spins is how long to spin given the ranks of a kernel: if they outnumber the CPUs that they
// may run on, spinning keeps the awaited rank from running.
func spins(all []address, kernel uint64) int {
	if ranks, cpus := population(all, kernel); ranks > cpus {
		return 1
	}
	return spinBudget
}

// population is how many ranks a kernel has, and how many CPUs they may run on.
func population(all []address, kernel uint64) (ranks, cpus int) {
	var sets [][]byte
	for i := range all {
		if all[i].kernel == kernel {
			ranks++
			sets = append(sets, all[i].cpus)
		}
	}
	return ranks, machine.Count(sets...)
}

// maxCPUBytes is the length of a set of CPUs, at most.
const maxCPUBytes = 1024

// localAddresses lists where this host can be reached, loopback last.
func localAddresses() []net.IP {
	list, err := machine.Addresses()
	if err != nil {
		return nil
	}
	var ips []net.IP
	for _, a := range list[:min(len(list), maxAddresses)] {
		ips = append(ips, a.AsSlice())
	}
	return ips
}

func (n *Node) proofParams() proof.Params {
	return proof.Params{Secret: n.job.Secret(), Insecure: n.job.Secret() == nil, Protocol: wireProtocol, Major: wireMajor, Minor: wireMinor,
		Job: n.job.ID(), Self: rankID(n.rank)}
}

func rankID(rank int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(rank)) }

// How long connecting to one of several addresses may take: the first time, and at most when
// none has answered in time and all are retried. A peer that is stopped or has no CPU
// answers late.
const (
	dialTime    = time.Second
	dialTimeMax = 16 * time.Second
)

// dialRank makes a control connection to a rank.
func (n *Node) dialRank(ctx context.Context, p *peer) (net.Conn, error) {
	a := &n.addresses[p.rank]
	ips := slices.Clone(a.addrs)
	if a.host == n.addresses[n.rank].host {
		slices.SortStableFunc(ips, func(x, y net.IP) int { return order(x.IsLoopback(), y.IsLoopback()) })
	}
	for each := dialTime; ; each = min(2*each, dialTimeMax) {
		var errs []error
		slow := false
		for _, ip := range ips {
			conn, err := n.dialAddress(ctx, net.JoinHostPort(ip.String(), strconv.Itoa(int(a.port))), p.rank, each)
			if err == nil {
				return conn, nil
			}
			p.retries.Add(1)
			errs = append(errs, err)
			if errors.Is(err, proof.ErrRefused) || ctx.Err() != nil {
				return nil, errors.Join(append(errs, ctx.Err())...)
			}
			var timeout net.Error
			slow = slow || errors.As(err, &timeout) && timeout.Timeout()
		}
		if !slow {
			return nil, errors.Join(errs...)
		}
	}
}

// order sorts true first.
func order(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

func (n *Node) dialAddress(ctx context.Context, addr string, rank int, patience time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: patience, KeepAliveConfig: keepalive.Within(n.opt.peerTimeout)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := proof.Dial(&answering{Conn: conn, ctx: ctx}, n.proofParams(), rankID(rank)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// answering is a dialed connection. Once the other end has sent something, the dialer stays
// with it instead of trying another address: the other end may have accepted it by then.
type answering struct {
	net.Conn
	ctx      context.Context
	answered bool
}

func (a *answering) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if n > 0 && !a.answered {
		a.answered = true
		if end, ok := a.ctx.Deadline(); ok {
			a.SetDeadline(end)
		}
	}
	return n, err
}

// maxStrangers bounds the connections that are not authenticated yet, and strangerTime how
// long authenticating each may take.
const (
	maxStrangers = 256
	strangerTime = 10 * time.Second
)

// accept takes control connections.
func (n *Node) accept() {
	places := make(chan struct{}, maxStrangers)
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			if n.life.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			n.log.Warn("channel: cannot accept a control connection", "error", err)
			select {
			case <-time.After(10 * time.Millisecond): // out of descriptors, say
			case <-n.life.Done():
				return
			}
			continue
		}
		select {
		case places <- struct{}{}:
		case <-n.life.Done():
			conn.Close()
			return
		}
		n.wg.Go(func() { n.welcome(conn, places) })
	}
}

// welcome identifies the rank that has connected, then frees the connection's place.
func (n *Node) welcome(conn net.Conn, places chan struct{}) {
	conn.SetDeadline(time.Now().Add(strangerTime))
	stop := context.AfterFunc(n.life, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var p *peer
	_, err := proof.Accept(conn, n.proofParams(), func(id []byte) bool {
		if len(id) != 4 {
			return false
		}
		rank := int(binary.BigEndian.Uint32(id))
		if rank == n.rank {
			return false
		}
		q, err := n.peer(rank)
		if err != nil || !q.admit(conn) {
			return false
		}
		p = q
		return true
	})
	<-places
	switch {
	case err == nil:
		conn.SetDeadline(time.Time{})
		stop()
		p.serve(conn)
	case p != nil: // it disconnected after we had accepted it
		p.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	default:
		conn.Close()
		n.log.Debug("channel: refused a control connection", "from", conn.RemoteAddr().String(), "error", err)
	}
}

// address is where a rank can be connected to.
type address struct {
	host   uint64   // the same for ranks that may share memory
	kernel uint64   // the same for ranks that share CPUs, also if they are on networks of their own
	port   uint16   // 0: nowhere
	cpus   []byte   // bit i: the rank may run on CPU i
	addrs  []net.IP // in order of preference
}

func (a *address) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, a.host)
	b = binary.BigEndian.AppendUint64(b, a.kernel)
	b = binary.BigEndian.AppendUint16(b, a.port)
	b = binary.BigEndian.AppendUint16(b, uint16(len(a.cpus)))
	b = append(b, a.cpus...)
	for _, ip := range a.addrs {
		b = append(b, ip.To16()...)
	}
	return b
}

func parseAddress(b []byte) (address, error) {
	r := reader{b: b}
	a := address{host: r.u64(), kernel: r.u64(), port: r.u16()}
	a.cpus = r.take(int(r.u16()))
	if r.bad || len(a.cpus) > maxCPUBytes || len(r.b)%16 != 0 || len(r.b) > maxAddresses*16 {
		return a, fmt.Errorf("%w: address of %d bytes", ErrProtocol, len(b))
	}
	for len(r.b) > 0 {
		a.addrs = append(a.addrs, net.IP(r.take(16)))
	}
	return a, nil
}

const maxAddresses = 64
