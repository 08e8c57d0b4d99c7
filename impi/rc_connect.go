package impi

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/all" // the providers
)

// Parameters that hosts of this package offer each other.
const (
	rcSlot = rcHeader + 8<<10 // bytes of a packet
	// mappedSlot: where the device maps memory, the handshake of a longer message takes as long as
	// copying these.
	mappedSlot = rcHeader + 16<<10
	// mappedFirst is how many bytes of a longer message the first packet has there: while the handshake
	// is under way they are copied in vain, and the rest is copied by both sides at the same time.
	mappedFirst = 4 << 10
	minSlot     = rcHeader + rcPiece
	maxSlot     = 1 << 20
	minWindow   = 8
	maxWindow   = 512
	// rcShare: the hosts that have this one's addresses pin together at most this part of the memory
	// that the machine has left, unless the smallest windows need more.
	rcShare = 8
	// A queue pair may take probeTime to prove that it works, for each rank that shares a CPU, and
	// longer if so few polls were possible that this process had no CPU.
	probeTime  = time.Second
	probePause = 5 * time.Millisecond // at most, between two of its looks
)

// rcConnect makes a peer that does not answer fail after some seconds. Soft-RoCE takes 7 retries to
// mean no limit.
var rcConnect = verbs.ConnectAttr{Timeout: 16, RetryCnt: verbs.Retries(6)}

// rcConnectOnce is for devices that retransmit nothing, those that map memory and tcp: the probe bounds
// the time to connect.
var rcConnectOnce = verbs.ConnectAttr{Timeout: 31, RetryCnt: verbs.Retries(6)}

// rcPinned bounds the memory that a host pins for receives and sends. It is a variable for tests.
var rcPinned uint64 = 64 << 20

// rcSetup connects queue pairs while a job is being assembled.
type rcSetup struct {
	j       *Job
	devices []*rcDevice
	window  uint32
	self    machine.Process

	refused []error // why devices are not used

	mu     sync.Mutex         // of the devices, until the engine runs, and of what follows
	ranks  machine.Population // processes of this machine, as far as they have said so, this one first
	likely int                // processes on this machine, as far as addresses tell
}

// receives is the number of receives that a queue pair needs to a host of so many processes: for
// each pair of processes a window, the acknowledgements, which do not count, and those that are
// reposted late; and FINI, the probe, and wake-ups.
func (s *rcSetup) receives(processes int) int {
	return processes*len(s.j.e.processes)*(int(s.window)+rcSpare) + 8
}

// rcSpare is how many receives a pair of processes has beside its window.
const rcSpare = 8 + repostMost

// openRC opens the devices that may carry packets to other hosts of this package. Devices that
// cannot be opened are skipped.
func (j *Job) openRC() *rcSetup {
	s := &rcSetup{j: j, self: machine.Self(), likely: j.roster.beside() * len(j.e.processes)}
	s.ranks = slices.Repeat(machine.Population{s.self}, len(j.e.processes))
	pairs, hosts := 0, 0
	for i := range j.roster.hosts {
		if h := &j.roster.hosts[i]; i != j.e.me && !h.foreign {
			pairs += len(h.procs) * len(j.e.processes)
			hosts++
		}
	}
	if pairs == 0 {
		return s
	}
	s.window = j.window(pairs)
	receives := 0
	for i := range j.roster.hosts {
		if h := &j.roster.hosts[i]; i != j.e.me && !h.foreign {
			receives += s.receives(len(h.procs))
		}
	}
	providers := j.config.Providers
	if providers == nil {
		providers = []string{"shm", "ibv"}
	}
	all, err := verbs.Devices()
	if err != nil {
		s.refused = append(s.refused, s.refusal(err, slog.LevelDebug, "impi: cannot list some devices"))
	}
	for _, provider := range providers {
		for _, dev := range all {
			if dev.Provider() != provider || len(s.devices) == maxOffers {
				continue
			}
			d, err := j.openDevice(dev, s.window, receives, hosts)
			if err != nil {
				err = s.refusal(fmt.Errorf("%s: %w", dev.Name(), err), slog.LevelDebug, "impi: device not used")
				s.refused = append(s.refused, err)
				continue
			}
			s.devices = append(s.devices, d)
		}
	}
	return s
}

