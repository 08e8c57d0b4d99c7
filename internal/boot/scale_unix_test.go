//go:build unix

package boot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// addressSize is about what a rank of package channel gives to its only round: of
// a host with 128 CPUs and four addresses.
const addressSize = 8 + 2 + 2 + 128/8 + 4*16

// TestThousandRanks: the rendezvous, with its ranks in another process, costs rank
// 0 what docs/scale.md says.
func TestThousandRanks(t *testing.T) {
	was := silencePatience
	t.Cleanup(func() { silencePatience = was }) // after the rendezvous
	silencePatience = limit                     // what ranks are told while they wait would count
	size := need.ByForm(100, 300, 1000)
	need.Files(t, uint64(size+100))
	ctx := ranks.Within(t)
	inner := ranks.Listen(t)
	ln := &meter{Listener: inner}
	before := footprint()
	w := serveWorld(t, ln, size, maxStrangers)

	e := w.env
	cmd := ranks.Command(ctx, "crowd")
	cmd.Env = append(WithoutLauncher(cmd.Env), e.Environ()...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	require.NoError(t, cmd.Start())
	joined := func() bool { return w.joined() == size && w.unsent == 0 }
	w.waitFor(t, "all ranks", joined)
	joining := time.Since(start)
	grown := footprint() - before

	require.Equal(t, int64(size), ln.accepted.Load())
	bytesIn, bytesOut := ln.in.Load(), ln.out.Load()
	w.mu.Lock()
	name := len(w.members[0].name) + len("\x00"+w.first.name+"\x00"+w.first.build+"\x00")
	w.mu.Unlock()
	perRankIn, perRankOut := int64(proofSize+headerSize+4+name), int64(proofSize+headerSize)
	require.Equal(t, int64(size)*perRankIn, bytesIn)
	require.Equal(t, int64(size)*perRankOut, bytesOut)

	start = time.Now()
	in.Close() // the round may begin
	require.NoError(t, w.Wait(ctx))
	exchange := time.Since(start)
	require.NoError(t, cmd.Wait())
	const part = headerSize + addressSize
	require.Equal(t, bytesIn+int64(size*(part+headerSize+1)), ln.in.Load(), "a part, and a goodbye")
	require.Equal(t, bytesOut+int64(size*size*part), ln.out.Load(), "all parts to all ranks")
	require.Equal(t, int64(size), ln.accepted.Load(), "no rank had to connect twice")

	t.Logf("%d ranks: %d connections", size, ln.accepted.Load())
	t.Logf("joining: %d messages and %d bytes in, %d and %d out, %v", 3*size, bytesIn, 3*size, bytesOut, joining.Round(time.Millisecond))
	t.Logf("a round of %d bytes, and leaving: %d messages and %d bytes in, %d and %d out, %v", addressSize,
		2*size, ln.in.Load()-bytesIn, size*size, ln.out.Load()-bytesOut, exchange.Round(time.Millisecond))
	t.Logf("memory at rank 0: %d KiB for each rank", grown/int64(size)/1024)
	require.Less(t, grown/int64(size), int64(128<<10))
}

// proofSize is what each end of a connection says to prove itself: a hello and a
// tag (package proof).
const proofSize = 224 + 32

// crowd is all ranks of a job in one process. The round begins when standard input
// ends.
func crowd([]string) int {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	e, _, err := parseEnvironment(os.LookupEnv)
	if err != nil {
		fmt.Println("error:", err)
		return 3
	}
	jobs, errs := make([]*Job, e.Size), make([]error, e.Size)
	each(e.Size, func(rank int) {
		mine := e
		mine.Rank, mine.LocalRank = rank, rank
		jobs[rank], errs[rank] = mine.Join(ctx)
	})
	os.Stdin.Read(make([]byte, 1))
	each(e.Size, func(rank int) {
		if errs[rank] != nil {
			return
		}
		var parts [][]byte
		if parts, errs[rank] = jobs[rank].Exchange(ctx, payload(rank, 0, addressSize)); errs[rank] == nil {
			for i := rank % 7; i < len(parts); i += 7 {
				if string(parts[i]) != string(payload(i, 0, addressSize)) {
					errs[rank] = fmt.Errorf("wrong data of rank %d", i)
				}
			}
		}
		errs[rank] = errors.Join(errs[rank], jobs[rank].Close())
	})
	if err := errors.Join(errs...); err != nil {
		fmt.Println("error:", err)
		return 3
	}
	return 0
}

func init() { acts["crowd"] = crowd }

// joined is the number of ranks that are here. The caller holds mu.
func (s *Server) joined() (n int) {
	for i := range s.members {
		if s.members[i].state == joined {
			n++
		}
	}
	return n
}

// footprint is what the heap and the stacks of this process take.
func footprint() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// meter counts what goes through a listener.
type meter struct {
	net.Listener
	accepted, in, out atomic.Int64
}

func (m *meter) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	m.accepted.Add(1)
	return &metered{conn.(*net.TCPConn), m}, nil
}

type metered struct {
	*net.TCPConn
	m *meter
}

func (c *metered) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.m.in.Add(int64(n))
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	c.m.out.Add(int64(len(b))) // before the other end can have it
	return c.TCPConn.Write(b)
}
