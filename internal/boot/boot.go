// Package boot tells a process its rank in its job and gives the ranks of a job a first means of
// communication: an allgather of opaque bytes, enough to exchange the addresses of everything
// faster.
//
// [Join] looks for the description of the job in this order:
//
//   - SLUICE_IMPI_SERVER and SLUICE_RANK: the process is that client of the
//     startup server of an IMPI job;
//   - SLUICE_RANK, SLUICE_SIZE and SLUICE_SERVER, set by hand (see
//     [Variables]);
//   - a launcher that speaks PMI-1 over PMI_FD or PMI_PORT: Hydra (mpiexec of
//     MPICH), srun --mpi=pmi2;
//   - a launcher that speaks PMIx: Open MPI's mpirun, prterun, srun --mpi=pmix;
//     without the library of PMIx, and with a secret set by hand, what Open MPI
//     and Slurm tell besides serves;
//   - Slurm, inside a step of srun; a shell of sbatch or salloc does not count;
//   - the SLUICE_* variables set by 'sluice run': any launcher found above was
//     started inside of it, because 'sluice run' hides from its ranks the
//     variables of the launchers around it;
//   - JOB_COMPLETION_INDEX, which Kubernetes gives to the pods of an indexed
//     Job, in place of SLUICE_RANK;
//   - otherwise the process is a job of one.
//
// The ranks meet at a rendezvous (see [Serve]). 'sluice run' runs it for its ranks; in all other
// jobs rank 0 does. Rank 0 announces the address through the key space of PMI or PMIx, a file
// in the session directory of Open MPI, or a label of the IMPI server; otherwise SLUICE_SERVER or the node
// list of Slurm gives it. SLUICE_SERVER applies under every launcher, but not together with an IMPI
// server.
//
// An IMPI server ('sluice server', or that of another implementation) brings up to 32 clients
// together, each of which is one rank, and tells them their number. With IMPI_AUTH_KEY in the
// environment the clients authenticate to it with that key, otherwise by method NONE. The server
// takes part in the startup only. Each rank tells it when it ends, which determines the server's
// exit status. A rank that does not go on from the server to the rendezvous within 30 s counts as
// dead. A client that is not a rank of such a job makes Join fail on all ranks with a startup.Error
// that names it.
//
// Rank and rendezvous prove to each other that they know the secret of the job before anything else
// (package proof). That authenticates but does not encrypt. 'sluice run' passes the secret in the
// environment; under PMI and PMIx, rank 0 puts a random one into the key space; otherwise it is that of
// SLUICE_SECRET or SLUICE_SECRET_FILE, also with an IMPI server, because every client of it can
// read its labels.
package boot

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	// MaxData is the most bytes that a rank can contribute to one round of [Job.Exchange].
	MaxData = 1 << 20
	// MaxSize is the most ranks that a job can have.
	MaxSize = 1 << 20
)

// Join makes this process a rank of its job. It returns when the rendezvous has admitted the rank.
// If the rendezvous is not up yet, Join waits for it up to 30 s under 'sluice run' and two minutes
// elsewhere, or until ctx ends; of this time only that counts in which this process runs. One of this
// host that has accepted the connection, and may be stopped, is waited for until ctx ends. Under PMI
// and PMIx Join waits for all ranks of the job until ctx ends. With an IMPI server it waits for the server as
// long as for a rendezvous, and then for all ranks until the server gives up. Otherwise it does not
// wait for the other ranks.
//
// A process can join again only after Close, under PMI and PMIx not even then, because joining uses up the
// connection to the launcher: ErrJoined. One that no launcher has started, and for which no variables are set,
// can be any number of jobs of one.
//
// Errors: [*EnvError] for a wrong variable, [*LauncherError] for a launcher that cannot be used,
// [*PMIError] for an error of a PMI launcher, startup.Error for one of the IMPI startup,
// [*RefusedError] if the rendezvous has no place for this rank, proof.Error if one of the two does
// not know the secret, otherwise the error of ctx or of the network.
//
// The Job belongs to the caller, which must Close it.
func Join(ctx context.Context) (*Job, error) {
	if e, ok := ctx.Value(environmentKey{}).(Environment); ok {
		return e.Join(ctx)
	}
	if entered.Load() {
		return nil, fmt.Errorf("boot: join: %w: pass its node on, or close it before", ErrJoined)
	}
	if err := checkValues(os.Getenv); err != nil {
		return nil, err
	}
	warned := warnsFirst(os.LookupEnv)
	if warned {
		warnOfUnknown(ctx, os.Environ())
	}
	job, err := joinFrom(ctx, os.LookupEnv)
	if err == nil {
		if _, alone := job.x.(*local); !alone {
			job.only = true
			entered.Store(true)
		}
	}
	if !warned && (err != nil || job.rank == 0) { // a misspelt name may be why
		warnOfUnknown(ctx, os.Environ())
	}
	return job, err
}