// refusal logs why a device is not used, and returns it.
func (s *rcSetup) refusal(err error, level slog.Level, what string, args ...any) error {
	if errors.Is(err, limits.ErrFiles) {
		err, level = limits.Files(err), slog.LevelWarn
	}
	s.j.config.Log.Log(context.Background(), level, what, append(args, "error", err)...)
	return err
}

// window is how many packets each pair of processes may have on their way, so that receives and sends
// of so many pairs fit the memory.
func (j *Job) window(pairs int) uint32 {
	beside := uint64(j.roster.beside())
	each := int(limits.Left(rcPinned*rcShare*beside)/rcShare/beside)/mappedSlot/pairs - rcSpare
	each -= int(slots(uint32(max(each, 0))))
	return uint32(min(max(each, minWindow), maxWindow)) &^ 3
}

// openDevice opens a device, with its receives posted.
func (j *Job) openDevice(dev *verbs.Device, window uint32, receives, hosts int) (_ *rcDevice, err error) {
	cfg := verbs.Config{Secret: j.roster.secret, Insecure: len(j.roster.secret) == 0, Job: j.roster.job, PeerTimeout: j.config.PeerTimeout, Logger: j.config.Log}
	d := &rcDevice{e: j.e, name: dev.Name(), slots: slots(window), links: map[uint32]*rcCarrier{}}
	if d.ctx, err = dev.Open(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.ctx.Close())
		}
	}()
	attr, err := d.ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	if p, err := d.ctx.QueryPort(1); err != nil || p.State != verbs.PortActive {
		return nil, errors.Join(fmt.Errorf("port 1 is %v", p.State), err)
	}
	if !attr.LoadStore && attr.MaxSRQWR < receives {
		return nil, fmt.Errorf("%d receives are needed, the device allows %d", receives, attr.MaxSRQWR)
	}
	d.sges, d.maps, d.slot, d.connect = min(attr.MaxSGE, 16), attr.LoadStore, rcSlot, rcConnect
	if d.maps {
		d.slot = mappedSlot
	}
	if d.maps || dev.Provider() == "tcp" {
		d.connect = rcConnectOnce
	}
	if d.pd, err = d.ctx.AllocPD(); err != nil {
		return nil, err
	}
	d.regMR = d.pd.RegMR
	if d.ch, err = d.ctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if d.cq, err = d.ctx.CreateCQ(receives+hosts*rcSends, d.ch); err != nil {
		return nil, err
	}
	if d.recvs, err = d.pd.AllocMR(receives*d.slot, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if attr.LoadStore {
		return d, nil
	}
	if d.srq, err = d.pd.CreateSRQ(verbs.SRQAttr{MaxWR: receives, MaxSGE: 1}); err != nil {
		return nil, err
	}
	d.again = newReceives(receives)
	for i := range receives {
		d.again.add(d, i)
	}
	if err := d.again.post(d.srq.PostRecv); err != nil {
		return nil, err
	}
	return d, nil
}

// slots is how many packets may wait for their completion: half a window, within bounds. Completions
// come long before the acknowledgements that open the window again.
func slots(window uint32) uint32 {
	n := uint32(rcSlots)
	for ; n > rcSlotsMin && n > window/2; n /= 2 {
	}
	return n
}

