//go:build unix

package impi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func init() { acts["asked"] = act{do: asked} }

// asked has a rank that waits for the other one get the signal.
func asked(ctx context.Context, j *Job, _ []string) error {
	w := j.World()
	if w.Rank() == 1 {
		_, err := w.Recv(ctx, nil, 0, 0)
		return errors.Join(err, w.Send(ctx, nil, 0, 9))
	}
	q := ranks.Must(w.Irecv(nil, 1, 9))
	r, stderr, err := os.Pipe()
	if err != nil {
		return err
	}
	if err := unix.Dup2(int(stderr.Fd()), 2); err != nil {
		return err
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		return err
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if strings.Contains(lines.Text(), "receive from rank 1, tag 9, 0 bytes") {
			fmt.Println("reported")
			break
		}
	}
	err = w.Send(ctx, nil, 1, 0)
	_, waits := q.Wait(ctx)
	return errors.Join(err, waits)
}

// TestReportOnSignal: SIGUSR1 has a process say what its requests wait for.
func TestReportOnSignal(t *testing.T) {
	p := places[slices.IndexFunc(places, func(p place) bool { return p.name == "tcp" })]
	r, out := launched(t, p, 2, "asked")
	require.Equal(t, []int{0, 0}, r.Status, out)
	require.Contains(t, out, "[0] reported")
}
