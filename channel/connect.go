package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/lobby"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// meet opens the listener for control connections and exchanges its address with
// all ranks.
func (n *Node) meet(ctx context.Context) error {
	if n.size == 1 {
		return nil
	}
	mine, err := n.introduction(ctx)
	if err != nil {
		n.job.Fail(limits.Files(err)) // or the others would hear only that this rank has left
		return err
	}
	all, err := n.job.Exchange(ctx, mine)
	if abort := (*boot.AbortError)(nil); errors.As(err, &abort) {
		err = fmt.Errorf("%w: %w", ErrAborted, err)
	}
	if err != nil {
		return err
	}
	n.addresses = make([]address, n.size)
	theirs := make([]settings, n.size)
	for i, b := range all {
		var rest []byte
		if theirs[i], rest, err = parseSettings(b); err == nil {
			n.addresses[i], err = parseAddress(rest)
		}
		if err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	if err := alike(theirs); err != nil {
		return err
	}
	n.ranks = population(n.addresses, n.rank)
	n.cpus = wait.NewCPUs(n.ranks.Sharing)
	n.policy = wait.NewPolicy(n.opt.waits, looks, n.cpus)
	n.countDescriptors()
	n.wg.Go(n.accept)
	return nil
}

// alike is an error if the settings of the ranks differ. It names the first rank that has others than most have.
func alike(ranks []settings) error {
	count, usual := map[settings]int{}, 0
	for _, s := range ranks {
		count[s]++
	}
	for i, s := range ranks {
		if count[s] > count[ranks[usual]] {
			usual = i
		}
	}
	for i, s := range ranks {
		if differ := ranks[usual].differ(s); differ != "" {
			return &boot.RankError{Rank: i, Err: ErrRefused, Text: fmt.Sprintf("settings differ between rank %d and rank %d: %s", usual, i, differ)}
		}
	}
	return nil
}

// introduction listens, and returns what the other ranks are to know of this one.
func (n *Node) introduction(ctx context.Context) ([]byte, error) {
	l, err := reach.ListenAny(ctx)
	if err != nil {
		return nil, err
	}
	n.listener = l
	addrs, err := n.localAddresses(l)
	if err != nil {
		return nil, err
	}
	host, err := machine.ID()
	if err != nil {
		return nil, err
	}
	kernel, err := machine.Kernel()
	if err != nil {
		return nil, err
	}
	mine := address{host: host, kernel: kernel, port: uint16(l.Addr().(*net.TCPAddr).Port), process: machine.Self(), addrs: addrs}
	b, err := settings{n.opt.coll, n.opt.routes}.append(nil)
	if err != nil {
		return nil, err
	}
	return mine.append(b), nil
}

// countDescriptors says if there are too few descriptors to connect to all ranks: within a host that
// takes three, else two.
func (n *Node) countDescriptors() {
	need := 0
	for i := range n.addresses {
		switch {
		case i == n.rank:
		case n.addresses[i].kernel == n.addresses[n.rank].kernel:
			need += 3
		default:
			need += 2
		}
	}
	if left, ok := limits.FilesLeft(need); ok && left < need {
		n.log.Warn("channel: this rank cannot connect to all others", "error", limits.Files(limits.ErrFiles), "left", max(left, 0), "needed", need)
	}
}

// population is the ranks of the kernel of a rank, that one first.
func population(all []address, rank int) machine.Population {
	p := machine.Population{all[rank].process}
	for i := range all {
		if all[i].kernel == all[rank].kernel && i != rank {
			p = append(p, all[i].process)
		}
	}
	return p
}

// localAddresses lists where other hosts reach a listener, the address that reached the rendezvous first
// and loopback last.
func (n *Node) localAddresses(l net.Listener) ([]netip.Addr, error) {
	list, err := reach.AddressesOf(l)
	if err != nil {
		return nil, fmt.Errorf("no rank can connect to this one: %w", err)
	}
	if len(list) > maxAddresses {
		n.log.Warn("channel: this host has too many addresses to announce", "announced", maxAddresses, "not announced", len(list)-maxAddresses)
		list = append(list[:maxAddresses-1], list[len(list)-1])
	}
	return list, nil
}

func (n *Node) proofParams() proof.Params {
	return proof.Params{Secret: n.job.Secret(), Insecure: n.job.Secret() == nil, Protocol: wireProtocol, Major: wireMajor, Minor: wireMinor,
		Job: n.job.ID(), Self: rankID(n.rank)}
}

func rankID(rank int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(rank)) }

