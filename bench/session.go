package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/qmp"
	"github.com/sluice-hpc/sluice/verbs"
)

// Providers that bench treats in some way of their own.
const (
	providerSHM  = "shm"
	providerTCP  = "tcp"
	providerIBV  = "ibv"
	providerRoCE = "roce"
	providerXDP  = "xdp"
	providerSelf = "self" // moves messages within a rank
)

// exchanger is what a measurement needs of the job: this rank's number, and a slow way to talk
// outside the measured loops.
type exchanger interface {
	Rank() int
	Size() int
	Exchange(ctx context.Context, data []byte) ([][]byte, error)
}

// PeerError is an error that another rank met.
type PeerError struct {
	Rank int
	Text string
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// share gives every rank the values of all. A rank that comes with an error makes all
// fail: itself with that error, the others with a [*PeerError]. So no rank goes on alone,
// or waits for one that did not.
func share[T any](ctx context.Context, job exchanger, v T, failed error) []T {
	type message struct {
		Value T      `json:"value"`
		Error string `json:"error,omitempty"`
	}
	m := message{Value: v}
	if failed != nil {
		m.Error = failed.Error()
	}
	all, err := job.Exchange(ctx, must1(json.Marshal(m)))
	if err != nil {
		must(errors.Join(failed, err))
	}
	vs := make([]T, len(all))
	for rank, b := range all {
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			must(fmt.Errorf("rank %d sent a message that is not from this version of bench: %w", rank, err))
		}
		switch {
		case m.Error == "":
			vs[rank] = m.Value
		case rank == job.Rank():
			must(failed)
		case failed == nil || failed.Error() == m.Error: // the same at several is the first's to report
			must(&PeerError{rank, m.Error})
		}
	}
	return vs
}

// agree gives every rank what rank 0 decided.
func agree[T any](ctx context.Context, job exchanger, v T) T { return share(ctx, job, v, nil)[0] }

// barrier waits for all ranks, and fails at all where one comes with an error.
func barrier(ctx context.Context, job exchanger, failed error) {
	share(ctx, job, struct{}{}, failed)
}

// session is this process as a rank of a job. It moves what is measured over channels, and
// what is exchanged about that through the rendezvous of the job.
type session struct {
	*channel.Node
	provider string  // of channels; empty: what the library takes
	timer    float64 // cost of reading the clock, ns
}

// join makes this process a rank. All channels are of the provider, if one is named.
func join(ctx context.Context, provider string) *session {
	opts := []channel.Option{channel.WithLogger(onlyWarnings())}
	if provider != "" && provider != providerSelf {
		must1(verbs.Find(provider))
		opts = []channel.Option{channel.WithProviders(provider)}
	}
	return &session{Node: must1(channel.Join(ctx, opts...)), provider: provider, timer: timerCost()}
}

// apart says whether ranks are on different hosts, which share no memory.
func (s *session) apart() bool { return slices.Max(s.Hosts()) > 0 }

// connected is what the library connects two ranks over. Both call it.
func (s *session) connected(ctx context.Context) (p channel.PeerStats) {
	other := 1 - s.Rank()
	d := declarations{node: s.Node}
	d.send(channel.Contiguous(make([]byte, 1)), other)
	d.receive(channel.Contiguous(make([]byte, 1)), other)
	startAll(d.handles...)
	must(channel.WaitAllContext(ctx, d.handles...))
	for _, p = range s.Stats().Peers {
		if p.Rank == other {
			break
		}
	}
	d.close()
	return p
}

// onlyWarnings is a log without what is for information.
func onlyWarnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// fail ends the job with an error, which one rank reports: the one that met it. It does so
// before it aborts the job, after which the launcher may end all.
func (s *session) fail(err error) error {
	var other *PeerError
	if errors.Is(err, channel.ErrAborted) {
		return reported{err}
	}
	if errors.As(err, &other) { // which is about to abort
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, _ = s.Exchange(ctx, nil)
		return reported{err}
	}
	tell(err)
	// Another rank may be in a loop that waits for us.
	s.Abort(exitStatus(err), err.Error())
	return reported{err}
}

