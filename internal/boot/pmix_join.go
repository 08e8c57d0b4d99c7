package boot

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/pmix"
)

// Under PMIx (Open MPI, PRRTE, srun --mpi=pmix) rank 0 puts the address of its rendezvous and a random
// secret into the key space of the job, as under PMI-1. The conversation with the launcher is over when
// Join is: a process that ends without having finalized it would be a crash to mpirun, whatever its
// status.

// pmixKey is the key of rank 0's announcement.
const pmixKey = "sluice"

// underPMIx says that a launcher that speaks PMIx has started this process. Slurm's own variables of
// PMIx stay in the environment of the steps that a step starts: they count only for their own step.
func underPMIx(v *values) bool {
	if inSlurmStep(v) && strings.HasPrefix(v.get(envPMIxNamespace), "slurm.pmix.") {
		return v.slurmPMIx()
	}
	return v.set(envPMIxRank) || v.set(envOpenMPIRank)
}

// pmixUsed says that this process has joined through PMIx. The fence of a second job would not wait for
// ranks whose first is over: they are finalized, and to the launcher gone.
var pmixUsed atomic.Bool

// errSecondProgram explains why nothing is announced after the fence.
var errSecondProgram = errors.New("rank 0 has announced nothing: does it call Join? Only the first program of a rank can meet the others through PMIx; for a second one start another job, or set " + pmix.Env + "=" + pmix.None)

// joinPMIx joins a job of a launcher that speaks PMIx.
func joinPMIx(ctx context.Context, v *values) (*Job, error) {
	file := v.get(pmix.Env)
	err := errors.New(pmix.Env + "=" + pmix.None + " is set")
	if file != pmix.None {
		err = pmix.Open(file)
	}
	if err != nil {
		return joinWithoutPMIx(ctx, v, err)
	}
	server := v.server(false)
	if v.err != nil {
		return nil, v.err
	}
	if !pmixUsed.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("boot: join: %w: a launcher that speaks PMIx no longer waits for the ranks that have left", ErrJoined)
	}
	var c *pmix.Client
	begin := func() (p pmix.Place, err error) {
		if c, err = pmix.Init(); err != nil {
			return p, err
		}
		if p, err = c.Place(); err == nil && (p.Size > MaxSize || p.Rank >= p.Size) {
			err = fmt.Errorf("%w: rank %d of %d, of at most %d", errProtocol, p.Rank, p.Size, MaxSize)
		}
		if err != nil {
			c.Finalize()
		}
		return p, err
	}
	place, err := unlessOver(ctx, begin, func(pmix.Place) { c.Finalize() })
	if err != nil {
		return nil, pmixError(err)
	}
	e := Environment{Rank: place.Rank, Size: place.Size, LocalRank: place.LocalRank, LocalSize: place.LocalSize, Job: jobNamed("pmix-" + place.Namespace), Same: v.flag(EnvSame)}
	if e.LocalSize == 0 { // not all launchers tell the library
		v.localPlace(&e, envOpenMPILocalRank, envOpenMPILocalSize)
		v.slurmLocalPlace(&e)
	}
	if v.err != nil {
		c.Finalize()
		return nil, v.err
	}
	if e.Size == 1 {
		if err := c.Finalize(); err != nil {
			return nil, pmixError(err)
		}
		job, err := alone(ctx)
		if err == nil {
			job.id = e.Job
		}
		return job, err
	}

	ctx, stop := breakSilence(ctx, func() time.Duration { return 0 }, "waiting for all other ranks, in PMIx_Fence", "rank", e.Rank, "size", e.Size)
	defer stop()
	m := meeting{Environment: e, hosted: true}
	if e.Rank != 0 {
		w, err := meetByPMIx(ctx, c, nil)
		if err != nil {
			return nil, pmixError(err)
		}
		stop()
		m.Secret, m.find = w.secret, at(w.addresses...)
		return m.join(ctx)
	}
	m.Secret = newSecret()
	m.listen = func(ctx context.Context) (net.Listener, error) { return e.listen(ctx, server) }
	talking := true
	m.announce = func(ln net.Listener) (func(), error) {
		w, err := announcement(ctx, ln, m.Secret, server)
		if err != nil {
			return nil, err
		}
		talking = false
		_, err = meetByPMIx(ctx, c, &w)
		stop()
		return nil, err
	}
	job, err := m.join(ctx)
	if talking {
		err = errors.Join(err, c.Finalize())
	}
	return job, err
}

// meetByPMIx is the rest of the conversation: rank 0 announces w, all others read it.
func meetByPMIx(ctx context.Context, c *pmix.Client, w *whereabouts) (whereabouts, error) {
	waitsFor(ctx, errLate)
	defer waitsFor(ctx, nil)
	return unlessOver(ctx, func() (got whereabouts, err error) {
		defer func() { err = errors.Join(err, c.Finalize()) }()
		if w != nil {
			if err := c.Put(pmixKey, base64.RawURLEncoding.EncodeToString(w.Append(nil))); err != nil {
				return got, err
			}
			return *w, c.Fence()
		}
		if err := c.Fence(); err != nil {
			return got, err
		}
		text, err := c.Get(0, pmixKey)
		if err != nil {
			return got, fmt.Errorf("%w: %w", err, errSecondProgram)
		}
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return got, fmt.Errorf("%w: %w", errProtocol, err)
		}
		return parseWhereabouts(data)
	}, func(whereabouts) {})
}

// unlessOver returns what f does, or the error of ctx as soon as that has ended: a call of the library
// cannot be interrupted. What f returns later is passed to late, if it is no error.
func unlessOver[T any](ctx context.Context, f func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				late(r.value)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}

func pmixError(err error) error { return fmt.Errorf("boot: PMIx: %w", err) }

// joinWithoutPMIx joins where the library cannot be used, such as in a static program: with a secret that
// was set by hand, Open MPI on one host, and Slurm, tell enough without it.
func joinWithoutPMIx(ctx context.Context, v *values, why error) (*Job, error) {
	size := envOpenMPISize
	if !v.set(envOpenMPIRank) {
		size = envSlurmSize
	}
	bare := size == envSlurmSize && !v.slurmPMIx() // PRRTE tells nothing else
	secret := v.set(EnvSecret) || v.set(EnvSecretFile) || v.set(EnvInsecure)
	switch {
	case bare || !secret && v.get(size) != "1":
		advice := "install the package of libpmix.so.2 on all hosts (libpmix2 of Debian and Ubuntu, pmix of Fedora and RHEL) or name the launcher's own in " + pmix.Env
		if errors.Is(why, pmix.ErrWithout) {
			advice = "build the program with CGO_ENABLED=1"
		}
		if bare {
			advice += "; or " + usable
		} else {
			advice += "; or set " + EnvSecret + " on all ranks, and " + EnvServer + "=host:port if they are on several hosts"
		}
		return nil, &LauncherError{Launcher: "a launcher that speaks PMIx (" + envPMIxRank + " is set)", Err: why, Advice: advice}
	case size == envSlurmSize:
		return joinSlurm(ctx, v)
	}
	return joinOpenMPI(ctx, v)
}
