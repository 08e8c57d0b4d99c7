package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/verbs"
)

// against is a way of a provider that takes so much of the time that tcp does.
func against(name string, share float64) way {
	w := way{names: [2]string{name, carrierTCP}, sizes: []int{8, 4 << 10, 64 << 10}}
	for _, ns := range []float64{1e4, 2e4, 1e5} {
		w.figures[0], w.figures[1] = append(w.figures[0], share*ns), append(w.figures[1], ns)
	}
	return w
}

// What was faster than tcp comes before it, behind devices and shared memory, of those that
// are there; what was not is not named.
func TestPreferred(t *testing.T) {
	t.Parallel()
	other := against("copied", 0.1)
	other.names[1] = "straight"
	mixed := against(providerRoCE, 1)
	mixed.figures[0][0] *= 3
	mixed.figures[0][2] *= 0.3 // in all a tenth faster than tcp, of one message's time
	for name, c := range map[string]struct {
		ways  []way
		lacks string
		want  string
	}{
		"nothing measured": {want: ""},
		"of another kind":  {ways: []way{other}, want: ""},
		"slower":           {ways: []way{against(providerRoCE, 1.5), against(providerXDP, 2)}, want: ""},
		"hardly faster":    {ways: []way{against(providerRoCE, 0.98)}, want: ""},
		"roce":             {ways: []way{other, against(providerRoCE, 0.5), against(providerXDP, 1.5)}, want: "shm,ibv,roce,tcp"},
		"xdp":              {ways: []way{against(providerRoCE, 1.5), against(providerXDP, 0.5)}, want: "shm,ibv,xdp,tcp"},
		"both":             {ways: []way{against(providerRoCE, 0.8), against(providerXDP, 0.5)}, want: "shm,ibv,xdp,roce,tcp"},
		"by most sizes":    {ways: []way{mixed}, want: "shm,ibv,roce,tcp"},
		"no RDMA devices":  {ways: []way{against(providerRoCE, 0.8)}, lacks: providerIBV, want: "shm,roce,tcp"},
		"no memory":        {ways: []way{against(providerRoCE, 0.8)}, lacks: providerSHM, want: "ibv,roce,tcp"},
	} {
		var want []string
		if c.want != "" {
			want = []string{channel.EnvTransport + "=" + c.want}
		}
		require.Equal(t, want, preferred(c.ways, func(provider string) bool { return provider != c.lacks }), name)
	}
}

// Without a setting RDMA devices come before tcp; what is on Ethernet in user space behind it,
// and only where it is asked for.
func TestOrderUnasked(t *testing.T) {
	t.Parallel()
	var order, asked []string
	for _, p := range verbs.Providers() {
		if p.OnRequest {
			asked = append(asked, p.Name)
		} else {
			order = append(order, p.Name)
		}
	}
	require.Equal(t, []string{providerSHM, providerIBV, carrierTCP}, order)
	require.Equal(t, []string{providerRoCE, providerXDP}, asked)
}

// orderOf is the setting that follows from what a report says was measured, result by result:
// those of a provider, and then those of tcp beside it.
func orderOf(t *testing.T, r *Report) []string {
	t.Helper()
	var ways []way
	for _, v := range r.Results {
		n := len(ways)
		switch {
		case v.Algorithm == carrierTCP:
			require.Equal(t, int(v.Bytes), ways[n-1].sizes[len(ways[n-1].figures[1])])
			ways[n-1].figures[1] = append(ways[n-1].figures[1], v.P50)
			continue
		case v.Algorithm != providerRoCE && v.Algorithm != providerXDP:
			continue
		case n == 0 || ways[n-1].names[0] != v.Algorithm:
			ways = append(ways, way{names: [2]string{v.Algorithm, carrierTCP}})
			n++
		}
		w := &ways[n-1]
		w.sizes, w.figures[0] = append(w.sizes, int(v.Bytes)), append(w.figures[0], v.P50)
	}
	best, least := "", -worthwhile
	second := ""
	for _, w := range ways {
		require.Len(t, w.figures[1], len(w.sizes), "tcp is measured beside %s", w.names[0])
		sum := 0.0
		for i := range w.sizes {
			sum += math.Log(w.figures[0][i]) - math.Log(w.figures[1][i])
		}
		switch {
		case sum < least:
			second, best, least = best, w.names[0], sum
		case sum < -worthwhile:
			second = w.names[0]
		}
	}
	if best == "" {
		return nil
	}
	order := ""
	for _, name := range []string{providerSHM, providerIBV, best, second, carrierTCP} {
		if _, err := verbs.Find(name); name == best || name == second && name != "" || err == nil {
			order += "," + name
		}
	}
	return []string{channel.EnvTransport + "=" + strings.TrimPrefix(order, ",")}
}

// envCarried makes the test binary a rank that tells what carries its messages.
const envCarried = "SLUICE_BENCH_TEST_CARRIED"

// tellCarriers joins a job in which all send something to all, and prints a line for each
// peer: both ranks, the provider, and whether messages went each way.
func tellCarriers() {
	if err := carry(context.Background()); err != nil {
		tell(err)
		os.Exit(exitFailed)
	}
}

func carry(ctx context.Context) (err error) {
	defer catch(&err)
	n := join(ctx, "")
	d := declarations{node: n.Node, stream: 1}
	for rank := range n.Size() {
		if rank != n.Rank() {
			d.send(channel.Contiguous(make([]byte, 8)), rank)
			d.receive(channel.Contiguous(make([]byte, 8)), rank)
		}
	}
	for _, h := range d.handles {
		if err := h.Start(); err != nil {
			return err
		}
	}
	if err := channel.WaitAllContext(ctx, d.handles...); err != nil {
		return err
	}
	for _, p := range n.Stats().Peers {
		if p.Rank != n.Rank() {
			fmt.Printf("%d %d %s %v\n", n.Rank(), p.Rank, p.Provider, p.Sent.Messages > 0 && p.Received.Messages > 0)
		}
	}
	if _, err := n.Exchange(ctx, nil); err != nil { // no rank leaves while another still sends
		return err
	}
	return n.Close()
}
