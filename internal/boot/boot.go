// Package boot tells a process who it is in its job, and gives the ranks of a
// job a first way to talk: an allgather of opaque bytes, enough to exchange
// the addresses of everything faster.
//
// [Join] finds out by asking, in this order:
//
//   - the environment: the SLUICE_* variables that the launcher sets, or that
//     were set by hand (see [Variables]); the ranks then meet at the rendezvous
//     that [Serve] runs at SLUICE_SERVER;
//   - else the process is a job of one.
//
// Rank and rendezvous prove the secret of the job to each other before
// anything else (package proof). That authenticates; it does not encrypt.
package boot

import (
	"context"
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
// has admitted it, which does not need the other ranks; a rendezvous that is
// not there yet is waited for, for up to 30 s or until ctx ends.
//
// Errors: [*EnvError] for what the environment says, [*RefusedError] where the
// rendezvous has no place for this rank, proof.Error where one of the two
// does not know the secret, else what ctx or the network says.
//
// The Job belongs to the caller, who must Close it.
func Join(ctx context.Context) (*Job, error) {
	return joinFrom(ctx, os.LookupEnv)
}

// joinFrom asks each source in turn; lookup is os.LookupEnv outside of tests.
func joinFrom(ctx context.Context, lookup func(string) (string, bool)) (*Job, error) {
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
	abort(code int, why string)
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
// round and all later ones fail for all.
func (j *Job) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	return j.x.exchange(ctx, data)
}

// Barrier returns when all ranks of the job have called it. It is an Exchange
// of nothing, counts as a round, and fails as Exchange does.
func (j *Job) Barrier(ctx context.Context) error {
	_, err := j.x.exchange(ctx, nil)
	return err
}

// Abort ends the job: it tells the rendezvous, which tells every rank, and the
// launcher, which ends them and returns code as its exit status. At every rank,
// this one included, Exchange fails with an [*AbortError] and Done is closed;
// what the process does then is its own matter. Why is cut to 1024 bytes.
// The first Abort of a job counts. It returns when the rendezvous has been
// told, or cannot be within 5 s.
func (j *Job) Abort(code int, why string) { j.x.abort(code, why) }

// Done returns a channel that is closed when the job is over for this rank:
// aborted, closed, or the rendezvous is lost. The death of another rank does
// not close it.
func (j *Job) Done() <-chan struct{} { return j.x.done() }

// Err returns why Done is closed: an [*AbortError], ErrClosed or an error that
// is ErrServerLost; nil while it is open.
func (j *Job) Err() error { return j.x.err() }

// Close says goodbye to the job and frees what Join took; it waits at most 5 s
// for the rendezvous. An Exchange in progress fails with ErrClosed. Closing
// again does nothing. The error says that the goodbye did not arrive, so that
// the others will take this rank for dead.
func (j *Job) Close() error { return j.x.close() }
