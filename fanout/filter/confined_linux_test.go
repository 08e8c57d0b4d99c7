package filter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/fanout/filter"
	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/internal/test/refuse"
)

func init() {
	// "confined" prints how filters end without the system calls that its argument names.
	acts["confined"] = func(args []string) int {
		var err error
		for name := range strings.SplitSeq(args[0], ",") {
			err = errors.Join(err, refuse.Call(map[string]uint32{"waitid": unix.SYS_WAITID, "pidfd_open": unix.SYS_PIDFD_OPEN}[name]))
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		var log logbuf.Buffer
		start := func(act string) *filter.Process {
			p, err := filter.Start(filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ(act), Stderr: &log})
			if err != nil {
				panic(err)
			}
			return p
		}
		say := func(b []byte, err error) {
			var e *filter.Error
			if errors.As(err, &e) {
				e.PID = 0
				fmt.Println(string(b), err, e.ExitCode())
			} else {
				fmt.Println(string(b), err)
			}
		}
		p := start("stderr")
		say(p.Do(context.Background(), []byte("chunk"), nil))
		say(nil, p.Close())
		fmt.Print(log.String())
		p = start("third")
		for range 3 {
			say(p.Do(context.Background(), []byte("chunk"), nil))
		}
		say(nil, p.Close())
		say(nil, start("sulky").Close())
		p = start("silent")
		syscall.Kill(p.PID(), syscall.SIGKILL)
		say(nil, p.Close())
		say(filter.Once(context.Background(), filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ("cat")}, []byte("chunk"), nil))
		say(filter.Once(context.Background(), filter.Command{Args: []string{ranks.Program()}, Env: ranks.Environ("fail")}, []byte("chunk"), nil))
		return 0
	}
}

// Filters live, and their end is known, where the system refuses what waits for them without removing
// them.
func TestConfined(t *testing.T) {
	for _, calls := range []string{"waitid", "waitid,pidfd_open", "pidfd_open"} {
		out, err := ranks.Command(ranks.Within(t), "confined", calls).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, `CHUNK <nil>
 <nil>
a word
chunk <nil>
chunk <nil>
 filter: answer: unexpected EOF: exit status 7 7
 <nil>
 filter: end: the filter failed: exit status 3 3
 filter: end: the filter failed: signal: killed -1
chunk <nil>
 filter: answer: the filter failed: exit status 4 4
`, string(out), calls)
	}
}
