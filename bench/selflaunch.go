package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/sluice-hpc/sluice/internal/launch"
)

// RankFailedError: a rank that we started failed.
type RankFailedError struct {
	Rank   int // -1: one that ended the job, and has said why
	Status int
}

func (e *RankFailedError) Error() string {
	if e.Rank < 0 {
		return fmt.Sprintf("the job was ended with status %d", e.Status)
	}
	return fmt.Sprintf("rank %d ended with status %d", e.Rank, e.Status)
}

// launchOptions start so many ranks, each on a core of its own where there are as many, bound
// where the system can, unless they are to be unbound.
func launchOptions(size int, unbound bool, args ...string) launch.Options {
	o := launch.Options{Size: size, Args: append([]string{must1(os.Executable())}, args...), Bind: launch.Core, Env: os.Environ()}
	if unbound {
		o.Bind = launch.None
		if size > runtime.NumCPU() && os.Getenv("GOMAXPROCS") == "" {
			// As of ranks that are bound: with more a runtime's threads take CPUs from other ranks.
			o.Env = append(o.Env, "GOMAXPROCS=1")
		}
	}
	return o
}

// launchSelf runs this very command as ranks, which print; signals go to them.
func launchSelf(ctx context.Context, size int, unbound bool) error {
	o := launchOptions(size, unbound, os.Args[1:]...)
	o.Stdout, o.Stderr, o.Signals = os.Stdout, os.Stderr, launch.Signals()
	r, err := launch.Run(ctx, o)
	if errors.Is(err, launch.ErrBind) {
		o.Bind = launch.None
		r, err = launch.Run(ctx, o)
	}
	switch status := r.ExitStatus(); {
	case err != nil:
		return err
	case r.Abort != nil:
		return reported{&RankFailedError{-1, status}}
	case status != 0:
		return &RankFailedError{r.First, status}
	}
	return nil
}
