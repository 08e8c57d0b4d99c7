// Package boot tells a process who it is in its job, and gives the ranks of a
// job a first way to talk: an allgather of opaque bytes, enough to exchange
// the addresses of everything faster.
//
// [Join] finds out by asking, in this order:
//
//   - SLUICE_IMPI_SERVER and SLUICE_RANK: the process is that client of the
//     startup server of an IMPI job;
//   - SLUICE_RANK, SLUICE_SIZE and SLUICE_SERVER, set by hand (see
//     [Variables]);
//   - a launcher that speaks PMI-1 over PMI_FD or PMI_PORT: Hydra (mpiexec of
//     MPICH), srun --mpi=pmi2;
//   - Open MPI's mpirun; a launcher that speaks PMIx alone is an error;
//   - Slurm, inside a step of srun; a shell of sbatch or salloc is none;
//   - the SLUICE_* variables that 'sluice run' has set: what stands above was
//     started inside of it, for 'sluice run' hides from its ranks what
//     launchers around it have said;
//   - JOB_COMPLETION_INDEX, which Kubernetes gives to the pods of an indexed
//     Job, in place of SLUICE_RANK;
//   - else the process is a job of one.
//
// The ranks meet at a rendezvous (see [Serve]), which 'sluice run' runs for
// its ranks, and rank 0 in all other jobs. Where it is, rank 0 tells through
// the key space of PMI, through a file in the session directory of Open MPI or
// through a label of the IMPI server; otherwise SLUICE_SERVER or the node list
// of Slurm says so. SLUICE_SERVER counts under every launcher, and not beside
// an IMPI server.
//
// An IMPI server brings up to 32 clients together ('sluice server', or that of
// another implementation), each of which is one rank; it says how many there
// are. With IMPI_AUTH_KEY in the environment they authenticate to it with that
// key, without by method NONE. The server gives nothing but the startup: it is
// told of the end of each rank, which its own exit status shows, and a rank that
// does not come from it to the rendezvous within 30 s counts as dead. A client
// that is no rank of such a job fails Join at all ranks with a startup.Error
// that names it.
//
// Rank and rendezvous prove the secret of the job to each other before
// anything else (package proof). That authenticates; it does not encrypt.
// 'sluice run' gives the secret by environment; under PMI rank 0 puts a random
// one into the key space; otherwise, and with an IMPI server, whose labels every
// client of it can read, it is that of SLUICE_SECRET or SLUICE_SECRET_FILE.
package boot

import (
	"context"
	"log/slog"
	"os"
)

const (
	// MaxData is the number of bytes that a rank can give to one round of
	// [Job.Exchange].
	MaxData = 1 << 20
	// MaxSize is the number of ranks that a job can have.
	MaxSize = 1 << 20
)

// Join makes this process a rank of its job. It returns when the rendezvous
// has admitted it. A rendezvous that is not there yet is waited for, for up to
// 30 s under 'sluice run', two minutes elsewhere, or until ctx ends. Under PMI
// all ranks of the job are waited for, until ctx ends; at an IMPI server, which
// is waited for as long as a rendezvous, until the server gives up. The other
// ranks are not waited for otherwise.
//
// Under PMI a process can join once; the connection of PMI_FD is used up then.
//
// Errors: [*EnvError] for what the environment says, [*LauncherError] for a
// launcher that cannot be used, [*PMIError] for what a PMI launcher says,
// startup.Error for what goes wrong at an IMPI server,
// [*RefusedError] where the rendezvous has no place for this rank, proof.Error
// where one of the two does not know the secret, else what ctx or the network
// says.
//
// The Job belongs to the caller, who must Close it.
func Join(ctx context.Context) (*Job, error) {
	if e, ok := ctx.Value(environmentKey{}).(Environment); ok {
		return e.Join(ctx)
	}
	return joinFrom(ctx, os.LookupEnv)
}

type environmentKey struct{}

// WithEnvironment returns a context with which [Join] makes the rank that e says,
// whatever the variables of the environment say: so one process can be several ranks.
func WithEnvironment(ctx context.Context, e Environment) context.Context {
	return context.WithValue(ctx, environmentKey{}, e)
}

type loggerKey struct{}

// WithLogger returns a context with which [Join] logs to l what explains a job that does not
// start: which processes a rendezvous in this process refuses, and why, and, once after 3 s, what
// this rank waits for. Without it nothing is logged.
func WithLogger(ctx context.Context, l *slog.Logger) context.Context {
	return context.WithValue(ctx, loggerKey{}, l)
}

func loggerOf(ctx context.Context) *slog.Logger {
	if l, ok := ctx.Value(loggerKey{}).(*slog.Logger); ok {
		return l
	}
	return slog.New(slog.DiscardHandler)
}