// reported is an error that has been printed.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

func tell(err error) { fmt.Fprintln(os.Stderr, "bench:", err) }

// lacks says why a provider is not there at one of the ranks; empty: all have it.
func (s *session) lacks(ctx context.Context, provider string) (why string) {
	if _, err := verbs.Find(provider); err != nil {
		why = provider + ": " + err.Error()
	}
	return cmp.Or(share(ctx, s, why, nil)...)
}

// cannot says why a provider does not connect all ranks.
func (s *session) cannot(ctx context.Context, provider string) string {
	why := s.lacks(ctx, provider)
	if why == "" && provider == providerSHM && s.apart() {
		why = provider + ": the ranks are on different hosts"
	}
	return why
}

// devices are those that connect this rank with others. What cannot be opened a second time
// has but its names.
func (s *session) devices() []DeviceEntry {
	var list []DeviceEntry
	for _, p := range s.Stats().Peers {
		if p.Device == "" || slices.ContainsFunc(list, func(d DeviceEntry) bool { return d.Device == p.Device }) {
			continue
		}
		entry, err := describeNamed(p.Device)
		if err != nil {
			entry = DeviceEntry{Provider: p.Provider, Device: p.Device}
		}
		list = append(list, entry)
	}
	return list
}

// describeNamed opens a device for as long as it takes to describe it.
func describeNamed(name string) (_ DeviceEntry, err error) {
	defer catch(&err)
	c := must1(must1(verbs.Find(name)).Open(verbs.Config{Insecure: true}))
	e := describeDevice(c, false)
	must(c.Close())
	return e, nil
}

// onlyDevice describes the device of a provider that has one: of several it is not known
// which is used.
func onlyDevice(provider string) (DeviceEntry, bool) {
	devs, _ := verbs.Devices() // what is not there has no device
	devs = slices.DeleteFunc(slices.Clone(devs), func(d *verbs.Device) bool { return d.Provider() != provider })
	if len(devs) != 1 {
		return DeviceEntry{}, false
	}
	e, err := describeNamed(devs[0].Name())
	return e, err == nil
}

// bed is what the measurements of a piece of work share.
type bed struct {
	*session
	o        *options
	provider string      // of the results
	entry    DeviceEntry // of a device that is measured by itself
	over     DeviceEntry // of a device that carries impi
	device   string      // that queue pairs are made of
	carrier  string      // of impi
	impi     *impi.Job
	qmp      *qmp.Machine
	group    *channel.Group
	out, in  buffer
}

// memory is what a measurement sends from, and what it receives into.
func (b *bed) memory(s *spec, out, in int) (from, into []byte) {
	kind, other, mixed := strings.Cut(s.memory, ">")
	if !mixed {
		other = kind
	}
	return b.out.take(b.alloc, kind, out), b.in.take(b.alloc, other, in)
}

// alloc is memory of Alloc: of the job of impi where that is measured.
func (b *bed) alloc(size int) (io.Closer, []byte) {
	if b.impi != nil {
		m := must1(b.impi.Alloc(size))
		return m, m.Bytes()
	}
	return allocOf(b.Node)(size)
}

// allocOf is memory of Node.Alloc.
func allocOf(n *channel.Node) func(int) (io.Closer, []byte) {
	return func(size int) (io.Closer, []byte) {
		m := must1(n.Alloc(size))
		return m, m.Bytes()
	}
}

// close leaves what the work has made, which no rank uses any more.
func (b *bed) close(ctx context.Context) {
	barrier(ctx, b, nil)
	for _, m := range []io.Closer{b.out.own, b.in.own} {
		if m != nil {
			must(m.Close())
		}
	}
	if b.impi != nil {
		must(b.impi.Close(ctx))
	}
	if b.qmp != nil {
		must(b.qmp.Finalize())
	}
}

