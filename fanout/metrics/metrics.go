// Package metrics exports statistics of the suppliers of package fanout to Prometheus.
//
//	m := metrics.New("run", supplier)
//	prometheus.MustRegister(m)                       // in a registry of the program's own, or
//	err := metrics.Serve(ctx, "127.0.0.1:9464", m)   // on an address, until ctx ends
package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-hpc/sluice/fanout"
	"github.com/sluice-hpc/sluice/internal/reach"
)

// Source provides statistics, as a [fanout.Supplier] does.
type Source interface {
	Stats() fanout.Stats
}

// Collector is a prometheus.Collector of one supplier. Each Collect takes all values from one
// call of Stats; between calls it costs nothing.
type Collector struct {
	source Source
	gauges []metric // of the supplier
	counts []metric // of a worker
	states *prometheus.Desc
	times  *prometheus.Desc
}

// metric is one value of a supplier, or of a worker.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *fanout.Stats, w *fanout.WorkerStats) float64
}

// New makes a collector. The name goes into the label "supplier", and tells the suppliers of a
// program apart.
func New(name string, source Source) *Collector {
	c := &Collector{source: source}
	constant := prometheus.Labels{"supplier": name}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sluice_fanout_"+name, help, labels, constant)
	}
	gauge := func(name, help string, value func(s *fanout.Stats) float64) {
		c.gauges = append(c.gauges, metric{desc(name, help), prometheus.GaugeValue, func(s *fanout.Stats, _ *fanout.WorkerStats) float64 { return value(s) }})
	}
	gauge("queue_chunks", "Chunks that have not been handed out.", func(s *fanout.Stats) float64 { return float64(s.Queued) })
	gauge("queue_bytes", "Bytes of chunks that have not been handed out.", func(s *fanout.Stats) float64 { return float64(s.QueuedBytes) })
	gauge("queue_capacity_chunks", "Chunks that the queue may hold.", func(s *fanout.Stats) float64 { return float64(s.Capacity) })
	gauge("unacknowledged_chunks", "Chunks that are kept until they are acknowledged.", func(s *fanout.Stats) float64 { return float64(s.Unacknowledged) })
	gauge("given_up_chunks", "Chunks that were given up: too many workers died with them.", func(s *fanout.Stats) float64 { return float64(s.GivenUp) })
	of := func(kind prometheus.ValueType, name, help string, value func(w *fanout.WorkerStats) float64) {
		c.counts = append(c.counts, metric{desc(name, help, "worker"), kind, func(_ *fanout.Stats, w *fanout.WorkerStats) float64 { return value(w) }})
	}
	of(prometheus.CounterValue, "worker_requests_total", "Chunks that the worker has asked for.", func(w *fanout.WorkerStats) float64 { return float64(w.Requests) })
	of(prometheus.CounterValue, "worker_chunks_total", "Chunks that the worker has been given.", func(w *fanout.WorkerStats) float64 { return float64(w.Chunks) })
	of(prometheus.CounterValue, "worker_bytes_total", "Bytes of the chunks that the worker has been given.", func(w *fanout.WorkerStats) float64 { return float64(w.Bytes) })
	of(prometheus.CounterValue, "worker_messages_total", "Messages that the chunks were in.", func(w *fanout.WorkerStats) float64 { return float64(w.Messages) })
	of(prometheus.CounterValue, "worker_redelivered_chunks_total", "Chunks of the worker that went to others when it died or closed its client.", func(w *fanout.WorkerStats) float64 { return float64(w.Redelivered) })
	of(prometheus.CounterValue, "worker_idle_seconds_total", "Time that requests of the worker have waited for chunks.", func(w *fanout.WorkerStats) float64 { return w.Idle.Seconds() })
	of(prometheus.GaugeValue, "worker_held_chunks", "Chunks that the worker has not acknowledged.", func(w *fanout.WorkerStats) float64 { return float64(w.Held) })
	of(prometheus.GaugeValue, "worker_waiting_requests", "Requests of the worker that have not been answered.", func(w *fanout.WorkerStats) float64 { return float64(w.Waiting) })
	c.states = desc("worker_state", "1 for the state that the worker is in.", "worker", "state")
	c.times = desc("worker_service_seconds", "Time that the worker takes for a chunk.", "worker")
	return c
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.gauges {
		to <- m.desc
	}
	for _, m := range c.counts {
		to <- m.desc
	}
	to <- c.states
	to <- c.times
}

// Collect sends the current metrics. Only suppliers with fanout.Timed have service times.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	s := c.source.Stats()
	for _, m := range c.gauges {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s, nil))
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		rank := strconv.Itoa(w.Rank)
		for _, m := range c.counts {
			to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s, w), rank)
		}
		to <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, 1, rank, w.State.String())
		if t := w.Service; t.Count > 0 {
			to <- prometheus.MustNewConstSummary(c.times, uint64(t.Count), t.Total.Seconds(),
				map[float64]float64{0.5: t.P50.Seconds(), 0.9: t.P90.Seconds(), 0.99: t.P99.Seconds(), 0.999: t.P999.Seconds()}, rank)
		}
	}
}

// Serve answers requests for /metrics on an address ("host:port") until ctx ends. There is no
// authentication: any client that reaches the address can read the metrics.
//
// Errors: that of listening, at once; nil after ctx has ended.
func Serve(ctx context.Context, address string, list ...prometheus.Collector) error {
	l, err := reach.Listen(ctx, net.ListenConfig{}, address)
	if err != nil {
		return err
	}
	return ServeOn(ctx, l, list...)
}

// ServeOn is [Serve] on a listener, which it closes when it returns.
func ServeOn(ctx context.Context, l net.Listener, list ...prometheus.Collector) error {
	r := prometheus.NewRegistry()
	for _, c := range list {
		if err := r.Register(c); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	var err error
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = s.Close()
		<-served
	}
	return err
}

// headerTimeout bounds the time that a client takes to send its request headers.
const headerTimeout = 5 * time.Second