// newCarrier makes a queue pair.
func (d *rcDevice) newCarrier(l *link, peers []int32, receives int) (_ *rcCarrier, err error) {
	c := &rcCarrier{l: l, d: d, peers: peers}
	attr, err := d.ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	limits := verbs.QPCap{MaxSendWR: rcSends, MaxSendSGE: d.sges, MaxInlineData: min(attr.MaxInlineData, rcInlineMost)}
	if d.srq == nil {
		limits.MaxRecvWR, limits.MaxRecvSGE = receives, 1
	}
	for c.qp, err = d.pd.CreateQP(verbs.QPInitAttr{SendCQ: d.cq, RecvCQ: d.cq, SRQ: d.srq, Cap: limits}); err != nil; {
		// Some devices offer their most SGEs and inline bytes only with fewer work requests.
		if limits.MaxSendSGE == 1 && limits.MaxInlineData == 0 {
			return nil, err
		}
		limits.MaxSendSGE, limits.MaxInlineData = max(limits.MaxSendSGE/2, 1), limits.MaxInlineData/2
		c.qp, err = d.pd.CreateQP(verbs.QPInitAttr{SendCQ: d.cq, RecvCQ: d.cq, SRQ: d.srq, Cap: limits})
	}
	c.inline = limits.MaxInlineData
	if c.sends, err = d.pd.AllocMR(int(d.slots)*d.slot, verbs.AccessLocalWrite); err != nil {
		return nil, errors.Join(err, c.qp.Close())
	}
	c.sge = make([]verbs.SGE, 0, d.sges)
	if d.srq == nil {
		c.again = newReceives(receives)
		for range receives {
			c.again.add(d, d.given)
			d.given++
		}
	}
	c.num = c.qp.QPNum()
	d.links[c.num] = c
	return c, nil
}

// negotiate determines whether a queue pair can carry the packets of a link, and connects it. Both
// hosts exchange offers, and the lower-numbered one chooses a pair of devices. The queue pair is
// accepted once a write with immediate has gone both ways; otherwise the next pair of devices is
// tried. nil: packets go over TCP.
func (s *rcSetup) negotiate(ctx context.Context, l *link, conn net.Conn) (*rcCarrier, error) {
	conn = keepalive.Guard(conn, s.j.config.PeerTimeout)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var peers []int32
	for rank, h := range s.j.e.hostOf {
		if int(h) == l.host {
			peers = append(peers, int32(rank))
		}
	}
	host, err := machine.ID()
	if err != nil {
		return nil, err
	}
	kernel, err := machine.Kernel()
	if err != nil {
		return nil, err
	}
	mine := offer{machine: host, kernel: kernel, slot: rcSlot, mapped: mappedSlot, window: s.window, process: s.self}
	refused := slices.Clone(s.refused)
	var carriers []*rcCarrier
	var chosen *rcCarrier
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range carriers {
			if c != chosen {
				c.discard()
			}
		}
	}()
	for _, d := range s.devices {
		s.mu.Lock()
		c, err := d.newCarrier(l, peers, s.receives(len(peers)))
		s.mu.Unlock()
		var e verbs.Endpoint
		if err == nil {
			if e, err = c.qp.Endpoint(); err != nil {
				s.mu.Lock()
				c.discard()
				s.mu.Unlock()
			}
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", d.name, err)
			refused = append(refused, s.refusal(err, slog.LevelInfo, "impi: cannot make a queue pair", "peer", l.host))
			continue
		}
		carriers, mine.endpoints = append(carriers, c), append(mine.endpoints, e)
	}
	theirs, err := swapOffers(conn, &mine)
	if err != nil {
		return nil, err
	}
	if theirs.kernel == mine.kernel {
		s.mu.Lock()
		s.ranks = append(s.ranks, slices.Repeat(machine.Population{theirs.process}, len(peers))...)
		s.mu.Unlock()
	}
	used := [2]map[int]bool{{}, {}}
	var c *rcCarrier
	for c == nil {
		i, k, err := s.choose(l, conn, &mine, &theirs, used)
		if err == nil && i < 0 && s.j.config.named != "" {
			err = fmt.Errorf("nothing that %s=%s names works between the hosts; it may name tcp as well", channel.EnvTransport, s.j.config.named)
			if len(refused) > 0 {
				err = fmt.Errorf("%w: %w", err, errors.Join(refused...))
			}
		}
		if err != nil || i < 0 {
			return nil, err
		}
		used[0][i], used[1][k] = true, true
		switch why, err := s.try(ctx, conn, carriers[i], theirs.endpoints[k]); {
		case err != nil:
			return nil, err
		case why != nil:
			refused = append(refused, why)
		default:
			c = carriers[i]
		}
	}
	l.packetLen = min(mine.slot, theirs.slot) - rcHeader
	l.first = l.packetLen
	l.hiWater = min(mine.window, theirs.window)
	l.ackMark = l.hiWater / 4
	if c.d.maps {
		l.packetLen = min(mine.mapped, theirs.mapped) - rcHeader
		l.first = min(l.packetLen, mappedFirst)
		s.mu.Lock()
		mine := c.openLane()
		s.mu.Unlock()
		if c.lanes.at, err = swapLanes(conn, mine); err != nil {
			return nil, err
		}
	}
	l.rest = l.packetLen
	chosen = c
	return c, nil
}