// dialRank makes a control connection to a rank.
func (n *Node) dialRank(ctx context.Context, p *peer) (net.Conn, error) {
	a := &n.addresses[p.rank]
	var near, far []string
	for _, ip := range a.addrs {
		text := netip.AddrPortFrom(ip, a.port).String()
		if ip.IsLoopback() {
			near = append(near, text)
		} else {
			far = append(far, text)
		}
	}
	list := far
	same := a.host == n.addresses[n.rank].host
	if same || len(far) == 0 { // else loopback leads to this host
		list = append(near, far...)
	}
	return reach.Dial(ctx, list, reach.Options{
		Patient: same,
		Dialer:  net.Dialer{Timeout: n.opt.connectTimeout},
		Silence: n.opt.peerTimeout,
		Meet: func(conn net.Conn) (final bool, err error) {
			if _, err = proof.Dial(conn, n.proofParams(), rankID(p.rank)); err != nil {
				return errors.Is(err, proof.ErrRefused), err
			}
			p.setProved(true)
			return true, p.awaitUse(conn)
		},
		Failed: func(_ string, err error) {
			if ctx.Err() == nil && !errors.Is(err, errNotTaken) {
				p.retries.Add(1)
			}
		},
	})
}

// maxStrangers bounds the connections that are not authenticated yet, beside one of each rank.
const maxStrangers = 256

// accept takes control connections.
func (n *Node) accept() {
	strangers := &lobby.Lobby{Max: n.size + maxStrangers}
	defer strangers.Close()
	l := n.listener.(*net.TCPListener)
	var spare *os.File // a descriptor to tell a peer that there are none
	defer func() { spare.Close() }()
	said := false
	for {
		if spare == nil {
			spare, _ = l.File()
		}
		conn, err := l.Accept()
		lacking := errors.Is(err, limits.ErrFiles)
		if err != nil && !said && n.life.Err() == nil && !errors.Is(err, net.ErrClosed) {
			said = true
			n.log.Error("channel: cannot accept a control connection", "error", limits.Files(err))
		}
		if lacking && spare != nil {
			spare.Close()
			spare = nil
			conn, err = l.Accept()
		}
		if err != nil {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-n.life.Done():
				return
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if lacking {
				strangers.Evict()
			}
			continue
		}
		conn = keepalive.Keep(conn, n.opt.peerTimeout)
		if !strangers.Enter(conn) {
			return
		}
		// Strangers that are evicted make room for a moment: as long as some wait it is the same lack.
		said = said && (spare == nil || strangers.Len() > 1)
		n.wg.Go(func() { n.welcome(conn, strangers) })
	}
}

// welcome identifies the rank that has connected.
func (n *Node) welcome(conn net.Conn, strangers *lobby.Lobby) {
	defer strangers.Leave(conn)
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
		if err != nil || !strangers.Leave(conn) || !q.offer() {
			return false
		}
		p = q
		return true
	})
	if p != nil {
		if err == nil {
			stop := context.AfterFunc(n.life, func() { conn.Close() })
			err = p.awaitUse(conn)
			stop()
		}
		used := err == nil && p.take(conn)
		if p.endOffer(); used {
			p.serve(conn)
			return
		}
		err = cmp.Or(err, errNotTaken)
	}
	conn.Close()
	n.log.Debug("channel: refused a control connection", "from", conn.RemoteAddr().String(), "error", err)
}

// address is where a rank can be connected to.
type address struct {
	host   uint64       // the same for ranks that may share memory
	kernel uint64       // the same for ranks that share CPUs, also if they are on networks of their own
	port   uint16       // 0: nowhere
	addrs  []netip.Addr // in order of preference

	process machine.Process
}

func (a *address) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, a.host)
	b = binary.BigEndian.AppendUint64(b, a.kernel)
	b = binary.BigEndian.AppendUint16(b, a.port)
	b = a.process.Append(b)
	for _, ip := range a.addrs {
		as := ip.As16()
		b = append(b, as[:]...)
	}
	return b
}

func parseAddress(b []byte) (address, error) {
	r := reader{b: b}
	a := address{host: r.u64(), kernel: r.u64(), port: r.u16()}
	var err error
	if !r.bad {
		a.process, r.b, err = machine.ParseProcess(r.b)
	}
	if r.bad || err != nil || len(r.b)%16 != 0 || len(r.b) > maxAddresses*16 {
		return a, fmt.Errorf("%w: address of %d bytes", ErrProtocol, len(b))
	}
	for len(r.b) > 0 {
		a.addrs = append(a.addrs, netip.AddrFrom16([16]byte(r.take(16))).Unmap())
	}
	return a, nil
}

const maxAddresses = 256
