// Package netns creates unnamed network namespaces, and stars of them: hosts connected by a
// router. However this process ends, a namespace ends with its last descriptor and the last
// process inside. It needs root.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a descriptor of a network namespace.
type Namespace int

// New creates a network namespace in which no interface is up.
func New() (n Namespace, err error) {
	err = elsewhere(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		n, err = ofThread()
		return err
	})
	return n, err
}

// Open opens the namespace at a path, such as [Namespace.Path] of another process that still
// runs.
func Open(path string) (Namespace, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return Namespace(fd), nil
}

// Path returns the path at which other processes can open the namespace.
func (n Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n)) }

// Close closes the descriptor.
func (n Namespace) Close() error { return unix.Close(int(n)) }

// In runs f inside the namespace. Sockets that f opens and processes that it starts belong to
// the namespace from then on; goroutines that it starts do not.
func (n Namespace) In(f func() error) error {
	return elsewhere(func() error { return unix.Setns(int(n), unix.CLONE_NEWNET) }, f)
}

// elsewhere runs f on a thread that has entered another namespace. The first thread stays:
// /proc/self shows that thread's namespace.
func elsewhere(enter, f func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		done := make(chan error)
		go func() { done <- elsewhere(enter, f) }() // on another thread
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
	// A thread that cannot return stays locked, and ends with its goroutine.
	if e := unix.Setns(int(own), unix.CLONE_NEWNET); e != nil {
		return errors.Join(err, e)
	}
	runtime.UnlockOSThread()
	return err
}

func ofThread() (Namespace, error) { return Open("/proc/thread-self/ns/net") }
