package impi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/test/need"
)

// fewer allows this process so many more descriptors, until lift is called.
func fewer(more int) (lift func(), err error) {
	var before unix.Rlimit
	next, err := unix.Dup(0)
	if err == nil {
		err = errors.Join(unix.Close(next), unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	}
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + more), Max: before.Max})
	}
	return func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }, err
}

func init() {
	// few makes a job of which rank 1 may open only so many more descriptors.
	acts["few"] = act{
		before: func(rank int, args []string) error {
			if rank != 1 {
				return nil
			}
			more, err := strconv.Atoi(args[0])
			if err == nil {
				_, err = fewer(more)
			}
			return err
		},
		do:          func(ctx context.Context, j *Job, _ []string) error { return leaveTogether(ctx, j.World()) },
		peerTimeout: 2 * time.Second, // the other host asks that often what became of this one
	}
}

// TestFewDescriptors: a host that has too few descriptors says so at once, and how many it may have,
// wherever it runs out of them, also if it can do without.
func TestFewDescriptors(t *testing.T) {
	for _, name := range []string{"shm", "tcp"} {
		p := places[slices.IndexFunc(places, func(p place) bool { return p.name == name })]
		for more := range 16 {
			t.Run(fmt.Sprint(name, more), func(t *testing.T) {
				if more%3 > 0 {
					need.Full(t)
				}
				t.Parallel()
				r, out := launched(t, p, 2, "few", strconv.Itoa(more))
				if r.Status[1] != 0 {
					require.Regexp(t, `(?m)^\[1\] .*too many open files.*: RLIMIT_NOFILE \(ulimit -n\) is \d`, out)
				}
				require.NotRegexp(t, `too many open files"?\n`, out)
				require.Less(t, strings.Count(out, "\n"), 20, out) // once, not again and again
			})
		}
	}
}

// TestNamedWithoutDescriptors: where nothing that is named works for want of descriptors, the error says
// so.
func TestNamedWithoutDescriptors(t *testing.T) {
	conns := [2]*net.TCPConn{}
	conns[0], conns[1] = connected(t)
	defer conns[0].Close()
	defer conns[1].Close()
	d := newDancing(t, 2, "")
	var errs [2]error
	var wg sync.WaitGroup
	negotiate := [2]func() error{}
	for me := range 2 {
		_, l := newSetup(me)
		config := Config{Log: slog.New(slog.DiscardHandler), PeerTimeout: limit, Providers: []string{"shm"}, named: "shm"}
		lift := func() {}
		if me == 1 {
			var err error
			lift, err = fewer(0)
			require.NoError(t, err)
		}
		s := (&Job{e: l.e, roster: d.rosters[me], config: config}).openRC()
		lift()
		defer func() {
			for _, d := range s.devices {
				require.NoError(t, d.ctx.Close())
			}
		}()
		negotiate[me] = func() error {
			_, err := s.negotiate(within(t), l, conns[me])
			return err
		}
	}
	for me, f := range negotiate { // not before all may open files again
		wg.Go(func() { errs[me] = f() })
	}
	wg.Wait()
	require.ErrorContains(t, errs[0], "SLUICE_TRANSPORT=shm")
	require.ErrorContains(t, errs[1], "SLUICE_TRANSPORT=shm")
	require.ErrorIs(t, errs[1], limits.ErrFiles)
	require.ErrorContains(t, errs[1], "RLIMIT_NOFILE")
}
