package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/xdp"
)

// jobOver starts a rank of a job behind each prefix, told by hand where to meet, and returns
// how they ended.
func jobOver(t *testing.T, port int, prefixes [][]string, env []string, args ...string) []ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	env = append([]string{boot.EnvSecret + "=" + strings.Repeat("5a", 32), boot.EnvServer + fmt.Sprintf("=198.18.0.1:%d", port)}, env...)
	var ends []<-chan ended
	for rank, prefix := range prefixes {
		place := []string{fmt.Sprintf("%s=%d", boot.EnvRank, rank), fmt.Sprintf("%s=%d", boot.EnvSize, len(prefixes))}
		ends = append(ends, begin(ctx, prefix, append(place, env...), args...))
	}
	var list []ended
	for _, e := range ends {
		list = append(list, <-e)
	}
	for rank, e := range list {
		require.NoError(t, e.err, "rank %d\n%v", rank, list)
	}
	return list
}

// TestTuneBetweenHosts: the ranks of a job on two hosts measure what carries between them, and
// jobs that read the file are carried so: by what was the fastest between hosts, by shared
// memory within one.
func TestTuneBetweenHosts(t *testing.T) {
	need.NoRace(t, "it tells nothing of processes, and is slow")
	need.Full(t)
	one, two := hosts(t)
	dir := t.TempDir()
	measured := filepath.Join(dir, "measured")
	there := []string{providerRoCE}
	if xdp.Supported() == nil {
		there = append(there, providerXDP)
	}
	var r Report
	has := func(name string) bool {
		return slices.ContainsFunc(r.Results, func(v Result) bool { return v.Provider == name && v.Algorithm == name && v.Verified })
	}
	lacks := func(name string) bool { return !has(name) }
	for range 3 { // if no rank gets a CPU for seconds, connecting may fail
		all := jobOver(t, 20000, [][]string{one, one, two}, nil, "tune", "--what", tuneProvider+","+tuneCopy, "--time", "2ms", "--rounds", "2", "--json", "--file", measured)
		for _, e := range all[1:] {
			require.Empty(t, e.out, "one of them prints")
		}
		r = decode(t, []byte(all[0].out))
		for _, name := range []string{providerRoCE, providerXDP} {
			why := slices.ContainsFunc(r.Missing, func(s string) bool { return strings.HasPrefix(s, name+": ") })
			require.NotEqual(t, has(name), why, "%s is measured, or it is said why not: %q", name, r.Missing)
		}
		if !slices.ContainsFunc(there, lacks) {
			break
		}
	}
	require.False(t, slices.ContainsFunc(there, lacks), "%q", r.Missing)
	require.True(t, slices.ContainsFunc(r.Results, func(v Result) bool { return v.Algorithm == "pipe" }), "ranks 0 and 1 share memory")
	require.Equal(t, orderOf(t, &r), r.Settings)
	text, err := os.ReadFile(measured)
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	require.Equal(t, r.Settings, lines, "%s", text)

	for i, c := range []struct {
		name string
		ways []way // none: the file is that of the tuning
		size int   // over AF_XDP one of each host: the first takes the queue of the interface
	}{
		{"measured", nil, 2},
		{"roce faster", []way{against(providerRoCE, 0.5), against(providerXDP, 2)}, 4},
		{"xdp faster", []way{against(providerRoCE, 2), against(providerXDP, 0.5)}, 2},
		{"tcp faster", []way{against(providerRoCE, 2), against(providerXDP, 2)}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, settings := measured, r.Settings
			if c.ways != nil {
				if name, _, _ := strings.Cut(c.name, " "); name == providerXDP {
					need.Probe(t, "AF_XDP", xdp.Supported())
				}
				path = filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-"))
				settings = preferred(c.ways, func(provider string) bool { return provider != providerIBV })
				require.NoError(t, writeTuning(path, &Report{Settings: settings}, carrierTCP, c.size))
			}
			want := carrierTCP
			if len(settings) > 0 {
				_, order, _ := strings.Cut(settings[0], "=")
				want = slices.DeleteFunc(strings.Split(order, ","), func(name string) bool { return name == providerSHM || name == providerIBV })[0]
			}
			where := [][]string{one, two, one, two}[:c.size]
			all := jobOver(t, 20001+i, where, []string{envCarried + "=1", envMain + "=", channel.EnvTuningFile + "=" + path})
			for rank, e := range all {
				for peer := range all {
					if peer == rank {
						continue
					}
					carrier := want
					if peer%2 == rank%2 {
						carrier = providerSHM
					}
					require.Contains(t, e.out, fmt.Sprintf("%d %d %s true\n", rank, peer, carrier), "%s\n%v", text, all)
				}
			}
		})
	}
}

// TestMeetingPlace: of the addresses of a host that one is taken where it answers itself.
func TestMeetingPlace(t *testing.T) {
	listen := func(address string) net.Listener {
		ln, err := net.Listen("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		return ln
	}
	self := listen("127.0.0.1:0")
	_, port, err := net.SplitHostPort(self.Addr().String())
	require.NoError(t, err)
	other := listen("127.0.0.2:" + port)
	go answer(self, "this")
	go answer(other, "that")
	at, err := find(t.Context(), "this", port, []string{"127.0.0.3", "127.0.0.2", "127.0.0.1"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", at)
	_, err = find(t.Context(), "this", port, []string{"127.0.0.3", "127.0.0.2"})
	require.ErrorContains(t, err, "at 127.0.0.2:"+port+": another process, not rank 0, answers")
}

// TestStandDown: ranks that would wait for a process that never joined learn that it has left.
func TestStandDown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, err := boot.Serve(ctx, ln, boot.ServerOptions{Size: 2, Job: "x", Insecure: true})
	require.NoError(t, err)
	e := boot.Environment{Rank: 1, Size: 2, LocalRank: -1, Server: ln.Addr().String(), Job: "x", Insecure: true, Launched: true}
	waits := e
	waits.Rank = 0
	job, err := waits.Join(ctx)
	require.NoError(t, err)
	told := make(chan error, 1)
	go func() {
		_, err := job.Exchange(ctx, nil)
		told <- err
	}()
	standDown(&e)
	select {
	case err := <-told:
		require.ErrorIs(t, err, boot.ErrLeft)
	case <-time.After(bound):
		require.Fail(t, "rank 0 waits")
	}
	standDown(&e) // there is no place to give up
	require.NoError(t, job.Close())
	endServer(server)
}
