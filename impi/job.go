package impi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/report"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Job is a job as seen by one of its hosts. Its methods may be called from several goroutines.
type Job struct {
	e        *engine
	roster   *roster
	config   Config
	tagUB    int
	worlds   []*Comm
	sockets  *tcpSource
	controls *controls
	devices  []*rcDevice
	closed   chan struct{} // when Close has finished
	protocol bool          // collectives of the world follow the protocol
	ending   bool          // Close has been called; guarded by the lock of e
}

// Join joins the job of the IMPI server at addr ("host:port", as printed by `sluice server`) as one
// of its clients. The client has one host or, with [Config.Node], one host per rank of the node's
// job. Join returns when all clients have joined and all hosts are connected: give ctx a deadline.
//
// Errors: those of [startup.Dial]; [ErrInvalid]; an [*Error] around [ErrUnreachable] if a host
// could not be reached, with the rank of that host's first process.
func Join(ctx context.Context, addr string, c Config) (*Job, error) {
	const op = "join"
	c, err := c.complete()
	if err != nil {
		return nil, jobError(op, err)
	}
	if c.Node != nil {
		return joinTeam(ctx, addr, c.Node, c)
	}
	l, m, err := announce(ctx, addr, &c)
	if err != nil {
		return nil, jobError(op, err)
	}
	defer l.Close()
	s, err := c.dial(ctx, addr, []member{m})
	if err != nil {
		return nil, jobError(op, err)
	}
	r, err := rosterOf(s, 0)
	if err != nil {
		s.Close()
		return nil, jobError(op, err)
	}
	r.finished, r.abandon = s.Finish, func() { s.Close() }
	r.secret = c.secret()
	return assemble(ctx, op, r, l, c)
}

// announce listens at the address from which the server is reached, unless c or SLUICE_NET has another,
// and describes this host.
func announce(ctx context.Context, addr string, c *Config) (l net.Listener, m member, err error) {
	if !c.Addr.IsValid() {
		if c.Addr, err = reach.From(ctx, addr); err != nil {
			return nil, m, err
		}
	}
	if l, err = c.listen(ctx, netip.AddrPortFrom(c.Addr, 0).String()); err != nil {
		return nil, m, err
	}
	m = member{packetLen: c.PacketLen, ackMark: c.AckMark, hiWater: c.HiWater,
		addrs: []netip.AddrPort{netip.AddrPortFrom(c.Addr, uint16(l.Addr().(*net.TCPAddr).Port))},
		procs: processes(startup.HostIDOf(c.Addr), c.Processes)}
	return l, m, nil
}

// dial joins the server with these hosts.
func (c *Config) dial(ctx context.Context, addr string, hosts []member) (*startup.Job, error) {
	s := startup.Config{Rank: c.Client, Auth: c.Auth, Key: c.Key, PacketLen: c.PacketLen,
		XSize: c.XSize, MaxLinear: c.MaxLinear, AnyMaxLinear: c.AnyMaxLinear}
	for _, m := range hosts {
		h := startup.Host{ID: startup.HostIDOf(m.addrs[0].Addr()), Port: m.addrs[0].Port(), AckMark: m.ackMark, HiWater: m.hiWater}
		for _, p := range m.procs {
			h.Processes = append(h.Processes, startup.Process{Host: p.Host, PID: uint64(p.PID)})
		}
		s.Hosts = append(s.Hosts, h)
		s.PacketLen = min(s.PacketLen, m.packetLen)
	}
	return startup.Dial(ctx, addr, s)
}

// secret is the key that hosts of this package prove to each other; nil for none.
func (c *Config) secret() []byte {
	if c.Key == 0 {
		return nil
	}
	return fmt.Appendf(nil, "sluice-impi %020d", c.Key)
}

// listen listens for other hosts.
func (c *Config) listen(ctx context.Context, addr string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepalive.Within(c.PeerTimeout)}
	return reach.Listen(ctx, lc, addr)
}

// processes names n processes of this host by numbers that are unique for the host id. Process ids
// alone may repeat, in containers.
func processes(id startup.HostID, n int) []packet.Proc {
	pid := int64(os.Getpid())<<32 | rand.Int64N(1<<23)<<8
	list := make([]packet.Proc, n)
	for i := range list {
		list[i] = packet.Proc{Host: id, PID: pid + int64(i)}
	}
	return list
}