// entered says that this process has a Job of [Join] open which a launcher, or variables, describe.
var entered atomic.Bool

// Place returns the rank of this process and the size of its job, as far as the environment says: for
// messages about a Join that has failed.
func Place(ctx context.Context) (rank, size int, ok bool) {
	if e, ok := ctx.Value(environmentKey{}).(Environment); ok {
		return e.Rank, e.Size, true
	}
	return placeFrom(os.LookupEnv)
}

func placeFrom(lookup func(string) (string, bool)) (rank, size int, ok bool) {
	v := &values{lookup: lookup}
	names := [2]string{EnvRank, EnvSize}
	if !v.set(EnvRank) {
		names[0] = envCompletionIndex
	}
	if !v.set(EnvIMPIServer) && (!v.set(EnvRank) || v.set(EnvLauncher)) {
		inner := &values{lookup: v.inside()}
		for _, n := range [][2]string{{envOpenMPIRank, envOpenMPISize}, {envPMIRank, envPMISize}, {envSlurmRank, envSlurmSize}} {
			if inner.set(n[0]) && (n[0] != envSlurmRank || inSlurmStep(inner)) {
				v, names = inner, n
				break
			}
		}
	}
	if !v.set(names[0]) || !v.set(names[1]) {
		return 0, 0, false
	}
	e := v.place(names[0], names[1])
	return e.Rank, e.Size, v.err == nil
}

type environmentKey struct{}

// WithEnvironment returns a context with which [Join] makes the rank described by e, whatever the
// variables of the environment say. One process can thus be several ranks.
func WithEnvironment(ctx context.Context, e Environment) context.Context {
	return context.WithValue(ctx, environmentKey{}, e)
}

type timeoutKey struct{}

// timeout bounds Join.
type timeout struct {
	most  time.Duration // 0: not at all
	given bool          // by the user, so that it bounds all that Join waits for
}

// WithTimeout returns a context that says that the caller ends Join, and the first Exchange, after most. If
// the user has given that time, ranks that do not find the rendezvous look for it as long.
func WithTimeout(ctx context.Context, most time.Duration, given bool) context.Context {
	return context.WithValue(ctx, timeoutKey{}, timeout{most, given})
}

func timeoutOf(ctx context.Context) timeout {
	t, _ := ctx.Value(timeoutKey{}).(timeout)
	return t
}

type loggerKey struct{}

// WithLogger returns a context with which [Join] logs to l what explains a job that does not start:
// which processes a rendezvous in this process refuses and why; after 3, 10 and 30 s, and then each minute,
// what this rank waits for and why, or, at the lowest rank that has come, for which others; and, at rank 0
// and at ranks that no launcher has started, variables that begin with SLUICE_ or COLL_ and are none of
// this library's. Without it nothing is logged.
func WithLogger(ctx context.Context, l *slog.Logger) context.Context {
	return context.WithValue(ctx, loggerKey{}, l)
}

func loggerOf(ctx context.Context) *slog.Logger {
	if l, ok := ctx.Value(loggerKey{}).(*slog.Logger); ok {
		return l
	}
	return slog.New(slog.DiscardHandler)
}

// joinFrom tries each source in turn; lookup is os.LookupEnv outside of tests.
func joinFrom(ctx context.Context, lookup func(string) (string, bool)) (*Job, error) {
	v := &values{lookup: lookup}
	if v.set(EnvIMPIServer) {
		return joinIMPI(ctx, v)
	}
	byHand := v.set(EnvRank) && !v.set(EnvLauncher)
	if !byHand {
		inner := &values{lookup: v.inside()}
		for _, l := range launchers {
			if l.present(inner) {
				return l.join(ctx, inner)
			}
		}
	}
	env, found, err := parseEnvironment(lookup)
	switch {
	case err != nil:
		env.excuse(ctx, v, err)
		return nil, err
	case found:
		return env.join(ctx)
	default:
		return alone(ctx)
	}
}

// Job is this process as a rank of its job. Its methods may be called from
// several goroutines at the same time.
type Job struct {
	rank, size           int
	localRank, localSize int
	id                   string
	secret               []byte
	x                    exchanger
	only                 bool // of this process, until Close
}

// exchanger is how the ranks of a job communicate: through a rendezvous, or, in a job of one, not
// at all.
type exchanger interface {
	exchange(ctx context.Context, data []byte) ([][]byte, error)
	// abort reports whether something will tell the other ranks.
	abort(code int, why string) (told bool)
	whyGone(ctx context.Context, rank int) error
	// withdraw tells the other ranks why this one takes part in no round.
	withdraw(why string)
	done() <-chan struct{}
	err() error
	close() error
}

