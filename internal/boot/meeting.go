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
)

// meeting is how the ranks of a job find each other.
type meeting struct {
	Environment // Server is of no account
	// find says where the rendezvous may be; it is asked before each attempt.
	find func() ([]string, error)
	// hosted says that rank 0 runs the rendezvous, and listen gives it the
	// place to do so, or none if somebody else does it. It may be nil.
	hosted bool
	listen func(context.Context) (net.Listener, error)
	// announce tells the other ranks where it is; it may be nil. What it
	// returns takes the announcement back, and may be nil too.
	announce func(net.Listener) (undo func(), err error)
	// kill has the launcher end the ranks that do not end themselves when the
	// job is aborted; it may be nil.
	kill func(code int)
	// arrival is how long the others may take to come to a rendezvous that rank 0
	// runs, once it has, before they count as dead. 0: for ever.
	arrival time.Duration
}

// at is the find of a rendezvous whose address is known.
func at(addresses ...string) func() ([]string, error) {
	return func() ([]string, error) { return addresses, nil }
}

// join makes this process a rank, and rank 0 the host.
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
	ctx, stop := breakSilence(ctx, m.patience(), "boot: this rank waits for the rendezvous", "rank", m.Rank, "size", m.Size)
	defer stop()
	if !m.hosted || m.Rank != 0 || m.listen == nil {
		return m.dial(ctx)
	}
	ln, err := m.listen(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("boot: join: rank 0 of %d: rendezvous: %w", m.Size, err)
	case ln == nil:
		return m.dial(ctx)
	}
	h := &host{undo: func() {}}
	// Its end is that of the Job, not of the context of Join.
	h.server, err = Serve(context.Background(), ln, ServerOptions{
		Size:     m.Size,
		Job:      m.Job,
		Secret:   m.Secret,
		Insecure: m.Insecure,
		Logger:   loggerOf(ctx),
		hosted:   true,
		kill:     m.kill,
	})
	if err != nil {
		return nil, err
	}
	if m.announce != nil {
		undo, err := m.announce(ln)
		if err != nil {
			h.server.Close()
			return nil, fmt.Errorf("boot: join: rank 0 of %d: telling the others where the rendezvous is: %w", m.Size, err)
		}
		if undo != nil {
			h.undo = undo
		}
	}
	own := *m
	own.find = at(ownAddresses(ln)...)
	if h.client, err = own.dial(ctx); err != nil {
		h.undo()
		h.server.Close()
		return nil, err
	}
	if m.arrival > 0 {
		h.server.expect(m.arrival)
	}
	return h, nil
}

// host is the exchange of the rank that runs the rendezvous of its job.
type host struct {
	*client
	server    *Server
	undo      func()
	closeOnce sync.Once
	closeErr  error
}

// abort returns when all ranks have been told, for this process may end next.
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
		h.server.await(farewellPatience, h.server.othersLeft)
		h.server.retire()
	})
	return h.closeErr
}

// ownAddresses are where this process reaches its own listener.
func ownAddresses(ln net.Listener) []string {
	own := ln.Addr().(*net.TCPAddr).AddrPort()
	if !own.Addr().IsUnspecified() {
		return []string{own.String()}
	}
	port := strconv.Itoa(int(own.Port()))
	return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
}

// listenAt listens at a given host and port, or returns nil if that is not an
// address of this host, or if somebody listens there already. At a name that is
// an address of this host it listens at all of them: what the name means to
// others may differ, and Debian's hosts know themselves as 127.0.1.1.
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
		// To bind is the way to ask whether an address is one's own.
		probe, err := config.Listen(ctx, "tcp", net.JoinHostPort(a.String(), "0"))
		if err != nil {
			continue
		}
		probe.Close()
		where := a.String()
		if _, err := netip.ParseAddr(name); err != nil && name != "localhost" {
			where = ""
		}
		ln, err := config.Listen(ctx, "tcp", net.JoinHostPort(where, port))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil
		}
		return ln, err
	}
	return nil, nil
}

// resolve waits for a name to come up: that of a pod does so with the pod.
func resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, hostedPatience)
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

// listenLoopback listens where only this host comes by.
func listenLoopback(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	ln, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		var err6 error
		if ln, err6 = config.Listen(ctx, "tcp6", "[::1]:0"); err6 != nil {
			return nil, errors.Join(err, err6)
		}
	}
	return ln, nil
}

// maxAddresses is how many addresses of rank 0 the others are told.
const maxAddresses = 16

// reachable are the addresses at which other hosts may reach ln, the likely
// ones first; loopback is the last, for ranks of this host where there is
// nothing else.
func reachable(ln net.Listener) ([]string, error) {
	own := ln.Addr().(*net.TCPAddr).AddrPort()
	if !own.Addr().IsUnspecified() {
		return []string{own.String()}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var four, six, loop []string
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := prefix.Addr().Unmap()
		text := net.JoinHostPort(ip.String(), strconv.Itoa(int(own.Port())))
		switch {
		case ip.IsLoopback():
			loop = append(loop, text)
		case ip.IsLinkLocalUnicast(), ip.IsMulticast():
		case ip.Is4():
			four = append(four, text)
		default:
			six = append(six, text)
		}
	}
	list := append(four, six...)
	list = append(list[:min(len(list), maxAddresses-1)], loop...)
	return list[:min(len(list), maxAddresses)], nil
}