// assemble connects the hosts of a job and starts the goroutines that make progress.
func assemble(ctx context.Context, op string, r *roster, l net.Listener, c Config) (*Job, error) {
	conns, err := r.connectHosts(ctx, l, &c)
	if err != nil {
		r.abandon()
		if e := (*Error)(nil); errors.As(err, &e) {
			return nil, err
		}
		return nil, jobError(op, err)
	}
	j, err := newJob(ctx, r, conns, c)
	if err != nil {
		r.abandon()
		for _, conn := range conns {
			if conn != nil {
				conn.Close()
			}
		}
		return nil, jobError(op, err)
	}
	return j, nil
}

// newJob makes a job of connected hosts.
func newJob(ctx context.Context, r *roster, conns []*net.TCPConn, c Config) (*Job, error) {
	e := &engine{policy: wait.NewPolicy(c.waits, pollBatch, nil), log: c.Log, me: r.me, ranks: map[packet.Proc]int32{}, unexpected: c.Unexpected, eager: c.PacketLen, parted: make(chan struct{})}
	e.life, e.stop = context.WithCancel(context.Background())
	j := &Job{e: e, roster: r, config: c, tagUB: r.tagUB, closed: make(chan struct{})}
	for i := range r.hosts {
		for _, p := range r.hosts[i].procs {
			rank := int32(len(e.procs))
			e.ranks[p] = rank
			e.procs = append(e.procs, p)
			e.hostOf = append(e.hostOf, int32(i))
			if i == r.me {
				e.processes = append(e.processes, &process{e: e, rank: rank, matchers: map[uint64]*matcher{}})
			}
		}
	}
	e.links = make([]*link, len(r.hosts))
	for _, p := range e.processes {
		p.pairs = make([]*pair, len(e.procs))
		p.nextCID = firstCID
	}
	if err := j.connect(ctx, conns); err != nil {
		e.stop()
		e.wg.Wait()
		return nil, errors.Join(err, j.closeDevices())
	}
	for _, p := range e.processes {
		j.worlds = append(j.worlds, j.newComm(p, identity(len(e.procs)), worldCID))
	}
	if r.foreign {
		j.followProtocol()
	}
	for _, d := range j.devices {
		e.sources = append(e.sources, d)
	}
	if len(j.sockets.carriers) > 0 {
		e.sources = append(e.sources, j.sockets)
	}
	for _, s := range e.sources {
		kick := make(chan struct{}, 1)
		e.kicks = append(e.kicks, kick)
		e.wg.Go(func() { e.watch(s, kick) })
	}
	e.wg.Go(j.controls.run)
	signals := report.Notify() // before the job is used: the signal alone would kill
	e.wg.Go(func() { j.reportOn(signals) })
	memory.Enter(user{e})
	return j, nil
}

// followProtocol makes the collectives of the world those of the protocol, and hides the messages
// of their reductions from wildcards. Nothing has been received yet.
func (j *Job) followProtocol() {
	j.protocol = true
	for _, w := range j.worlds {
		w.match.reserved = tagReduce
	}
}

// connect makes the links of a job: over queue pairs to hosts of this package, where
// that works, else over their TCP connections.
func (j *Job) connect(ctx context.Context, conns []*net.TCPConn) (err error) {
	e, r := j.e, j.roster
	if j.sockets, err = newTCPSource(e); err != nil {
		return err
	}
	if j.controls, err = newControls(e); err != nil {
		return err
	}
	rc := j.openRC()
	j.devices = rc.devices
	carriers, errs := make([]*rcCarrier, len(conns)), make([]error, len(conns))
	var mu sync.Mutex
	negotiating := map[int]struct{}{}
	ctx, cancel := r.await(ctx, &j.config, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(negotiating))
	}, r.ended)
	defer cancel()
	var wg sync.WaitGroup
	for i, conn := range conns {
		if conn == nil {
			continue
		}
		l := &link{e: e, host: i, foreign: r.hosts[i].foreign}
		l.packetLen, l.ackMark, l.hiWater = r.limits(r.me, i)
		l.eager, l.first, l.rest = l.packetLen, l.packetLen, l.packetLen
		e.links[i] = l
		if l.foreign {
			l.dialect = j.config.Dialect
			continue
		}
		mu.Lock()
		negotiating[i] = struct{}{}
		mu.Unlock()
		wg.Go(func() {
			carriers[i], errs[i] = rc.negotiate(ctx, l, conn)
			mu.Lock()
			delete(negotiating, i)
			mu.Unlock()
			if errs[i] != nil {
				errs[i] = r.cause(ctx, r.unreachable(i, errs[i]))
			}
		})
	}
	wg.Wait()
	e.policy = wait.NewPolicy(j.config.waits, pollBatch, wait.NewCPUs(rc.ranks.Sharing))
	e.policy.Hopeful = true
	err = errors.Join(errs...)
	for i, conn := range conns {
		l := e.links[i]
		if l == nil {
			continue
		}
		s, serr := newSocket(conn, j.config.PeerTimeout)
		if serr != nil {
			err = cmp.Or(err, serr)
			s = noSocket{}
		}
		if c := carriers[i]; c != nil {
			c.tcp, l.carrier = s, c
			j.controls.carriers = append(j.controls.carriers, c)
			continue
		}
		t := newTCPCarrier(l, s)
		l.carrier, t.source = t, j.sockets
		j.sockets.carriers = append(j.sockets.carriers, t)
	}
	if err != nil {
		for _, l := range e.links {
			if l != nil {
				l.carrier.close()
			}
		}
	}
	return err
}

