package boot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/logbuf"
	"github.com/sluice-hpc/sluice/internal/proof"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// knock has a process that says it is a rank prove itself, with what spoil changes, and say something more.
func (w *world) knock(t *testing.T, rank uint32, spoil func(*proof.Params), says ...message) error {
	t.Helper()
	conn := ranks.Dial(t, w.Addr().String())
	defer conn.Close()
	p := w.env.proofParams(rank)
	spoil(&p)
	_, err := proof.Dial(conn, p, nil)
	for _, m := range says {
		if err == nil {
			_, err = conn.Write(m.Append(nil))
		}
	}
	if err == nil {
		_, err = io.ReadAll(conn) // until it hangs up
	}
	return err
}

// TestStrangersEndNothing: whatever a process says that does not know the secret, or that comes when all have
// joined, the job goes on.
func TestStrangersEndNothing(t *testing.T) {
	ctx := ranks.Within(t)
	w := newWorld(t, 2, maxStrangers)
	first := w.join(t, 0)
	guess := func(p *proof.Params) { p.Secret = []byte("some other secret of a test") }
	for rank := range uint32(3) {
		require.ErrorIs(t, w.knock(t, rank, guess), proof.ErrRefused)
		require.ErrorIs(t, w.knock(t, rank, func(p *proof.Params) { guess(p); p.Major = 9 }), proof.ErrVersion)
		require.ErrorIs(t, w.knock(t, rank, func(p *proof.Params) { p.Job = "other" }), proof.ErrJob)
		require.ErrorIs(t, w.knock(t, rank, func(p *proof.Params) { p.Secret, p.Insecure = nil, true }), proof.ErrInsecure)
	}
	require.ErrorIs(t, w.knock(t, noRank, guess), proof.ErrRefused)
	for rank := range maxSuspects + 10 { // of no rank of the job
		require.ErrorIs(t, w.knock(t, uint32(100+rank), guess), proof.ErrRefused)
	}
	w.waitFor(t, "no stranger left", func() bool { return len(w.strangers) == 0 })
	w.mu.Lock()
	require.Len(t, w.suspects, 1, "rank 0 is here, and there is no rank 2")
	require.Nil(t, w.failed)
	w.mu.Unlock()
	second := w.join(t, 1)
	jobs := []*Job{first, second}
	require.NoError(t, barrier(ctx, jobs))

	// It has begun.
	own := func(*proof.Params) {}
	require.NoError(t, w.knock(t, 1, own, leave{rank: 1, reason: reasonGaveUp, text: "I cannot"}))
	require.NoError(t, w.knock(t, 1, own, join{rank: 1, size: 2}))
	require.NoError(t, w.knock(t, 1, own, join{rank: 1, size: 3}))
	require.ErrorIs(t, w.knock(t, 1, func(p *proof.Params) { p.Major = 9 }), proof.ErrVersion)
	w.waitFor(t, "no stranger left", func() bool { return len(w.strangers) == 0 })
	require.NoError(t, barrier(ctx, jobs))
}

// TestFlood: strangers displace no connection of a rank that has proved itself.
func TestFlood(t *testing.T) {
	w := newWorld(t, 1, 0)
	dial := func() net.Conn {
		conn := ranks.Dial(t, w.Addr().String())
		return conn
	}
	rank := dial()
	_, err := proof.Dial(rank, w.env.proofParams(0), nil)
	require.NoError(t, err)
	first := dial()
	dial()
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err, "there is room for one stranger")
	_, err = rank.Write(join{size: 1}.Append(nil))
	require.NoError(t, err)
	m, err := readMessage(bufio.NewReader(rank), setOf(kindWelcome, kindRefuse, kindLeave))
	require.NoError(t, err)
	require.IsType(t, welcome{}, m)
}

