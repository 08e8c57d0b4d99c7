package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// pmiByFD says that PMI_FD is meant for this process. Open MPI's mpirun passes on the variable of a
// launcher around it, but not the descriptor.
func pmiByFD(v *values) bool {
	if !v.set(envPMIFD) {
		return false
	}
	if !v.set(envOpenMPIRank) {
		return true
	}
	fd, err := strconv.Atoi(v.get(envPMIFD))
	return err == nil && checkSocket(fd) == nil
}

func joinByPMIFD(ctx context.Context, v *values) (*Job, error) {
	e := v.place(envPMIRank, envPMISize)
	fd := v.integer(envPMIFD, 3, 1<<20)
	if v.err != nil {
		return nil, v.err
	}
	conn, err := takeSocket(fd)
	if err != nil {
		return nil, &EnvError{Name: envPMIFD, Value: v.get(envPMIFD), Err: err}
	}
	return joinByPMI(ctx, v, newPMI(conn), e)
}

func joinByPMIPort(ctx context.Context, v *values) (*Job, error) {
	address := v.get(envPMIPort)
	if err := checkAddress(address); err != nil {
		return nil, &EnvError{Name: envPMIPort, Value: address, Err: err}
	}
	id := v.integer(envPMIID, 0, MaxSize-1)
	if v.err != nil {
		return nil, v.err
	}
	within, cancel := wait.Patience(ctx, pmiPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(within, "tcp", address)
	if err != nil {
		return nil, &EnvError{Name: envPMIPort, Value: address, Err: err}
	}
	p := newPMI(conn)
	e, err := p.introduce(ctx, id)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return joinByPMI(ctx, v, p, e)
}

// introduce tells the launcher which process this is; the launcher answers with the rank.
func (p *pmi) introduce(ctx context.Context, id int) (e Environment, err error) {
	e.LocalRank = -1
	if _, err := p.ask(ctx, pmiPatience, "initack", "initack", pmiPair{"pmiid", strconv.Itoa(id)}); err != nil {
		return Environment{}, err
	}
	ctx, cancel := wait.Patience(ctx, pmiPatience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { p.conn.Close() })()
	// Size, rank and debug, in this order.
	for i := range 3 {
		l, err := p.receive("set")
		switch i {
		case 0:
			if err == nil {
				e.Size, err = l.number("size", 1, MaxSize)
			}
		case 1:
			if err == nil {
				e.Rank, err = l.number("rank", 0, e.Size-1)
			}
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return Environment{}, &PMIError{Command: "initack", Err: err}
		}
	}
	return e, nil
}

// joinByPMI takes ownership of p, even if it fails.
func joinByPMI(ctx context.Context, v *values, p *pmi, e Environment) (*Job, error) {
	u := &underPMI{pmi: p}
	job, err := u.join(ctx, v, e)
	if err != nil {
		p.conn.Close()
		return nil, err
	}
	u.exchanger, job.x = job.x, u
	return job, nil
}

func (u *underPMI) join(ctx context.Context, v *values, e Environment) (*Job, error) {
	p := u.pmi
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	e.Job = jobNamed(p.name)
	e.Same = v.flag(EnvSame)
	v.localPlace(&e, envHydraLocal, envHydraLocals)
	if u.slurm = p.name == v.slurmStep(); u.slurm {
		v.slurmLocalPlace(&e)
	}
	server := v.server(false)
	if v.err != nil {
		return nil, v.err
	}
	if e.Size == 1 {
		job, err := alone(ctx)
		if err == nil {
			job.id = e.Job
		}
		return job, err
	}
	ctx, stop := breakSilence(ctx, func() time.Duration { return 0 }, "waiting for all other ranks, in the barrier of the launcher", "rank", e.Rank, "size", e.Size)
	defer stop()
	m := meeting{Environment: e, hosted: true}
	if e.Rank != 0 {
		w, err := p.whereabouts(ctx)
		if err != nil {
			return nil, err
		}
		stop()
		m.Secret, m.find = w.secret, at(w.addresses...)
		return m.join(ctx)
	}
	m.Secret = newSecret()
	m.listen = func(ctx context.Context) (net.Listener, error) { return e.listen(ctx, server) }
	m.announce = func(ln net.Listener) (func(), error) {
		w, err := announcement(ctx, ln, m.Secret, server)
		if err != nil {
			return nil, err
		}
		if err := p.put(ctx, w.Append(nil)); err != nil {
			return nil, err
		}
		err = p.barrier(ctx)
		stop()
		return nil, err
	}
	if u.slurm {
		m.kill = u.kill
	}
	return m.join(ctx)
}

// announcement is what rank 0, which listens at ln, tells the other ranks.
func announcement(ctx context.Context, ln net.Listener, secret []byte, server string) (w whereabouts, err error) {
	w = whereabouts{secret: secret, addresses: []string{server}}
	if server == "" {
		w.addresses, err = reachable(ctx, ln)
	}
	return w, err
}

// listen returns the listener of rank 0: at the port of SLUICE_SERVER if that is set, otherwise at
// any port, and reachable from other hosts only if the job has ranks there.
func (e *Environment) listen(ctx context.Context, server string) (net.Listener, error) {
	switch {
	case server != "":
		ln, err := listenAt(ctx, server)
		if err == nil && ln == nil {
			err = fmt.Errorf("%s=%s is not an address of rank 0's host, or its port is in use", EnvServer, server)
		}
		return ln, err
	case e.oneHost():
		return reach.ListenLoopback(ctx)
	}
	return reach.ListenAny(ctx)
}

func checkAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return errors.New("not host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %.20q, want 1 to 65535", port)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if host == "" || len(host) > maxHost || strings.ContainsFunc(host, func(r rune) bool { return !hostRune(r) }) {
		return errors.New("not a host name")
	}
	return nil
}

// underPMI is an exchange that also reports to the launcher.
//
// Hydra is told of an abort before the ranks are: if a rank had already ended, mpiexec would return
// another exit status than that of the abort.
//
// Slurm kills a step that aborts, and srun then returns the number of the signal instead of the
// code. Slurm is therefore asked only to end ranks that do not end themselves, by rank 0, which is
// told of the abort last.
type underPMI struct {
	exchanger
	slurm bool

	mu     sync.Mutex // held while talking to the launcher, once the rank has joined
	pmi    *pmi
	gone   bool // the launcher has been told of the end
	closed bool
}

func (u *underPMI) abort(code int, why string) bool {
	if !u.slurm {
		u.kill(code)
		u.exchanger.abort(code, why)
		return true
	}
	if u.exchanger.abort(code, why) {
		if h, ok := u.exchanger.(*host); !ok || h.server.await(abortGrace, h.server.othersGone) {
			return true
		}
	}
	u.kill(code)
	return true
}

// kill asks the launcher to end the job. A launcher that cannot be reached is already ending.
func (u *underPMI) kill(code int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.gone {
		u.gone = true
		u.pmi.abort(code)
	}
}

func (u *underPMI) close() error {
	err := u.exchanger.close()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return err
	case u.gone:
		u.pmi.conn.Close()
	default:
		u.gone = true
		err = errors.Join(err, u.pmi.finalize())
	}
	u.closed = true
	return err
}

// refusePMI reports a launcher that has not said how to reach it.
func refusePMI(_ context.Context, v *values) (*Job, error) {
	return nil, &LauncherError{
		Launcher: "a PMI launcher (" + envPMIRank + " is set)",
		Err:      fmt.Errorf("neither %s nor %s is set", envPMIFD, envPMIPort),
		Advice:   usable,
	}
}
