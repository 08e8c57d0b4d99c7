package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// meeting is how the ranks of a job find each other.
type meeting struct {
	Environment // Server is ignored
	// find returns the possible addresses of the rendezvous; it is called before each attempt.
	find func() ([]string, error)
	// hosted says that rank 0 runs the rendezvous. listen returns its listener, or nil if the
	// rendezvous already runs elsewhere; it may be nil itself.
	hosted bool
	listen func(context.Context) (net.Listener, error)
	// announce tells the other ranks where the rendezvous is. The function it returns withdraws the
	// announcement. Both may be nil.
	announce func(net.Listener) (undo func(), err error)
	// kill makes the launcher end the ranks that do not end themselves when the job is aborted; it
	// may be nil.
	kill func(code int)
	// address is that of the rendezvous, for people; "" if only addresses as found are known.
	address string
	// arrival is how long the other ranks may take to come to a rendezvous run by rank 0 before
	// they count as dead. 0: no limit.
	arrival time.Duration
}

// at returns the find function for known addresses.
func at(addresses ...string) func() ([]string, error) {
	return func() ([]string, error) { return addresses, nil }
}

// join makes this process a rank and, if it is rank 0, the host.
func (m *meeting) join(ctx context.Context) (*Job, error) {
	x, err := m.exchanger(ctx)
	if err != nil {
		return nil, err
	}
	return &Job{
		rank:      m.Rank,
		size:      m.Size,
		localRank: m.LocalRank,
		localSize: m.LocalSize,
		id:        m.Job,
		secret:    m.Secret,
		x:         x,
	}, nil
}

func (m *meeting) exchanger(ctx context.Context) (exchanger, error) {
	near := &nearby{silent: map[string]bool{}}
	patience := func() time.Duration {
		if near.some.Load() {
			return 0
		}
		return m.patience(ctx)
	}
	ctx, stop := breakSilence(ctx, patience, "waiting for the rendezvous", "rank", m.Rank, "size", m.Size)
	defer stop()
	if !m.hosted || m.Rank != 0 || m.listen == nil {
		c, _, err := m.dial(ctx, near, nil)
		return c, err
	}
	ln, err := m.listen(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("boot: join: rank 0 of %d: rendezvous: %w", m.Size, err)
	case ln == nil:
		var c *client
		if c, ln, err = m.dial(ctx, near, m.listen); ln == nil {
			return c, err
		}
	}
	dialing, lacks := context.WithCancelCause(ctx) // where the server has no descriptor for this rank itself
	defer lacks(nil)
	h := &host{undo: func() {}}
	// It ends with the Job, not with the context of Join.
	h.server, err = Serve(context.Background(), ln, ServerOptions{
		Size:     m.Size,
		Job:      m.Job,
		Secret:   m.Secret,
		Insecure: m.Insecure,
		Logger:   loggerOf(ctx),
		hosted:   true,
		address:  m.hostAddress(ctx, ln),
		lacks:    lacks,
		kill:     m.kill,
	})
	if err != nil {
		return nil, err
	}
	if m.announce != nil {
		undo, err := m.announce(ln)
		if err != nil {
			h.server.Close()
			return nil, fmt.Errorf("boot: join: rank 0 of %d: announcing the address of the rendezvous: %w", m.Size, err)
		}
		if undo != nil {
			h.undo = undo
		}
	}
	own := *m
	own.find = at(ownAddresses(ln)...)
	if h.client, _, err = own.dial(dialing, near, nil); err != nil {
		if why := context.Cause(dialing); errors.Is(why, limits.ErrFiles) {
			err = fmt.Errorf("boot: join: rank 0 of %d: rendezvous: %w", m.Size, why)
		}
		h.undo()
		h.server.Close()
		return nil, err
	}
	if m.arrival > 0 {
		h.server.expect(m.arrival)
	}
	return h, nil
}

// hostAddress is the address of the rendezvous that this rank runs, for people.
func (m *meeting) hostAddress(ctx context.Context, ln net.Listener) string {
	if m.address != "" {
		return m.address
	}
	if list, err := reachable(ctx, ln); err == nil && len(list) > 0 {
		return list[0]
	}
	return ln.Addr().String()
}

