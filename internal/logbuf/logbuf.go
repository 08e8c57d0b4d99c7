// Package logbuf collects output for tests to look at while it is still being
// written: what loggers and child processes say.
package logbuf

import (
	"bytes"
	"sync"
)

// Buffer is a [bytes.Buffer] that several goroutines may write to, and one read
// meanwhile. Its zero value is empty and ready.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p; it always succeeds.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all that was written so far.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