// Rank returns the number of this process in its job, from 0 to Size()-1.
func (j *Job) Rank() int { return j.rank }

// Size returns the number of ranks in the job.
func (j *Job) Size() int { return j.size }

// ID returns the id of the job: the same on all its ranks, at most 64 bytes, not secret. It is
// empty if the environment gives the job a rendezvous but no name.
func (j *Job) ID() string { return j.id }

// Secret returns a copy of the secret that the ranks of the job share, or nil if the job is
// insecure. In a job of one without a given secret it is random.
func (j *Job) Secret() []byte {
	if len(j.secret) == 0 {
		return nil
	}
	return append([]byte(nil), j.secret...)
}

// LocalRank returns the number of this process among the job's ranks on this host, from 0 to
// LocalSize()-1, or -1 if unknown.
func (j *Job) LocalRank() int { return j.localRank }

// LocalSize returns the number of the job's ranks on this host, or 0 if unknown.
func (j *Job) LocalSize() int { return j.localSize }

// Exchange is one round of an allgather: every rank of the job contributes data, at most MaxData
// bytes, and receives the contributions of all ranks, indexed by rank. It returns when all have
// contributed. Data may be reused at once; the result belongs to the caller.
//
// Rounds are matched by number, so every rank must make the same calls of Exchange and Barrier in
// the same order. Calls of several goroutines take turns.
//
// Errors: ErrTooLarge, in which case nothing was contributed; [*RankError] naming a rank that died,
// left or gave up, on every rank that is in this round or enters it or a later one; [*AbortError]
// if the job was aborted; ErrServerLost; ErrClosed; or that of ctx. A rank with a ctx that ends
// after it has contributed has given up: this round and all later ones fail on all ranks. The
// error, there and on the other ranks, lists the ranks that had not contributed, if the rendezvous
// answers within a second. If the cause of ctx is ErrClosed, the rank has left as with Close, which
// must still be called: the error is then ErrClosed here and ErrLeft on the other ranks.
func (j *Job) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	return j.x.exchange(ctx, data)
}

// Barrier returns when all ranks of the job have called it. It is an Exchange without data: it
// counts as a round and fails in the same way.
func (j *Job) Barrier(ctx context.Context) error {
	_, err := j.x.exchange(ctx, nil)
	return err
}

// Gone returns the reason why a rank is no longer there, as known to the rendezvous: a [*RankError]
// that is ErrLeft or ErrDied. It returns nil if the rank is there or has not come yet, or if the
// rendezvous does not answer before ctx ends, and ErrUnknown if there is none to ask.
func (j *Job) Gone(ctx context.Context, rank int) error { return j.x.whyGone(ctx, rank) }

// Abort ends the job: it tells the rendezvous, which tells every rank. On every rank, including
// this one, Exchange fails with an [*AbortError] and Done is closed; the process decides what to do
// then. Why is cut to 1024 bytes. The first Abort of a job counts. Abort returns when the
// rendezvous has been told, or after 5 s if it cannot be.
//
// 'sluice run' and Hydra are told as well: they end all ranks, possibly this one before Abort
// returns, and exit with code. Slurm with PMI is told after 2 s, for ranks that have not ended
// themselves: srun would not return the code if it killed the step. Open MPI and srun without PMI-1
// cannot be told; a process that exits with code makes mpirun, and srun with --kill-on-bad-exit,
// end the others.
func (j *Job) Abort(code int, why string) { j.x.abort(code, why) }

// Fail tells the other ranks that this one cannot take part in the first Exchange, and why: theirs fail with
// a [*RankError] that is ErrGaveUp. The job must still be closed.
func (j *Job) Fail(why error) { j.x.withdraw(why.Error()) }

// Done returns a channel that is closed when the job is over for this rank: aborted, closed, or
// without its rendezvous. The death of another rank does not close it, except that of rank 0 if it
// runs the rendezvous.
func (j *Job) Done() <-chan struct{} { return j.x.done() }

// Err returns the reason why Done is closed: an [*AbortError], ErrClosed or an ErrServerLost, which
// is also a [*RankError] if a rank ran the rendezvous; nil while Done is open.
func (j *Job) Err() error { return j.x.err() }

// Close announces to the job that this rank leaves and frees what Join acquired. It waits at most 5
// s for the rendezvous, and as long for a launcher. Rank 0, if it runs the rendezvous, waits at
// most 5 s for the other ranks to close too; for those that continue after that, every Exchange
// fails because rank 0 has left, and Done no longer reports an Abort. An Exchange in progress fails
// with ErrClosed. Closing again does nothing. An error means that the announcement did not arrive,
// so the other ranks will consider this rank dead.
func (j *Job) Close() error {
	err := j.x.close()
	if j.only {
		entered.Store(false)
	}
	return err
}
