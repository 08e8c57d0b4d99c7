package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// The clients of an IMPI server announce, under a label of Sluice's own, where rank 0 runs the
// rendezvous. The server passes on what they submit until all have sent DONE, and nothing after
// that, so the rounds of the allgather, aborts and deaths go through the rendezvous, as in every
// other job. Any client of the server can read a label, so the secret of the job is never under
// one.
//
//	line  rank 0              others
//	0     rendezvousMagic     rendezvousMagic
//	1...  host:port
const (
	labelRendezvous startup.Label = 0xb007
	rendezvousMagic               = "sluice-boot 1"
)

// impiClient is the environment's description of a client of an IMPI server.
type impiClient struct {
	Environment // Size is 0 if not given; Server is ignored
	server      string
	key         uint64 // 0: method NONE
	arrival     time.Duration
}

// parseIMPI reads the variables of a client of an IMPI server.
func parseIMPI(v *values) (c impiClient, err error) {
	c.arrival = joinPatience
	c.server = v.get(EnvIMPIServer)
	if err := checkServer(c.server); err != nil {
		v.fail(EnvIMPIServer, c.server, err)
	}
	if other := v.get(EnvServer); other != "" {
		v.fail(EnvServer, other, errors.New(EnvIMPIServer+" is also set: set only one of the two"))
	}
	rank := EnvRank
	if !v.set(EnvRank) && v.set(envCompletionIndex) {
		rank = envCompletionIndex
	}
	most := startup.MaxClients
	if v.set(EnvSize) {
		c.Size = v.integer(EnvSize, 1, most)
		most = max(c.Size, 1)
	}
	c.Rank = v.integer(rank, 0, most-1)
	c.LocalRank = -1
	if v.set(EnvLocalRank) || v.set(EnvLocalSize) {
		c.LocalSize = v.integer(EnvLocalSize, 1, most)
		c.LocalRank = v.integer(EnvLocalRank, 0, max(c.LocalSize-1, 0))
	}
	c.Job = v.job()
	c.Same = v.flag(EnvSame)
	c.Secret, c.Insecure = v.secret(true)
	if text := v.get(envIMPIKey); text != "" {
		if c.key, err = strconv.ParseUint(text, 10, 64); err != nil || c.key == 0 {
			v.fail(envIMPIKey, "", errors.New("not a decimal number from 1 to 18446744073709551615"))
		}
	}
	return c, v.err
}

// joinIMPI makes this process the rank with the number of the client.
func joinIMPI(ctx context.Context, v *values) (*Job, error) {
	c, err := parseIMPI(v)
	if err != nil {
		return nil, err
	}
	s, err := c.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("boot: join: rank %d at IMPI server %s: %w", c.Rank, c.server, err)
	}
	job, err := c.meet(ctx, s)
	if err != nil {
		s.close()
		return nil, err
	}
	job.x = &startedByIMPI{exchanger: job.x, startup: s.job}
	return job, nil
}

// started is the result of a startup.
type started struct {
	job       *startup.Job
	addresses []string     // of the rendezvous
	listener  net.Listener // on rank 0, for the rendezvous; otherwise nil
}

func (s *started) close() {
	s.job.Close()
	if s.listener != nil {
		s.listener.Close()
	}
}

// start runs the startup. It waits for a server that is not up yet, and then for the other clients
// as long as the server does.
func (c *impiClient) start(ctx context.Context) (*started, error) {
	within, cancel := wait.Patience(ctx, hostedPatience)
	defer cancel()
	ctx, stop := breakSilence(ctx, func() time.Duration { return 0 }, "waiting for the IMPI server, or for its other clients", "rank", c.Rank)
	defer stop()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		waitsFor(ctx, fmt.Errorf("at %s: no answer yet", c.server))
		s, err := c.tryStart(ctx)
		if err == nil {
			return s, nil
		}
		dial := (*net.OpError)(nil)
		if err = limits.Files(err); errors.Is(err, limits.ErrFiles) || !errors.As(err, &dial) || dial.Op != "dial" || within.Err() != nil && ctx.Err() == nil {
			return nil, err
		}
		waitsFor(ctx, fmt.Errorf("at %s: %w", c.server, err))
		retry := time.NewTimer(pause)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// tryStart is one attempt.
func (c *impiClient) tryStart(ctx context.Context) (_ *started, err error) {
	own, err := reach.Towards(ctx, c.server)
	if err != nil {
		return nil, err
	}
	s := &started{}
	defer func() {
		if err != nil && s.listener != nil {
			s.listener.Close()
		}
	}()
	calling := []byte(rendezvousMagic)
	if c.Rank == 0 {
		if s.listener, err = listenBeside(ctx, own); err != nil {
			return nil, err
		}
		addresses, err := reachable(ctx, s.listener)
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			calling = append(append(calling, '\n'), a...)
		}
	}
	s.job, err = startup.Dial(ctx, c.server, startup.Config{
		Rank: c.Rank,
		Key:  c.key,
		// No client connects to this host as an IMPI host. The ids of the processes must differ
		// even if they are in PID namespaces of their own.
		Hosts: []startup.Host{{
			ID:        startup.HostIDOf(own),
			Processes: []startup.Process{{PID: uint64(c.Rank)<<32 | uint64(os.Getpid())}},
		}},
		Extra: []startup.Extra{{Label: labelRendezvous, Data: calling}},
	})
	if err != nil {
		return nil, err
	}
	if s.addresses, err = c.agree(s.job); err != nil {
		s.job.Close()
		return nil, err
	}
	return s, nil
}