// buffer is memory of one kind, which grows.
type buffer struct {
	kind  string
	bytes []byte
	own   io.Closer // of alloc
}

// take is memory of a kind, from the start of the buffer.
func (b *buffer) take(alloc func(int) (io.Closer, []byte), kind string, size int) []byte {
	if size <= len(b.bytes) && kind == b.kind {
		return b.bytes[:size:size]
	}
	if b.own != nil {
		must(b.own.Close())
	}
	*b = buffer{kind: kind}
	if kind == memoryHeap {
		b.bytes = make([]byte, max(size, 64<<10)) // of that size it begins at a page
		return b.bytes[:size:size]
	}
	b.own, b.bytes = alloc(max(size, 1))
	return b.bytes[:size:size]
}

// defaultPort is where --listen listens, and where a host is looked for, without a port.
const defaultPort = "18516"

// goodbye bounds how long the one that listens stays for the other to leave.
const goodbye = 5 * time.Second

// meetOptions say how two processes meet that no launcher has started: one listens, the
// other is told where. The one that is told is rank 0, and prints.
type meetOptions struct {
	listen string // address; empty: does not listen
	host   string // address of the one that listens; empty: none
}

// hosts takes the host from the arguments of a command that two ranks can measure.
func (o *meetOptions) hosts(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// A name without a dot may as well be a pattern that is spelled wrongly.
	if len(args) > 1 || !strings.ContainsAny(args[0], ".:") && args[0] != "localhost" {
		return usagef("unknown command or argument %q; see %s --help; a host that listens is HOST:PORT", args[len(args)-1], cmd.CommandPath())
	}
	o.host = withPort(args[0])
	return nil
}

// withPort is an address with the default port, where it has none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
}

// check says what cannot be meant; o.listen may still lack its port.
func (o *meetOptions) check() {
	if o.listen != "" && o.host != "" {
		must(usagef("--listen and a host (%s) exclude each other", o.host))
	}
	if (o.listen != "" || o.host != "") && os.Getenv(boot.EnvRank) != "" {
		must(usagef("under a launcher, use neither --listen nor a host"))
	}
}

// meet makes this process one of two ranks where it listens, or has been told of a host.
// ctx is then what it joins with; stop ends the rendezvous.
func (o *meetOptions) meet(ctx context.Context) (_ context.Context, stop func()) {
	stop = func() {}
	if o.listen == "" && o.host == "" {
		return ctx, stop
	}
	server, rank := o.host, 0
	var ln net.Listener
	if o.listen != "" {
		ln = must1(net.Listen("tcp", withPort(o.listen)))
		rank, server = 1, nearby(ln.Addr().(*net.TCPAddr))
	} else {
		fmt.Fprintf(os.Stderr, "bench: connecting to the bench that listens at %s\n", o.host)
	}
	e := must1(boot.ByHand(rank, 2, server))
	e.Job = cmp.Or(e.Job, "bench")
	if ln != nil {
		s := serve(ln, e)
		stop = func() { endServer(s) }
		fmt.Fprintf(os.Stderr, "bench: listening at %s: on the other host, run the same command with this host's address instead of --listen\n", ln.Addr())
	}
	return boot.WithEnvironment(ctx, e), stop
}

func serve(ln net.Listener, e boot.Environment) *boot.Server {
	return must1(boot.Serve(context.Background(), ln, boot.ServerOptions{Size: e.Size, Job: e.Job, Secret: e.Secret, Insecure: e.Insecure}))
}

// endServer ends a rendezvous that we serve: the others say goodbye to it, too, and what
// they tell is not ours.
func endServer(s *boot.Server) {
	within, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.Wait(within)
	_ = s.Close()
}

// nearby is an address at which this very process reaches a listener of its own.
func nearby(a *net.TCPAddr) string {
	if !a.IP.IsUnspecified() {
		return a.String()
	}
	// What listens at all addresses of IPv6 takes those of IPv4 as well.
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port}).String()
}