// joinFrom asks each source in turn; lookup is os.LookupEnv outside of tests.
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
}

// exchanger is how the ranks of a job talk: through a rendezvous, or, alone,
// not at all.
type exchanger interface {
	exchange(ctx context.Context, data []byte) ([][]byte, error)
	// abort reports whether there is somebody who tells the other ranks.
	abort(code int, why string) (told bool)
	whyGone(ctx context.Context, rank int) error
	done() <-chan struct{}
	err() error
	close() error
}

// Rank is the number of this process in its job, from 0 to Size()-1.
func (j *Job) Rank() int { return j.rank }

// Size is the number of ranks in the job.
func (j *Job) Size() int { return j.size }

// ID names the job: the same at all its ranks, at most 64 bytes, no secret. It
// is empty where the environment gives the job a rendezvous and no name.
func (j *Job) ID() string { return j.id }

// Secret returns a copy of the secret that the ranks of the job share, or nil
// if the job is insecure. In a job of one that was given none it is random.
func (j *Job) Secret() []byte {
	if len(j.secret) == 0 {
		return nil
	}
	return append([]byte(nil), j.secret...)
}

// LocalRank is the number of this process among the ranks of the job on this
// host, from 0 to LocalSize()-1, or -1 if nobody said.
func (j *Job) LocalRank() int { return j.localRank }

// LocalSize is the number of ranks of the job on this host, or 0 if nobody
// said.
func (j *Job) LocalSize() int { return j.localSize }

// Exchange is one round of an allgather: every rank of the job gives data, at
// most MaxData bytes, and receives what each gave, indexed by rank. It returns
// when all have given. Data may be reused at once; the result is the caller's.
//
// Rounds are matched by number, so every rank must make the same calls of
// Exchange and Barrier in the same order. Calls of several goroutines take
// turns.
//
// Errors: ErrTooLarge, and nothing was given; [*RankError] naming a rank that
// died, left or gave up, to every rank that is in the round or comes to it or
// a later one; [*AbortError] if the job was aborted; ErrServerLost; ErrClosed;
// or that of ctx. A rank whose ctx ends after it has given has given up: this
// round and all later ones fail for all. The error names the ranks that had not
// given, there and at the others, if the rendezvous answers within a second. Where the
// cause of ctx is ErrClosed the rank has left, as with Close, which is still to be
// called: that is the error here, and ErrLeft at the others.
func (j *Job) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	return j.x.exchange(ctx, data)
}

// Barrier returns when all ranks of the job have called it. It is an Exchange
// of nothing, counts as a round, and fails as Exchange does.
func (j *Job) Barrier(ctx context.Context) error {
	_, err := j.x.exchange(ctx, nil)
	return err
}

// Gone returns why a rank is there no more, as the rendezvous knows it: a [*RankError] that is
// ErrLeft or ErrDied; nil if the rank is there, is yet to come, or it is not known.
func (j *Job) Gone(ctx context.Context, rank int) error { return j.x.whyGone(ctx, rank) }

// Abort ends the job: it tells the rendezvous, which tells every rank. At every
// rank, this one included, Exchange fails with an [*AbortError] and Done is
// closed; what the process does then is its own matter. Why is cut to 1024
// bytes. The first Abort of a job counts. It returns when the rendezvous has
// been told, or cannot be within 5 s.
//
// 'sluice run' and Hydra are told too: they end all ranks, this one perhaps
// before Abort returns, and return code as their exit status. Slurm with PMI is
// told after 2 s, of ranks that have not ended themselves: srun would not
// return the code of a step that it kills. Open MPI and srun without PMI cannot
// be told; a process that exits with code makes mpirun, and srun with
// --kill-on-bad-exit, end the others.
func (j *Job) Abort(code int, why string) { j.x.abort(code, why) }

// Done returns a channel that is closed when the job is over for this rank:
// aborted, closed, or the rendezvous is lost. The death of another rank does
// not close it, unless it is rank 0 and runs the rendezvous.
func (j *Job) Done() <-chan struct{} { return j.x.done() }

// Err returns why Done is closed: an [*AbortError], ErrClosed or an error that
// is ErrServerLost, and a [*RankError] too where a rank ran the rendezvous; nil
// while it is open.
func (j *Job) Err() error { return j.x.err() }

// Close says goodbye to the job and frees what Join took; it waits at most 5 s
// for the rendezvous, and as long for a launcher. Rank 0, if it runs the
// rendezvous, waits at most 5 s for the others to close too; for those that go
// on after that every Exchange fails, rank 0 having left, and Done tells of no
// Abort. An Exchange in progress fails with ErrClosed. Closing again does
// nothing. The error says that the goodbye did not arrive, so that the others
// will take this rank for dead.
func (j *Job) Close() error { return j.x.close() }
