package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/verbs"
)

// jobSchema names the shape of the JSON output of --job.
const jobSchema = "sluice-info-job/1"

type jobReport struct {
	Schema string      `json:"schema"`
	Size   int         `json:"size"`
	Ranks  []rankEntry `json:"ranks"`
}

type rankEntry struct {
	Rank      int         `json:"rank"`
	Host      string      `json:"host,omitempty"`
	PID       int         `json:"pid"`
	Transport string      `json:"transport,omitempty"`
	Peers     []peerEntry `json:"peers,omitempty"`
}

type peerEntry struct {
	Rank     int            `json:"rank"`
	Provider string         `json:"provider,omitempty"`
	Device   string         `json:"device,omitempty"`
	State    string         `json:"state"`
	NotUsed  []notUsedEntry `json:"not_used,omitempty"`
}

type notUsedEntry struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// showJob joins the job, connects to all other ranks, and on rank 0 shows the reports of all
// ranks.
func showJob(cmd *cobra.Command, timeout time.Duration, asJSON bool) (err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	// The report contains what would be logged, but for warnings: for which rank this one waits, for example.
	defer slog.SetLogLoggerLevel(slog.SetLogLoggerLevel(slog.LevelWarn))
	n, err := channel.Join(ctx, channel.WithConnectTimeout(min(timeout, channel.DefaultConnectTimeout)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	mine, err := json.Marshal(meetAll(ctx, n))
	if err != nil {
		return err
	}
	// The exchange completes when every rank has connected to all others, so none leaves before.
	// A rank with a peer that does not answer joins it after its timeout.
	ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	all, err := n.Exchange(ctx, mine)
	if err != nil || n.Rank() != 0 {
		return err
	}
	r := &jobReport{Schema: jobSchema, Size: n.Size(), Ranks: make([]rankEntry, n.Size())}
	for i, b := range all {
		if err := json.Unmarshal(b, &r.Ranks[i]); err != nil {
			return fmt.Errorf("report of rank %d: %w", i, err)
		}
	}
	return write(cmd.OutOrStdout(), asJSON, r, r.print)
}

// meetAll exchanges empty messages, both ways, with each other rank, and returns the result. A
// failure shows in the state of the peer.
func meetAll(ctx context.Context, n *channel.Node) rankEntry {
	e := rankEntry{Rank: n.Rank(), PID: os.Getpid(), Transport: transport()}
	e.Host, _ = os.Hostname()
	var handles []*channel.Handle
	for peer := range n.Size() {
		if peer == n.Rank() {
			continue
		}
		if h, err := n.DeclareSend(channel.Contiguous(nil), peer); err == nil {
			handles = append(handles, h)
		}
		if h, err := n.DeclareReceive(channel.Contiguous(nil), peer); err == nil {
			handles = append(handles, h)
		}
	}
	for _, h := range handles {
		h.Start()
	}
	for _, h := range handles {
		h.WaitContext(ctx)
	}
	never := neverTried()
	for _, p := range n.Stats().Peers {
		if p.Rank == n.Rank() {
			continue
		}
		peer := peerEntry{Rank: p.Rank, Provider: p.Provider, Device: p.Device, State: p.State}
		for _, r := range p.Refused {
			peer.NotUsed = append(peer.NotUsed, notUsedEntry{r.Provider, r.Reason})
		}
		peer.NotUsed = append(peer.NotUsed, never...)
		e.Peers = append(e.Peers, peer)
	}
	return e
}

// transport is the value of the variable, also if the tuning file sets it.
func transport() string {
	env, _ := channel.Environment() // ranks do not join with an error
	return env(channel.EnvTransport)
}

// neverTried lists the providers that this rank uses for no peer, and why, except those that
// are used only when named.
func neverTried() []notUsedEntry {
	devices, _ := verbs.Devices() // providers that cannot list their devices have none here
	transport := transport()
	named := func(provider string) bool {
		return slices.ContainsFunc(strings.Split(transport, ","), func(s string) bool { return strings.TrimSpace(s) == provider })
	}
	var list []notUsedEntry
	for _, p := range verbs.Providers() {
		switch {
		case p.OnRequest && !named(p.Name):
		case p.Probe.Answer == verbs.No:
			list = append(list, notUsedEntry{p.Name, "no: " + p.Probe.Reason})
		case !slices.ContainsFunc(devices, func(d *verbs.Device) bool { return d.Provider() == p.Name }):
			list = append(list, notUsedEntry{p.Name, cmp.Or(p.Probe.Reason, "no device")})
		case transport != "" && !named(p.Name):
			list = append(list, notUsedEntry{p.Name, "not in " + channel.EnvTransport})
		}
	}
	return list
}

// print writes a table of the ranks and one of the pairs.
func (r *jobReport) print(w io.Writer) error {
	var b bytes.Buffer
	t := newTabWriter(&b)
	fmt.Fprintln(t, "rank\thost\tpid\t"+channel.EnvTransport)
	for _, e := range r.Ranks {
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\n", e.Rank, e.Host, e.PID, e.Transport)
	}
	t.Flush()
	if r.Size > 1 {
		b.WriteString("\n")
		fmt.Fprintln(t, "ranks\tprovider\tdevice\tnot used")
	}
	for i := range r.Ranks {
		for j := i + 1; j < len(r.Ranks); j++ {
			lower, higher := r.Ranks[i].peer(j), r.Ranks[j].peer(i)
			provider, device := lower.Provider, lower.Device
			if higher.Device != device {
				device += ", " + higher.Device
			}
			why := reasons(lower.NotUsed, higher.NotUsed)
			if provider == "" || lower.State != "up" {
				provider, device = "none", ""
				why = append([]string{lower.State}, why...)
			}
			fmt.Fprintf(t, "%d %d\t%s\t%s\t%s\n", i, j, provider, device, strings.Join(why, "; "))
		}
	}
	t.Flush()
	_, err := w.Write(trimmed(b.Bytes()))
	return err
}

// peer returns this rank's report of another rank.
func (e *rankEntry) peer(rank int) peerEntry {
	if i := slices.IndexFunc(e.Peers, func(p peerEntry) bool { return p.Rank == rank }); i >= 0 {
		return e.Peers[i]
	}
	return peerEntry{Rank: rank, State: "not declared"}
}

// reasons merges the reasons that two ranks give for providers that do not connect them: for
// each provider that of the lower rank, or else of the higher.
func reasons(lower, higher []notUsedEntry) []string {
	var list []string
	var seen []string
	for _, e := range slices.Concat(lower, higher) {
		if !slices.Contains(seen, e.Provider) {
			seen = append(seen, e.Provider)
			list = append(list, e.Provider+": "+strings.ReplaceAll(e.Reason, "\n", "; "))
		}
	}
	return list
}