// try connects a queue pair; why says why it does not work at both ends.
func (s *rcSetup) try(ctx context.Context, conn net.Conn, c *rcCarrier, to verbs.Endpoint) (why, _ error) {
	s.mu.Lock()
	c.want = 2 // set before the peer may probe: another link may take the completion
	s.mu.Unlock()
	why = c.qp.Connect(to, c.d.connect)
	if why == nil {
		s.mu.Lock()
		why = c.again.post(c.qp.PostRecv)
		s.mu.Unlock()
	}
	mine, theirs, err := swapVerdicts(ctx, conn, func(context.Context) error { return why })
	if err == nil && mine == works && theirs == works {
		why = s.post(c)
		probe := func(ctx context.Context) error {
			if why == nil || errors.Is(why, ErrTimeout) {
				why = s.probe(ctx, c)
			}
			return why
		}
		mine, theirs, err = swapVerdicts(ctx, conn, probe)
		// One end has seen that both directions work: the other has been held up.
		for err == nil && min(mine, theirs) == late && max(mine, theirs) == works {
			mine, theirs, err = swapVerdicts(ctx, conn, probe)
		}
	}
	if err != nil || mine == works && theirs == works {
		return nil, err
	}
	why = fmt.Errorf("%s: %w", c.d.name, cmp.Or(c.qp.Cause(), why, errors.New("it does not work at the peer")))
	return s.refusal(why, slog.LevelInfo, "impi: queue pair does not work", "peer", c.l.host), nil
}

// probeTime is the bound of a probe, longer where ranks share CPUs, and the longest pause between its
// looks, longer with many links: a look serves all links of a device.
func (s *rcSetup) probeTime(d *rcDevice) (bound, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranks, cpus := max(len(s.ranks), s.likely), max(s.ranks.Count(), 1)
	bound = max(probeTime, probeTime*time.Duration(ranks)/time.Duration(cpus))
	return bound, probePause * time.Duration(max(1, len(d.links)/16))
}

// swapOffers sends our offer and reads the peer's.
func swapOffers(conn net.Conn, mine *offer) (offer, error) {
	b, err := mine.append(nil)
	if err != nil {
		return offer{}, err
	}
	if _, err := conn.Write(b); err != nil {
		return offer{}, err
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return offer{}, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxOfferLen {
		return offer{}, fmt.Errorf("%w: offer of %d bytes", ErrProtocol, n)
	}
	b = make([]byte, n)
	if _, err := io.ReadFull(conn, b); err != nil {
		return offer{}, err
	}
	return parseOffer(b)
}

// choose agrees on an endpoint of each side that has not been used before; -1 for none.
func (s *rcSetup) choose(l *link, conn net.Conn, mine, theirs *offer, used [2]map[int]bool) (i, k int, err error) {
	const none = 0xff
	b := [2]byte{none, none}
	if s.j.e.me < l.host {
		i, k = match(mine, theirs, used)
		if i >= 0 {
			b = [2]byte{byte(i), byte(k)}
		}
		_, err := conn.Write(b[:])
		return i, k, err
	}
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return -1, -1, err
	}
	if b[0] == none {
		return -1, -1, nil
	}
	k, i = int(b[0]), int(b[1])
	if i >= len(mine.endpoints) || k >= len(theirs.endpoints) || used[0][i] || used[1][k] || mine.endpoints[i].Provider != theirs.endpoints[k].Provider {
		return -1, -1, fmt.Errorf("%w: choice of endpoints %d and %d", ErrProtocol, k, i)
	}
	return i, k, nil
}

