package metrics

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/internal/leak"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fixed are statistics that do not change.
type fixed fanout.Stats

func (f fixed) Stats() fanout.Stats { return fanout.Stats(f) }

var stats = fixed{
	Queued: 3, QueuedBytes: 300, Capacity: 8, Unacknowledged: 5,
	Workers: []fanout.WorkerStats{
		{Rank: 1, State: fanout.Active, Requests: 12, Waiting: 1, Chunks: 11, Bytes: 1100, Messages: 4, Held: 2, Idle: 1500 * time.Millisecond,
			Service: fanout.Service{Count: 9, Total: 18 * time.Millisecond, P50: time.Millisecond, P90: 2 * time.Millisecond, P99: 3 * time.Millisecond, P999: 4 * time.Millisecond}},
		{Rank: 2, State: fanout.Lost, Redelivered: 7},
	},
}

func TestCollect(t *testing.T) {
	c := New("run", stats)
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP sluice_fanout_queue_chunks Chunks that have not been handed out.
# TYPE sluice_fanout_queue_chunks gauge
sluice_fanout_queue_chunks{supplier="run"} 3
# HELP sluice_fanout_worker_chunks_total Chunks that the worker has been given.
# TYPE sluice_fanout_worker_chunks_total counter
sluice_fanout_worker_chunks_total{supplier="run",worker="1"} 11
sluice_fanout_worker_chunks_total{supplier="run",worker="2"} 0
# HELP sluice_fanout_worker_redelivered_chunks_total Chunks of the worker that went to others when it died or closed its client.
# TYPE sluice_fanout_worker_redelivered_chunks_total counter
sluice_fanout_worker_redelivered_chunks_total{supplier="run",worker="1"} 0
sluice_fanout_worker_redelivered_chunks_total{supplier="run",worker="2"} 7
# HELP sluice_fanout_worker_service_seconds Time that the worker takes for a chunk.
# TYPE sluice_fanout_worker_service_seconds summary
sluice_fanout_worker_service_seconds{supplier="run",worker="1",quantile="0.5"} 0.001
sluice_fanout_worker_service_seconds{supplier="run",worker="1",quantile="0.9"} 0.002
sluice_fanout_worker_service_seconds{supplier="run",worker="1",quantile="0.99"} 0.003
sluice_fanout_worker_service_seconds{supplier="run",worker="1",quantile="0.999"} 0.004
sluice_fanout_worker_service_seconds_sum{supplier="run",worker="1"} 0.018
sluice_fanout_worker_service_seconds_count{supplier="run",worker="1"} 9
# HELP sluice_fanout_worker_state 1 for the state that the worker is in.
# TYPE sluice_fanout_worker_state gauge
sluice_fanout_worker_state{state="active",supplier="run",worker="1"} 1
sluice_fanout_worker_state{state="lost",supplier="run",worker="2"} 1
`), "sluice_fanout_queue_chunks", "sluice_fanout_worker_chunks_total", "sluice_fanout_worker_redelivered_chunks_total",
		"sluice_fanout_worker_service_seconds", "sluice_fanout_worker_state"))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestServe(t *testing.T) {
	l := ranks.Listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeOn(ctx, l, New("a", stats), New("b", stats)) }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + l.Addr().String() + "/metrics")
	require.NoError(t, err)
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Contains(t, string(b), `sluice_fanout_worker_idle_seconds_total{supplier="b",worker="1"} 1.5`)
	cancel()
	require.NoError(t, <-served)
	require.Error(t, Serve(t.Context(), "127.0.0.1:-1"))
	twice := New("a", stats)
	l = ranks.Listen(t)
	require.ErrorAs(t, ServeOn(t.Context(), l, twice, twice), new(prometheus.AlreadyRegisteredError))
}
