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

// Providers that bench treats specially.
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

// PeerError is an error of another rank.
type PeerError struct {
	Rank int
	Text string
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// share gives every rank the values of all. If a rank passes an error all fail: that rank with its
// error, the others with a [*PeerError]. So no rank goes on alone, or waits for one that failed.
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
		case failed == nil || failed.Error() == m.Error: // only the first rank reports an error that several have
			must(&PeerError{rank, m.Error})
		}
	}
	return vs
}

// agree gives every rank the decision of rank 0.
func agree[T any](ctx context.Context, job exchanger, v T) T { return share(ctx, job, v, nil)[0] }

// barrier waits for all ranks, and fails on all if one passes an error.
func barrier(ctx context.Context, job exchanger, failed error) {
	share(ctx, job, struct{}{}, failed)
}

// session is this process as a rank of a job. The measured data go over channels, and data about
// the measurement through the rendezvous of the job.
type session struct {
	*channel.Node
	provider string  // of channels; empty: the library chooses
	timer    float64 // cost of reading the clock, ns
}

// join makes this process a rank. All channels use the provider, if one is named.
func join(ctx context.Context, provider string) *session {
	opts := []channel.Option{channel.WithLogger(onlyWarnings())}
	if provider != "" && provider != providerSelf {
		must1(verbs.Find(provider))
		opts = []channel.Option{channel.WithProviders(provider)}
	}
	return &session{Node: must1(channel.Join(ctx, opts...)), provider: provider, timer: timerCost()}
}

// apart reports whether ranks are on different hosts, which share no memory.
func (s *session) apart() bool { return slices.Max(s.Hosts()) > 0 }

// connected returns what the library connects two ranks with. Both call it.
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

// onlyWarnings is a log of warnings and errors.
func onlyWarnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// fail ends the job with an error. Only the rank that has the error reports it, before it aborts
// the job, as the launcher may then end all ranks.
func (s *session) fail(err error) error {
	var other *PeerError
	if errors.Is(err, channel.ErrAborted) {
		return reported{err}
	}
	if errors.As(err, &other) { // the other rank is about to abort
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, _ = s.Exchange(ctx, nil)
		return reported{err}
	}
	tell(err)
	// Another rank may wait for this one in a loop.
	s.Abort(exitStatus(err), err.Error())
	return reported{err}
}

// reported is an error that has been printed.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

func tell(err error) { fmt.Fprintln(os.Stderr, "bench:", err) }

// lacks returns why one of the ranks lacks a provider; empty: all have it.
func (s *session) lacks(ctx context.Context, provider string) (why string) {
	if _, err := verbs.Find(provider); err != nil {
		why = provider + ": " + err.Error()
	}
	return cmp.Or(share(ctx, s, why, nil)...)
}

// cannot returns why a provider does not connect all ranks.
func (s *session) cannot(ctx context.Context, provider string) string {
	why := s.lacks(ctx, provider)
	if why == "" && provider == providerSHM && s.apart() {
		why = provider + ": the ranks are on different hosts"
	}
	return why
}

// devices returns the devices that connect this rank with others. A device that cannot be opened a
// second time has only its names.
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

// onlyDevice describes the device of a provider that has only one: of several it is unknown which
// is used.
func onlyDevice(provider string) (DeviceEntry, bool) {
	devs, _ := verbs.Devices() // a provider that fails has no device
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
	device   string      // on which queue pairs are made
	carrier  string      // of impi
	impi     *impi.Job
	qmp      *qmp.Machine
	group    *channel.Group
	out, in  buffer
}

// memory returns the buffers of a measurement: one to send from, one to receive into.
func (b *bed) memory(s *spec, out, in int) (from, into []byte) {
	kind, other, mixed := strings.Cut(s.memory, ">")
	if !mixed {
		other = kind
	}
	return b.out.take(b.allocOf(kind), kind, out), b.in.take(b.allocOf(other), other, in)
}

// allocOf returns what allocates memory of a kind: impi's job if that is measured.
func (b *bed) allocOf(kind string) func(int) (io.Closer, []byte) {
	if b.impi == nil || kind == memoryNode {
		return allocOf(b.Node)
	}
	return func(size int) (io.Closer, []byte) {
		m := must1(b.impi.Alloc(size))
		return m, m.Bytes()
	}
}

// allocOf returns Node.Alloc memory.
func allocOf(n *channel.Node) func(int) (io.Closer, []byte) {
	return func(size int) (io.Closer, []byte) {
		m := must1(n.Alloc(size))
		return m, m.Bytes()
	}
}

// close frees everything that the work has made and that no rank uses any more.
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

// take returns memory of a kind, from the start of the buffer.
func (b *buffer) take(alloc func(int) (io.Closer, []byte), kind string, size int) []byte {
	if size <= len(b.bytes) && kind == b.kind {
		return b.bytes[:size:size]
	}
	if b.own != nil {
		must(b.own.Close())
	}
	*b = buffer{kind: kind}
	if kind == memoryHeap {
		b.bytes = make([]byte, max(size, 64<<10)) // from that size on it begins at a page
		return b.bytes[:size:size]
	}
	b.own, b.bytes = alloc(max(size, 1))
	return b.bytes[:size:size]
}

// defaultPort is the default port of --listen, and of a host to connect to.
const defaultPort = "18516"

// goodbye bounds how long the listening rank waits for the other one to leave.
const goodbye = 5 * time.Second

// meetOptions say how two processes meet without a launcher: one listens, and the other one is
// given its address. The latter is rank 0, and prints.
type meetOptions struct {
	listen string // address; empty: does not listen
	host   string // address of the listening process; empty: none
}

// hosts takes the host from the arguments of a command that two ranks can measure.
func (o *meetOptions) hosts(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// A name without a dot may also be a misspelled pattern.
	if len(args) > 1 || !strings.ContainsAny(args[0], ".:") && args[0] != "localhost" {
		return usagef("unknown command or argument %q; see %s --help; a host that listens is HOST:PORT", args[len(args)-1], cmd.CommandPath())
	}
	o.host = withPort(args[0])
	return nil
}

// withPort adds the default port to an address that has none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
}

// check rejects impossible options; o.listen may still lack its port.
func (o *meetOptions) check() {
	if o.listen != "" && o.host != "" {
		must(usagef("--listen and a host (%s) exclude each other", o.host))
	}
	if (o.listen != "" || o.host != "") && os.Getenv(boot.EnvRank) != "" {
		must(usagef("under a launcher, use neither --listen nor a host"))
	}
}

// meet makes this process one of two ranks if it listens, or has been given a host. The context
// that it returns is for joining; stop ends the rendezvous.
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

// endServer ends a rendezvous that this process serves. The other ranks also say goodbye to it;
// their errors are not reported here.
func endServer(s *boot.Server) {
	within, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = s.Wait(within)
	_ = s.Close()
}

// nearby returns an address at which this process reaches its own listener.
func nearby(a *net.TCPAddr) string {
	if !a.IP.IsUnspecified() {
		return a.String()
	}
	// A listener at all IPv6 addresses accepts IPv4 as well.
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: a.Port}).String()
}
