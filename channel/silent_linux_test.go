package channel

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// Ranks that run and do not answer while others connect to them.

// silentVictim is the process that is stopped, once it is known.
var silentVictim atomic.Int64

// stopAt is a logger that stops this process at the first record of a text, and continues the victim
// at the second record that says that it does not answer while it is stopped.
type stopAt struct {
	slog.Handler
	text    string
	stopped *atomic.Bool
	warned  *atomic.Int32
}

func (s stopAt) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case s.text != "" && r.Message == s.text && !s.stopped.Swap(true):
		return ranks.StopSelf()
	case strings.Contains(r.Message, "do not answer") && stateOf(int(silentVictim.Load())) == "T" && s.warned.Add(1) == 2:
		fmt.Println("waited for")
		return syscall.Kill(int(silentVictim.Load()), syscall.SIGCONT)
	}
	return nil
}

func (s stopAt) Enabled(context.Context, slog.Level) bool { return true }
func (s stopAt) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s stopAt) WithGroup(string) slog.Handler            { return s }

func init() {
	h := &stopAt{stopped: new(atomic.Bool), warned: new(atomic.Int32)}
	acts["silent"] = act{
		options: []Option{func(o *options) { o.warnAfter = 100 * time.Millisecond }, WithLogger(slog.New(h))},
		prepare: func(args []string) error {
			if os.Getenv("SLUICE_RANK") != args[0] {
				return nil
			}
			h.text = args[1]
			return os.WriteFile(args[2], []byte(strconv.Itoa(os.Getpid())), 0o600)
		},
		do: silent,
	}
}

// silent connects the ranks of a job, of which the one of the first argument is stopped: before it
// is reached, or where its log has the text of the second argument.
func silent(ctx context.Context, n *Node, args []string) error {
	if strconv.Itoa(n.Rank()) != args[0] {
		b, err := os.ReadFile(args[2])
		if err != nil {
			return err
		}
		pid := number(string(b))
		silentVictim.Store(int64(pid))
		for args[1] == "" && stateOf(pid) != "T" {
			time.Sleep(time.Millisecond)
		}
	} else if args[1] == "" {
		if err := ranks.StopSelf(); err != nil {
			return err
		}
	}
	return halo(ctx, n, 2, hooks{})
}

// TestSilent: a rank that is stopped for longer than connecting may take is waited for, at any stage,
// and those that wait say so.
func TestSilent(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		for _, victim := range []string{"0", "1"} {
			for stage, text := range map[string]string{"unreached": "", "unknown": "channel: provider used"} {
				t.Run(fmt.Sprint(provider, victim, stage), func(t *testing.T) {
					t.Parallel()
					r, out := run(t, provider, 2, "silent", victim, text, t.TempDir()+"/pid")
					require.Zero(t, r.ExitStatus(), out)
					require.Contains(t, out, fmt.Sprintf("[%d] waited for", 1-number(victim)))
				})
			}
		}
	}
}

// TestLateProbe: a rank that is held up until the other has given up an attempt does not make it fail.
func TestLateProbe(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		for late := range 2 {
			t.Run(fmt.Sprint(provider, late), func(t *testing.T) {
				nodes := join(t, 2, WithProviders(provider))
				var conns [2]net.Conn
				conns[0], conns[1] = tcpPair(t)
				var ws [2]*wiring
				var links [2]*link
				var ends [2]verbs.Endpoint
				for i, n := range nodes {
					p := peerOf(t, n, 1-i)
					ws[i] = &wiring{peer: p, conn: conns[i], r: bufio.NewReader(conns[i])}
					ports, err := n.ports(provider, conns[i])
					require.NoError(t, err)
					d, err := n.device(ports[0])
					require.NoError(t, err)
					links[i], err = d.newLink(ports[0].address)
					require.NoError(t, err)
					ends[i], err = links[i].endpoint()
					require.NoError(t, err)
				}
				for i, l := range links {
					require.NoError(t, l.connect(ends[1-i], limit))
				}
				result := make(chan error)
				for i, w := range ws {
					go func() {
						bound := time.Nanosecond
						if i == late {
							bound = limit
							w.r.Peek(1) // the other has given up
						}
						theirs, mine, err := w.try(links[i], bound)
						if !theirs {
							mine = cmp.Or(mine, fmt.Errorf("rank %d holds it for broken", 1-i))
						}
						result <- cmp.Or(err, mine)
					}()
				}
				require.NoError(t, <-result)
				require.NoError(t, <-result)
				for _, l := range links {
					require.NoError(t, l.close())
				}
			})
		}
	}
}

// tcpPair returns the two ends of a connection.
func tcpPair(t *testing.T) (a, b net.Conn) {
	l := ranks.Listen(t)
	a = ranks.Dial(t, l.Addr().String())
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}
