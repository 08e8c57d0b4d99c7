package pool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-hpc/sluice/internal/proof"
)

// Config configures a supplier or a worker. Only the secret must be set.
type Config struct {
	// Secret is the secret that both ends must know. An empty one needs Insecure at both
	// ends.
	Secret   []byte
	Insecure bool
	// Name is the name of the pool: the same at both ends, at most 64 bytes, not secret.
	Name string

	// Chunks is how many chunks a supplier may have in flight: sent, and their results not
	// released. 0: 256.
	Chunks int
	// Attempts is after how many workers whose connections end while they work on a chunk
	// the supplier gives it up. Only chunks that a worker has begun count, not those that
	// wait in its window. At the first loss the supplier does not know which these are: it
	// counts all that the worker had, but gives up none of them. From then on workers report
	// when they begin with one of these chunks. 0: 3. Below 0: no bound.
	Attempts int
	// Window is how many chunks a worker may have of each supplier: one to work on, and the
	// others in flight. 0: 2.
	Window int

	// MaxBytes bounds the chunks that a worker accepts, and the results that a supplier
	// accepts. 0: 64 MiB.
	MaxBytes int
	// Timeout is how long a supplier's address on another host may take to accept a connection, and a
	// worker to hang up at the end. A supplier that has accepted is waited for until it answers, its host
	// falls silent, or the context of Join ends; after Timeout, and twice as long again, that is logged. 0: 10 s.
	Timeout time.Duration
	// Log reports workers that come and go. nil: slog.Default.
	Log *slog.Logger
}

// Reasons why an operation fails; test for them with errors.Is.
var (
	// ErrInvalid: a field of the configuration or an argument is out of range.
	ErrInvalid = errors.New("invalid argument")
	// ErrClosed: the supplier or worker has been closed, or the supplier ended.
	ErrClosed = errors.New("closed by this process")
	// ErrProtocol: the other end has violated the protocol.
	ErrProtocol = errors.New("protocol violation")
)

const (
	defaultChunks   = 256
	defaultAttempts = 3
	defaultWindow   = 2
	defaultMaxBytes = 64 << 20
	defaultTimeout  = 10 * time.Second

	maxChunks = 1 << 20
	maxWindow = 1 << 12
)

// check fills in the defaults, or returns what is wrong.
func (c Config) check() (Config, error) {
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&c.Chunks, defaultChunks)
	set(&c.Attempts, defaultAttempts)
	set(&c.Window, defaultWindow)
	set(&c.MaxBytes, defaultMaxBytes)
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case len(c.Secret) == 0 && !c.Insecure:
		return c, fmt.Errorf("%w: Secret is empty, and Insecure is not set", ErrInvalid)
	case c.Chunks < 1 || c.Chunks > maxChunks:
		return c, fmt.Errorf("%w: Chunks is %d: it must be 1 to %d", ErrInvalid, c.Chunks, maxChunks)
	case c.Window < 1 || c.Window > maxWindow:
		return c, fmt.Errorf("%w: Window is %d: it must be 1 to %d", ErrInvalid, c.Window, maxWindow)
	case c.MaxBytes < 1 || c.Timeout < 0:
		return c, fmt.Errorf("%w: MaxBytes (%d) and Timeout (%v) must not be negative", ErrInvalid, c.MaxBytes, c.Timeout)
	}
	return c, nil
}

func (c Config) proof() proof.Params {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err) // it never fails
	}
	return proof.Params{Secret: c.Secret, Insecure: c.Insecure, Protocol: "sluice-fanout-pool", Major: 2, Job: c.Name, Self: id}
}

// silence is how long a peer's host may be silent before its connection ends.
const silence = 20 * time.Second
