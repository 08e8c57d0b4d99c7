package boot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
)

// alone returns a job of one, which needs no rendezvous.
func alone(ctx context.Context) (*Job, error) {
	id := make([]byte, 8)
	rand.Read(id)
	return aloneAs(ctx, hex.EncodeToString(id), newSecret())
}

// newSecret returns a random secret for a job.
func newSecret() []byte {
	secret := make([]byte, 32)
	rand.Read(secret)
	return secret
}

func aloneAs(ctx context.Context, id string, secret []byte) (*Job, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("boot: join: %w", err)
	}
	return &Job{
		size:      1,
		localSize: 1,
		id:        id,
		secret:    secret,
		x:         &local{ended: make(chan struct{})},
	}, nil
}

// local is the exchange in a job of one.
type local struct {
	mu     sync.Mutex
	round  uint32
	reason error // why ended is closed
	ended  chan struct{}
}

func (l *local) exchange(ctx context.Context, data []byte) ([][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := checkExchange(ctx, data, l.reason); err != nil {
		return nil, exchangeError(l.round, err)
	}
	l.round++
	return [][]byte{append([]byte{}, data...)}, nil
}

func (l *local) abort(code int, why string) bool {
	l.end(&AbortError{Rank: 0, Code: code, Why: shorten(why, maxText)})
	return true
}

func (l *local) whyGone(context.Context, int) error { return nil }

func (l *local) withdraw(string) {}

func (l *local) done() <-chan struct{} { return l.ended }

func (l *local) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

func (l *local) close() error {
	l.end(ErrClosed)
	return nil
}

func (l *local) end(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason == nil {
		l.reason = reason
		close(l.ended)
	}
}