// agree returns the addresses of the job's rendezvous, or the reason why the clients are not one
// job of channels. All ranks come to the same result.
func (c *impiClient) agree(job *startup.Job) ([]string, error) {
	callings := job.Extra(labelRendezvous)
	var addresses []string
	for rank := range job.Clients {
		fault := func(label startup.Label, err error) error {
			return &startup.Error{Phase: startup.PhaseCollect, Rank: rank, Label: label, Err: err}
		}
		if job.Clients[rank].Foreign {
			return nil, fault(startup.LabelSluice, fmt.Errorf("%w: the client is not a program of Sluice, as all ranks must be", startup.ErrForeign))
		}
		if callings[rank] == nil {
			return nil, fault(labelRendezvous, fmt.Errorf("%w: the client does not join the job through package channel, as all ranks must", startup.ErrDisagree))
		}
		list, err := parseCalling(callings[rank], rank == 0)
		if err != nil {
			return nil, fault(labelRendezvous, err)
		}
		addresses = append(addresses, list...)
	}
	switch size := len(job.Clients); {
	case c.Size != 0 && c.Size != size:
		return nil, &EnvError{Name: EnvSize, Value: strconv.Itoa(c.Size), Err: fmt.Errorf("the job of the IMPI server has %d clients", size)}
	case c.LocalSize > size:
		return nil, &EnvError{Name: EnvLocalSize, Value: strconv.Itoa(c.LocalSize), Err: fmt.Errorf("the job of the IMPI server has %d clients", size)}
	}
	return addresses, nil
}

// parseCalling decodes the submission of a rank; that of rank 0 has the addresses.
func parseCalling(b []byte, host bool) (addresses []string, err error) {
	lines := strings.Split(string(b), "\n")
	if lines[0] != rendezvousMagic {
		return nil, fmt.Errorf("%w: it submitted %.20q instead of %q", startup.ErrDisagree, lines[0], rendezvousMagic)
	}
	addresses = lines[1:]
	if n := len(addresses); host && n == 0 || !host && n > 0 || n > maxAddresses {
		return nil, fmt.Errorf("%w: it announced %d addresses of a rendezvous", startup.ErrProtocol, n)
	}
	for _, a := range addresses {
		if err := checkAddress(a); err != nil {
			return nil, fmt.Errorf("%w: address %.80q: %w", startup.ErrProtocol, a, err)
		}
	}
	return addresses, nil
}

// meet joins the rendezvous. All ranks were present at the server, so a rank that does not come
// here soon has died in between.
func (c *impiClient) meet(ctx context.Context, s *started) (*Job, error) {
	m := meeting{Environment: c.Environment, hosted: true, find: at(s.addresses...), arrival: c.arrival}
	m.Size = len(s.job.Clients)
	if c.Rank == 0 {
		m.listen = func(context.Context) (net.Listener, error) { return s.listener, nil }
	}
	return m.join(ctx)
}

// startedByIMPI is an exchange that also reports to the server.
type startedByIMPI struct {
	exchanger
	startup *startup.Job
}

func (s *startedByIMPI) close() error {
	return errors.Join(s.exchanger.close(), s.startup.Finish())
}

// listenBeside listens for all that can reach a server that this host reaches from own: if own is
// loopback, for this host alone.
func listenBeside(ctx context.Context, own netip.Addr) (net.Listener, error) {
	if own.IsLoopback() {
		return reach.ListenLoopback(ctx)
	}
	return reach.ListenAny(ctx)
}