// noSocket stands in for a socket that could not be made.
type noSocket struct{ socket }

func (noSocket) close() {}

// closeDevices releases what connect has acquired, except the links.
func (j *Job) closeDevices() error {
	var errs []error
	for _, d := range j.devices {
		errs = append(errs, d.close())
	}
	if j.sockets != nil {
		j.sockets.close()
	}
	if j.controls != nil {
		j.controls.close()
	}
	return errors.Join(errs...)
}

func identity(n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(i)
	}
	return list
}

// newComm makes a communicator of one of our processes. The caller holds the lock, or no other
// goroutine has the job yet.
func (j *Job) newComm(p *process, ranks []int32, cid uint64) *Comm {
	c := &Comm{e: j.e, job: j, p: p, ranks: ranks, cid: cid}
	same := true
	for i, r := range ranks {
		if r == p.rank {
			c.me = i
		}
		same = same && int(r) == i
	}
	if !same {
		c.index = make(map[int32]int32, len(ranks))
		for i, r := range ranks {
			c.index[r] = int32(i)
		}
	}
	c.match, c.coll = p.adopt(cid, c), p.adopt(cid+1, c)
	return c
}

// adopt attaches a context's matcher, which may hold messages already, to its communicator.
func (p *process) adopt(cid uint64, c *Comm) *matcher {
	m := p.matchers[cid]
	if m == nil {
		m = &matcher{p: p, cid: cid, from: make([]source, len(p.e.procs))}
		p.matchers[cid] = m
	} else if m.comm == nil {
		if p.strange[m.by]--; p.strange[m.by] == 0 {
			delete(p.strange, m.by)
		}
	}
	m.comm = c
	m.dropForeign()
	return m
}

// dropForeign drops messages that arrived before the communicator was known, from processes that turn out
// not to be members, and closes the links to their hosts.
func (m *matcher) dropForeign() {
	e := m.p.e
	for msg := m.all.head; msg != nil; {
		next := msg.next
		if src := msg.src; !m.has(src) {
			m.takeMessage(msg)
			m.dropMessage(msg)
			if l := e.links[e.hostOf[src]]; l != nil {
				l.lost(fmt.Errorf("%w: rank %d sent a message in context %d but is not a member of that communicator", ErrProtocol, src, m.cid))
			}
		}
		msg = next
	}
}

// World returns the communicator of all processes of the job (MPI_COMM_WORLD), for the first
// process of this host.
func (j *Job) World() *Comm { return j.worlds[0] }

// Worlds returns the communicators of all processes of the job, one for each process of this host:
// see [Config.Processes].
func (j *Job) Worlds() []*Comm { return append([]*Comm(nil), j.worlds...) }

// TagUB returns the largest tag (MPI_TAG_UB).
func (j *Job) TagUB() int { return j.tagUB }

// Foreign reports whether a process belongs to another MPI implementation.
func (j *Job) Foreign(rank int) bool {
	return rank >= 0 && rank < len(j.e.hostOf) && j.roster.hosts[j.e.hostOf[rank]].foreign
}

// Provider names the verbs provider whose queue pair carries the packets to a process. It is empty
// if they go over TCP, and for processes of this host.
func (j *Job) Provider(rank int) string {
	if rank < 0 || rank >= len(j.e.hostOf) {
		return ""
	}
	if l := j.e.links[j.e.hostOf[rank]]; l != nil {
		if c, ok := l.carrier.(*rcCarrier); ok {
			return c.d.ctx.Device().Provider()
		}
	}
	return ""
}