// host is the exchange of the rank that runs the job's rendezvous.
type host struct {
	*client
	server    *Server
	undo      func()
	closeOnce sync.Once
	closeErr  error
}

// abort returns when all ranks have been told, because this process may end next.
func (h *host) abort(code int, why string) bool {
	h.server.mu.Lock()
	h.server.abortBy(h.rank, abort{code: int32(code), text: shorten(why, maxText)})
	h.server.mu.Unlock()
	h.server.flush(farewellPatience)
	h.client.end(h.server.Abort())
	return true
}

func (h *host) close() error {
	h.closeOnce.Do(func() {
		h.undo()
		h.closeErr = h.client.close()
		absentees := farewellPatience
		if h.server.mistaken() {
			absentees = mistakePatience
		}
		if !h.server.await(absentees, h.server.othersLeft) {
			h.server.await(farewellPatience-absentees, h.server.othersGone)
		}
		h.server.retire()
	})
	return h.closeErr
}

// ownAddresses returns the addresses at which this process reaches its own listener.
func ownAddresses(ln net.Listener) []string {
	own := ln.Addr().(*net.TCPAddr).AddrPort()
	if !own.Addr().IsUnspecified() {
		return []string{own.String()}
	}
	port := strconv.Itoa(int(own.Port()))
	return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
}

// listenAt listens at a given host and port. It returns nil if that is not an address of this host,
// or if something is already listening there. For a name of this host it listens on all addresses:
// other hosts may resolve the name differently, and Debian's hosts resolve their own name to
// 127.0.1.1.
func listenAt(ctx context.Context, server string) (net.Listener, error) {
	name, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	addresses, err := resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	for _, a := range addresses {
		// Binding is the way to find out whether an address is local.
		probe, err := config.Listen(ctx, "tcp", net.JoinHostPort(a.String(), "0"))
		if err != nil {
			if full := limits.Files(err); full != err {
				return nil, full
			}
			continue // it is another host's, or of a kind that this host has not
		}
		probe.Close()
		where := a.String()
		if _, err := netip.ParseAddr(name); err != nil && name != "localhost" {
			where = ""
		}
		ln, err := reach.Listen(ctx, config, net.JoinHostPort(where, port))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil
		}
		return ln, limits.Files(err)
	}
	return nil, nil
}

// resolve waits until a name can be resolved: that of a pod can when the pod is up.
func resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := wait.Patience(ctx, hostedPatience)
	defer cancel()
	for {
		waitsFor(ctx, fmt.Errorf("lookup %s: no answer yet", name))
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err == nil {
			waitsFor(ctx, nil)
			for i, a := range addresses {
				addresses[i] = a.Unmap()
			}
			return addresses, nil
		}
		if err = limits.Files(err); errors.Is(err, limits.ErrFiles) {
			return nil, err
		}
		waitsFor(ctx, err)
		retry := time.NewTimer(time.Second)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// maxAddresses is the most addresses of rank 0 that are announced.
const maxAddresses = 64

// Reachable returns the addresses at which other hosts may reach ln, the likely ones first: together, with
// commas between them, they may be the Server of an Environment that is Launched.
func Reachable(ln net.Listener) ([]string, error) { return reachable(context.Background(), ln) }

// reachable returns the addresses at which other hosts may reach ln, the likely ones first;
// loopback comes last, for ranks of this host if there is nothing else.
func reachable(ctx context.Context, ln net.Listener) ([]string, error) {
	all, err := reach.AddressesOf(ln)
	if err != nil {
		return nil, err
	}
	if len(all) > maxAddresses {
		loggerOf(ctx).Warn("boot: this host has too many addresses to announce", "announced", maxAddresses, "not announced", len(all)-maxAddresses)
		all = append(all[:maxAddresses-1], all[len(all)-1])
	}
	list := make([]string, len(all))
	for i, a := range all {
		list[i] = netip.AddrPortFrom(a, ln.Addr().(*net.TCPAddr).AddrPort().Port()).String()
	}
	return list, nil
}
