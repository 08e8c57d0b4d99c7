package roce

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/ranks"
	"github.com/sluice-hpc/sluice/verbs"
)

// flushed is a wire that signals when it has sent packets.
type flushed struct {
	wire
	sent chan struct{}
}

func (f flushed) flush() {
	f.wire.flush()
	select {
	case f.sent <- struct{}{}:
	default:
	}
}

// The driver serves the timers while another goroutine holds the receive lock without progress, and
// receives once that is released.
func TestDriverServesTimers(t *testing.T) {
	l := newLive(1, faults{})
	defer l.later.Stop()
	sent := make(chan struct{}, 1)
	end := func(over func(w *liveWire) wire) *side {
		a, err := l.open("memory0", verbs.Config{}, over)
		require.NoError(t, err)
		return newSide(t, a, 4)
	}
	a := end(func(w *liveWire) wire { return flushed{w, sent} })
	b := end(func(w *liveWire) wire { return w })
	a.connect(t, b, usual, false)
	b.connect(t, a, usual, false)
	l.mu.Lock()
	l.net.lose = l.net.sent + 1
	l.mu.Unlock()
	a.a.rx.Lock()
	a.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{a.sge(a.local, 0, 8)}, RemoteAddr: b.mem.Addr(), RKey: b.mem.RKey()})
	again := 0
	for limit := time.After(ranks.Limit); again < 2; again++ { // the packet, which is lost, and once more
		select {
		case <-sent:
			continue
		case <-limit:
		}
		break
	}
	a.a.rx.Unlock()
	require.Equal(t, 2, again, "nothing is sent again")
	for ctx := ranks.Within(t); len(a.done) == 0; {
		require.NoError(t, ctx.Err())
		a.poll(t)
	}
}

// records hands on what is logged.
type records chan slog.Record

func (r records) Enabled(context.Context, slog.Level) bool { return true }
func (r records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r records) WithGroup(string) slog.Handler            { return r }
func (r records) Handle(_ context.Context, x slog.Record) error {
	r <- x
	return nil
}

// next returns the message of the next record, and its attributes.
func (r records) next(t testing.TB) (string, map[string]any) {
	t.Helper()
	select {
	case x := <-r:
		attrs := map[string]any{}
		x.Attrs(func(a slog.Attr) bool {
			attrs[a.Key] = a.Value.Any()
			return true
		})
		return x.Message, attrs
	case <-time.After(ranks.Limit):
		require.Fail(t, "nothing is logged")
		return "", nil
	}
}

// Lost peers, and packets for queue pairs that do not exist, are logged with no lock held: the
// handler may take any time.
func TestLog(t *testing.T) {
	l := newLive(1, faults{})
	defer l.later.Stop()
	logged := make(records)
	t.Cleanup(func() { close(logged) }) // after the sides
	open := func(cfg verbs.Config) *side {
		a, err := l.open("memory0", cfg, func(w *liveWire) wire { return w })
		require.NoError(t, err)
		return newSide(t, a, 4)
	}
	a, b := open(verbs.Config{Logger: slog.New(logged)}), open(verbs.Config{})
	t.Cleanup(func() {
		go func() {
			for range logged { // while it is closed, too: its peer goes on
			}
		}()
	})
	a.connect(t, b, usual, false)
	num := b.qp.Num
	require.NoError(t, b.qp.Close())
	b.open(t, 4)
	a.post(t, write(a, b, 8)) // which the peer does not know any more
	for len(a.done) == 0 {
		a.poll(t)
	}
	require.Equal(t, verbs.WCRetryExcErr, a.done[0].Status)
	message, attrs := logged.next(t)
	require.Equal(t, "roce: peer lost", message)
	delete(attrs, "silent")
	require.Equal(t, map[string]any{"qp": uint64(a.qp.Num), "peer": b.a.wire.local(), "peer_qp": uint64(num), "reason": "gone"}, attrs)

	b.connect(t, a, usual, false)
	b.qp.Lock.Lock()
	b.qp.Attr.DestQPNum = a.qp.Num ^ 1
	b.qp.Unlock()
	b.post(t, write(b, a, 8))
	message, attrs = logged.next(t)
	require.Equal(t, "roce: received packets for queue pairs that do not exist", message)
	require.NotZero(t, attrs["count"])
}

// If there are more records than room, their number is logged; packets of strangers are logged once a
// second.
func TestNotices(t *testing.T) {
	logged := make(records, 100)
	n := noticeWriter{notices: &notices{out: slog.New(logged)}}
	for range maxNotices + 5 {
		n.lose(lostPeer{vendor: vendorSilent})
	}
	n.write(0, 1)
	for range maxNotices {
		message, attrs := logged.next(t)
		require.Equal(t, "roce: peer lost", message)
		require.Equal(t, "silent", attrs["reason"])
	}
	message, attrs := logged.next(t)
	require.Equal(t, "roce: more peers lost", message)
	require.EqualValues(t, 5, attrs["count"])
	for i := range int64(100) {
		n.write(uint64(i), i*strangeEvery/40)
	}
	for _, want := range []int64{1, 40, 40} {
		_, attrs := logged.next(t)
		require.EqualValues(t, want, attrs["count"])
	}
	require.Empty(t, logged)
}