// TestDropped: a rank whose connection a flooded rendezvous drops tries again, whenever that is.
func TestDropped(t *testing.T) {
	ln := ranks.Listen(t)
	e := Environment{Size: 1, LocalSize: 1, Server: ln.Addr().String(), Job: "test", Secret: []byte("the secret of a job of a test..."), Launched: true}
	type result struct {
		job *Job
		err error
	}
	done := make(chan result, 1)
	go func() {
		j, err := joinFrom(ranks.Within(t), variables(e.Environ()...))
		done <- result{j, err}
	}()
	conn, err := ln.Accept()
	require.NoError(t, err)
	p := e.proofParams(0)
	p.Secret = []byte("some other secret of a test")
	p.Self = []byte(serverName)
	_, err = proof.Accept(conn, p, nil)
	require.ErrorIs(t, err, proof.ErrSecret, "it has said everything")
	conn.Close()
	serveWorld(t, ln, 1, maxStrangers)
	r := <-done
	require.NoError(t, r.err)
	require.NoError(t, r.job.Close())
}

// TestStrangersReported: what does not know the secret makes the ranks that wait write a bounded number of
// lines, however often it changes its story.
func TestStrangersReported(t *testing.T) {
	w := newWorld(t, 2, maxStrangers)
	var said logbuf.Buffer
	ctx := WithLogger(ranks.Within(t), slog.New(slog.NewTextHandler(&said, nil)))
	first, err := joinFrom(ctx, variables(w.env.Environ()...))
	require.NoError(t, err)
	defer first.Close()
	for n := range 3 * maxSuspects {
		require.ErrorIs(t, w.knock(t, 1, func(p *proof.Params) {
			p.Secret, p.Major, p.Minor = []byte("some other secret of a test"), 9, uint16(n)
		}), proof.ErrVersion)
	}
	w.waitFor(t, "no stranger left", func() bool { return len(w.strangers) == 0 })
	second := w.join(t, 1)
	require.NoError(t, barrier(ctx, []*Job{first, second})) // rank 0 has read the reports
	lines := strings.Count(said.String(), "waiting for rank 1")
	require.Positive(t, lines)
	require.LessOrEqual(t, lines, maxSuspects+1)
}

// TestExcuse: what says that it cannot join ends the first round with its words, if it may speak for its rank.
func TestExcuse(t *testing.T) {
	for _, c := range []struct {
		name         string
		proves, says uint32
		reason       reason
		ends         string
	}{
		{"a rank", 1, 1, reasonGaveUp, "rank 1 gave up: I cannot"},
		{"no rank of the job", 7, 7, reasonGaveUp, "rank 7 gave up: I cannot"},
		{"no rank at all", noRank, noRank, reasonGaveUp, "a process that is no rank gave up: I cannot"},
		{"in the name of another", 0, 1, reasonGaveUp, ""},
		{"a goodbye", 1, 1, reasonLeft, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2, maxStrangers)
			j := w.join(t, 0)
			require.NoError(t, w.knock(t, c.proves, func(*proof.Params) {}, leave{rank: c.says, reason: c.reason, text: "I cannot"}))
			if c.ends == "" {
				w.waitFor(t, "it is in the log", func() bool { return strings.Contains(w.log.String(), "leave before join") })
				w.mu.Lock()
				defer w.mu.Unlock()
				require.Nil(t, w.failed)
				return
			}
			err := j.Barrier(ranks.Within(t))
			require.ErrorIs(t, err, ErrGaveUp)
			require.ErrorContains(t, err, "before all ranks had joined, "+c.ends)
		})
	}
}

// TestReportAfter: a wait is reported after 3, 10 and 30 s, and then each minute, however often what is waited
// for changes.
func TestReportAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		begin := time.Now()
		s := &silence{begin: begin, log: func(why error) { said = append(said, fmt.Sprint(time.Since(begin), " ", why)) }}
		s.mu.Lock()
		s.timer = time.AfterFunc(reportAfter(0), s.isDue)
		s.mu.Unlock()
		time.Sleep(5 * time.Second) // there is nothing to say yet
		ctx := context.WithValue(t.Context(), silenceKey{}, s)
		waitsFor(ctx, errors.New("x"))
		waitsFor(ctx, errors.New("y")) // the next attempt
		time.Sleep(3 * time.Minute)
		s.stop()
		time.Sleep(time.Hour)
		require.Equal(t, []string{"5s x", "10s y", "30s y", "1m0s y", "2m0s y", "3m0s y"}, said)
	})
}
