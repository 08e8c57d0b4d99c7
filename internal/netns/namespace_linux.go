// Package netns makes network namespaces without names, and stars of them: hosts that a
// router joins. They end with the last descriptor and the last process inside, however this
// process ends. It needs root.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, by a descriptor.
type Namespace int

// New makes a network namespace in which nothing is up.
func New() (n Namespace, err error) {
	err = elsewhere(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		n, err = ofThread()
		return err
	})
	return n, err
}

// Open opens the namespace at a path: [Namespace.Path] of another process, while that lives.
func Open(path string) (Namespace, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return Namespace(fd), nil
}

// Path is where other processes open it.
func (n Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n)) }

// Close closes the descriptor.
func (n Namespace) Close() error { return unix.Close(int(n)) }

// In runs f inside: what it opens, and each process that it starts, is of that namespace for
// good. What it starts as a goroutine is not.
func (n Namespace) In(f func() error) error {
	return elsewhere(func() error { return unix.Setns(int(n), unix.CLONE_NEWNET) }, f)
}

// elsewhere runs f on a thread that has gone to another namespace. The first thread stays:
// /proc/self tells of that one where this process is.
func elsewhere(enter, f func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		done := make(chan error)
		go func() { done <- elsewhere(enter, f) }() // on another, for this one is taken
		return <-done
	}
	own, err := ofThread()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err = enter(); err == nil {
		err = f()
	}
	// A thread that cannot come back stays locked, and ends with its goroutine.
	if e := unix.Setns(int(own), unix.CLONE_NEWNET); e != nil {
		return errors.Join(err, e)
	}
	runtime.UnlockOSThread()
	return err
}

func ofThread() (Namespace, error) { return Open("/proc/thread-self/ns/net") }