// match returns the first pair of endpoints that appear able to reach each other and have not been
// used: a queue pair that has failed is not connected again.
func match(a, b *offer, used [2]map[int]bool) (int, int) {
	for i, x := range a.endpoints {
		if used[0][i] {
			continue
		}
		for k, y := range b.endpoints {
			if !used[1][k] && x.Provider == y.Provider && x.LinkLayer == y.LinkLayer && (x.Provider != "shm" || a.machine == b.machine) {
				return i, k
			}
		}
	}
	return -1, -1
}

// A verdict is what one end says of a queue pair.
type verdict byte

const (
	broken verdict = iota
	late           // it is not known yet whether both directions work
	works
)

// swapVerdicts tells the peer what probe returns, and reads what the peer says. The end of the
// connection ends the probe.
func swapVerdicts(ctx context.Context, conn net.Conn, probe func(context.Context) error) (mine, theirs verdict, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var b [1]byte
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(conn, b[:])
		if err == nil && verdict(b[0]) == broken {
			cancel(errors.New("it does not work at the peer"))
		} else if err != nil {
			cancel(err)
		}
		read <- err
	}()
	switch why := probe(ctx); {
	case why == nil:
		mine = works
	case errors.Is(why, ErrTimeout):
		mine = late
	}
	_, err = conn.Write([]byte{byte(mine)})
	if err = cmp.Or(<-read, err); err != nil {
		return mine, broken, err
	}
	if theirs = verdict(b[0]); theirs > works {
		return mine, broken, fmt.Errorf("%w: verdict %d on a queue pair", ErrProtocol, theirs)
	}
	return mine, theirs, nil
}

// post sends a write with immediate of no bytes.
func (s *rcSetup) post(c *rcCarrier) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.wrs[0] = verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm}
	c.wrs[0].Flags = verbs.SendSignaled
	_, err := c.qp.PostSend(c.wrs[:])
	return err
}

// probe waits until our write has completed and the peer's has arrived. The bound is extended until
// there have been enough looks, of which the last one comes after it.
func (s *rcSetup) probe(ctx context.Context, c *rcCarrier) error {
	began := time.Now()
	bound, longest := s.probeTime(c.d)
	pauses := wait.Pauses{Most: longest}
	for looks := bound / (4 * longest); ; looks-- {
		took := time.Since(began)
		s.mu.Lock()
		err := c.d.pump()
		want, why := c.want, c.why
		s.mu.Unlock()
		switch {
		case want == 0 || err != nil || why != nil:
			return errors.Join(err, why)
		case took > bound && looks < 0:
			return fmt.Errorf("%w: no write with immediate has come through within %v", ErrTimeout, took)
		}
		if err := pauses.Next(ctx); err != nil {
			return err
		}
	}
}

// pump handles the completions of probes and keeps those of packets, because another link may
// already be in use at its other end.
func (d *rcDevice) pump() error {
	n, err := d.cq.Poll(d.wcs[:])
	for i := range d.wcs[:n] {
		wc := &d.wcs[i]
		c := d.links[wc.QPNum]
		if c == nil || c.want == 0 {
			d.early = append(d.early, *wc)
			continue
		}
		switch {
		case wc.Status == verbs.WCSuccess:
			c.want--
		case c.why == nil:
			c.why = wc.Err()
		}
		if wc.Opcode >= verbs.WCRecv && c.why == nil {
			d.repost(c, int(wc.WRID))
		}
	}
	return err
}

// discard closes a queue pair that is not used.
func (c *rcCarrier) discard() {
	delete(c.d.links, c.num)
	c.closeLane()
	if err := errors.Join(c.qp.Modify(&verbs.QPAttr{QPState: verbs.QPErr}, verbs.MaskState), c.qp.Close(), c.sends.Close()); err != nil {
		c.l.e.log.Debug("impi: cannot close a queue pair", "error", err)
	}
}
