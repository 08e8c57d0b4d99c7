package pool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-hpc/sluice/internal/proof"
)

// Config is that of a supplier or of a worker. The zero value of each field but the
// secret is good for most.
type Config struct {
	// Secret is what both ends must know. None is admitted with Insecure only, at both.
	Secret   []byte
	Insecure bool
	// Name is that of the pool, equal at both ends, at most 64 bytes. It is no secret.
	Name string

	// Chunks is how many chunks may be under way: sent, and their results not released.
	// 0: 256. Of suppliers.
	Chunks int
	// Attempts is how many workers may go, their connections ended, with a chunk that they
	// work on, before it is given up. What counts is what a worker has begun with, not what
	// waits at it: of the first that goes this is not known, and counts for all that it
	// had, but gives none of them up; from then on workers say when they begin with these
	// chunks. 0: 3. Below 0: any number. Of suppliers.
	Attempts int
	// Window is how many chunks a worker has at most of each supplier: one to work on,
	// and the others on their way. 0: 2. Of workers.
	Window int

	// MaxBytes bounds the chunks that a worker takes, and the results that a supplier
	// takes. 0: 64 MiB.
	MaxBytes int
	// Timeout is how long the proof of a connection may take. 0: 10 s.
	Timeout time.Duration
	// Log is told of workers that come and go. nil: slog.Default.
	Log *slog.Logger
}

// Reasons for which an operation fails; test for them with errors.Is.
var (
	// ErrInvalid: a field of the configuration or an argument is out of range.
	ErrInvalid = errors.New("invalid argument")
	// ErrClosed: the supplier or worker has been closed, or the supplier ended.
	ErrClosed = errors.New("closed")
	// ErrProtocol: the other end has sent what the protocol does not allow.
	ErrProtocol = errors.New("protocol error")
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

// check completes the configuration, or says what is wrong with it.
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
		return c, fmt.Errorf("%w: no secret", ErrInvalid)
	case c.Chunks < 1 || c.Chunks > maxChunks:
		return c, fmt.Errorf("%w: %d chunks, 1 to %d", ErrInvalid, c.Chunks, maxChunks)
	case c.Window < 1 || c.Window > maxWindow:
		return c, fmt.Errorf("%w: window %d, 1 to %d", ErrInvalid, c.Window, maxWindow)
	case c.MaxBytes < 1 || c.Timeout < 0:
		return c, fmt.Errorf("%w: a number below its least", ErrInvalid)
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

// silence is how long the host of a peer may be silent.
const silence = 20 * time.Second
