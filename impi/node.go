package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// FromNode makes a job of all ranks of a node's job, without a server; all of them must call it.
// Each rank of the node contributes [Config.Processes] ranks, in order. The node still belongs to
// the caller and must outlive the job. The crossovers of collectives come from the environment, as
// in package channel, and must be the same on every rank.
//
// Errors: those of [channel.Node.Exchange] and [Join], [ErrMismatch], and [ErrClosed] if the node is
// closed meanwhile.
func FromNode(ctx context.Context, n *channel.Node, c Config) (*Job, error) {
	return fromTeam(ctx, n, n.Key("impi"), c)
}

// whileOpen returns a context for join that ends with ctx or when the team is closed, with [ErrClosed]
// as its cause; over ends it, and turns an error that follows from that into that of op.
func whileOpen(ctx context.Context, n team, op string) (_ context.Context, over func(error) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-n.Done():
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func(err error) error {
		if err != nil && errors.Is(context.Cause(ctx), ErrClosed) {
			err = jobError(op, ErrClosed)
		}
		cancel(nil)
		return err
	}
}

// team is the job of a [channel.Node].
type team interface {
	Rank() int
	Size() int
	Exchange(ctx context.Context, data []byte) ([][]byte, error)
	Gone(ctx context.Context, rank int) error
	Done() <-chan struct{}
}

func fromTeam(ctx context.Context, n team, secret []byte, c Config) (_ *Job, err error) {
	const op = "join"
	ctx, over := whileOpen(ctx, n, op)
	defer func() { err = over(err) }()
	c, err = c.complete()
	if err != nil {
		return nil, jobError(op, err)
	}
	listen := ":0"
	if c.Addr.IsValid() {
		listen = netip.AddrPortFrom(c.Addr, 0).String()
	}
	l, err := c.listen(ctx, listen)
	if err != nil {
		return nil, jobError(op, err)
	}
	defer l.Close()
	addrs := []netip.Addr{c.Addr}
	if !c.Addr.IsValid() || c.Addr.IsUnspecified() {
		if addrs, err = localAddrs(l, c.Log); err != nil {
			return nil, jobError(op, err)
		}
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	settings, err := coll.ParseSettings(c.env)
	if err != nil {
		return nil, jobError(op, fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	mine := member{settings: settings, packetLen: c.PacketLen, ackMark: c.AckMark, hiWater: c.HiWater}
	for _, a := range addrs {
		mine.addrs = append(mine.addrs, netip.AddrPortFrom(a, port))
	}
	mine.procs = processes(startup.HostIDOf(addrs[0]), c.Processes)
	all, err := n.Exchange(ctx, mine.append(nil))
	if err != nil {
		return nil, jobError(op, err)
	}
	gone := func(ctx context.Context, host int) error {
		ctx, cancel := context.WithTimeout(ctx, c.PeerTimeout)
		defer cancel()
		if err := n.Gone(ctx, host); !errors.Is(err, channel.ErrClosed) { // else it is this rank that goes
			return err
		}
		return nil
	}
	r := &roster{me: n.Rank(), tagUB: 1<<31 - 1, settings: settings, secret: secret, gone: gone, finished: func() error { return nil }, abandon: func() {}}
	for i, b := range all {
		m, err := parseMember(b)
		if err != nil {
			return nil, jobError(op, fmt.Errorf("rank %d: %w", i, err))
		}
		if differ := coll.Diff(settings, m.settings); differ != "" {
			return nil, jobError(op, fmt.Errorf("%w: this rank and rank %d have different settings for collectives: %s", ErrMismatch, i, differ))
		}
		r.hosts = append(r.hosts, m)
	}
	if err := r.check(); err != nil {
		return nil, jobError(op, err)
	}
	return assemble(ctx, op, r, l, c)
}

// localAddrs lists the addresses at which other hosts reach a listener, loopback last.
func localAddrs(l net.Listener, log *slog.Logger) ([]netip.Addr, error) {
	list, err := reach.AddressesOf(l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if len(list) > maxAddrs {
		log.Warn("impi: this host has too many addresses to announce", "announced", maxAddrs, "not announced", len(list)-maxAddrs)
		list = append(list[:maxAddrs-1], list[len(list)-1])
	}
	return list, nil
}

// maxAddrs bounds the addresses of a host.
const maxAddrs = 256

// memberVersion begins every announcement.
const memberVersion = 1

// append encodes what the other ranks must know: big-endian
//
//	uint32 version, packet length, ACKMARK, HIWATER
//	uint32 addresses: 16 bytes and uint16 port each
//	uint32 processes: 16 bytes host id and uint64 number each
//	settings of collectives
func (m *member) append(b []byte) []byte {
	for _, v := range []uint32{memberVersion, m.packetLen, m.ackMark, m.hiWater, uint32(len(m.addrs))} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, a := range m.addrs {
		ip := a.Addr().As16()
		b = append(b, ip[:]...)
		b = binary.BigEndian.AppendUint16(b, a.Port())
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.procs)))
	for _, p := range m.procs {
		b = append(b, p.Host[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(p.PID))
	}
	b, _ = m.settings.AppendBinary(b) // it has no errors
	return b
}

// parseMember reads what append has written.
func parseMember(b []byte) (member, error) {
	var m member
	var head [5]uint32
	bad := fmt.Errorf("%w: announcement of %d bytes", ErrProtocol, len(b))
	if len(b) < 4*len(head) {
		return m, bad
	}
	for i := range head {
		head[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	b = b[4*len(head):]
	if head[0] != memberVersion {
		return m, fmt.Errorf("%w: announcement of version %d, this is %d", ErrProtocol, head[0], memberVersion)
	}
	m.packetLen, m.ackMark, m.hiWater = head[1], head[2], head[3]
	const addrLen, procLen = 18, 24
	if m.packetLen < 1 || m.packetLen > maxPacketLen || m.ackMark < 1 || m.hiWater < m.ackMark ||
		head[4] < 1 || head[4] > maxAddrs || len(b) < int(head[4])*addrLen+4 {
		return m, bad
	}
	for range head[4] {
		m.addrs = append(m.addrs, netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:])))
		b = b[addrLen:]
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	if n < 1 || n > maxProcesses || len(b) < int(n)*procLen {
		return m, bad
	}
	for range n {
		m.procs = append(m.procs, packet.Proc{Host: startup.HostID(b[:16]), PID: int64(binary.BigEndian.Uint64(b[16:]))})
		b = b[procLen:]
	}
	if n, err := m.settings.ParseBinary(b); err != nil || n != len(b) {
		return m, bad
	}
	return m, nil
}
