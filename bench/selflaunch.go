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

// launchSelf runs this very command as so many ranks, each on a core of its own
// where there are as many, bound where the system can, unless they are to be unbound. They print; signals go to them.
func launchSelf(ctx context.Context, size int, unbound bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := launch.Options{
		Size:   size,
		Args:   append([]string{self}, os.Args[1:]...),
		Stdout: os.Stdout, Stderr: os.Stderr,
		Bind:    launch.Core,
		Signals: launch.Signals(),
	}
	if unbound {
		o.Bind = launch.None
		if size > runtime.NumCPU() && os.Getenv("GOMAXPROCS") == "" {
			// As of ranks that are bound: with more a runtime's threads take CPUs from other ranks.
			o.Env = append(os.Environ(), "GOMAXPROCS=1")
		}
	}
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
