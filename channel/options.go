package channel

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/verbs"
)

type options struct {
	providers      []string
	source         string // of providers, where that is not the program: for errors
	devices        []string
	connect        verbs.ConnectAttr
	connectTimeout time.Duration
	peerTimeout    time.Duration
	logger         *slog.Logger
	report         io.Writer
	stall          time.Duration
	tuning         []string           // NAME=value
	coll           coll.Settings      // by tuning and environment
	routes                            // likewise
	hosts          func(rank int) int // in place of what hosts there are; nil: these
	exit           func(status int)   // ends the process when the job is aborted; nil: nothing does
}

// Option is an option of [Join].
type Option func(*options)

// WithProviders names the providers to use, in this order, in place of all that
// are registered, by their preference. Import them, or verbs/all. None: those of
// [EnvTransport], or all. One that is not registered or has no device here, or that
// is named twice, is [ErrInvalid]. Ranks may differ: two of them are connected
// through one that both use, in the order of the lower.
func WithProviders(names ...string) Option {
	return func(o *options) { o.providers = slices.Clone(names) }
}

// EnvTransport is the variable of the environment that names the providers to use
// where the program does not ([WithProviders]), in order and with commas between
// them: "ibv,tcp". One alone forces it. Towards a peer that looks as if it were on another
// host, those that only reach this one come last, so that one order does for all peers of a
// job: "shm,roce,tcp". Empty: as if it were not set; then a line of the file
// of [EnvTuningFile] counts. The errors are those of WithProviders, and name the variable.
const EnvTransport = "SLUICE_TRANSPORT"

// WithDevices names the RDMA devices that may be used, as libibverbs calls them, in
// order. None: all of them; first the one whose network interface has the local
// address of the connection between the two nodes, over which they agree on the rest,
// then the one nearest to the CPUs that the process may run on. In any case a port
// is passed over that is not active, or not of the peer's link layer. Of what is left
// each pair of a port here and one of the peer's is tried until one works, those of one
// subnet first, for half of the time for connecting at most ([WithConnectTimeout]). A
// device that is not there is not missed.
func WithDevices(names ...string) Option {
	return func(o *options) { o.devices = slices.Clone(names) }
}

// WithConnect says how queue pairs of RDMA devices connect: port, GID, partition key, service level,
// traffic class, path MTU, timeouts and retries. Each field that is zero is as without the
// option: the first active port; the GID of the address of the connection between the
// nodes, else the best; the active MTU, of both ports and as either rank has it here, the least; 6 retries; and a local ACK timeout with which a peer that does
// not answer is found dead within the time of [WithPeerTimeout], though not within
// less than a second. One out of range is [ErrInvalid], and so are access flags
// without what channels need.
func WithConnect(attr verbs.ConnectAttr) Option { return func(o *options) { o.connect = attr } }

// checkConnect says what is wrong with a.
func checkConnect(a *verbs.ConnectAttr) error {
	const needed = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	switch {
	case a.Port < 0 || a.Port > 255:
		return fmt.Errorf("%w: port %d", ErrInvalid, a.Port)
	case a.SGIDIndex < 0 || a.SGIDIndex > 255:
		return fmt.Errorf("%w: GID index %d", ErrInvalid, a.SGIDIndex)
	case a.Timeout > 31 || a.MinRNRTimer > 31:
		return fmt.Errorf("%w: code of a local ACK timeout %d, of an RNR timer %d, at most 31", ErrInvalid, a.Timeout, a.MinRNRTimer)
	case a.PathMTU > verbs.MTU4096:
		return fmt.Errorf("%w: code of a path MTU %d, at most %d", ErrInvalid, a.PathMTU, verbs.MTU4096)
	case a.ServiceLevel > 15:
		return fmt.Errorf("%w: service level %d, at most 15", ErrInvalid, a.ServiceLevel)
	case a.AccessFlags != 0 && a.AccessFlags&needed != needed:
		return fmt.Errorf("%w: access %v, channels need %v", ErrInvalid, a.AccessFlags, needed)
	}
	return nil
}

// WithConnectTimeout bounds how long connecting to a peer may take. Zero:
// [DefaultConnectTimeout]. A negative one is [ErrInvalid].
func WithConnectTimeout(d time.Duration) Option {
	return func(o *options) { o.connectTimeout = d }
}

// WithPeerTimeout bounds how long a silent peer is waited for
// ([verbs.Config].PeerTimeout). Zero: [verbs.DefaultPeerTimeout]. A negative one is
// [ErrInvalid].
func WithPeerTimeout(d time.Duration) Option { return func(o *options) { o.peerTimeout = d } }

// WithLogger sets where goes what is worth knowing but no error of any call. Nil:
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithReport sets where the report of pending operations ([Node.Report]) goes when
// the process is sent SIGUSR1, and how long the node may make no progress, with
// operations pending, before it is written unasked; it looks once a second. Nil: to
// standard error. Zero: never; a negative time is [ErrInvalid].
func WithReport(w io.Writer, stall time.Duration) Option {
	return func(o *options) { o.report, o.stall = w, stall }
}

// WithTuning sets the crossovers of collectives and of messages between hosts: each is NAME=value of a variable of
// the environment, which it overrides, as it does those of a file ([EnvTuningFile];
// docs/collectives.md has those of collectives, [EnvEagerTCP] and what follows it are the others). All ranks
// must have the same: [Join] fails where they differ. None: COLL_XSIZE is 1024,
// COLL_MAXLINEAR 4, and what follows from these. One that is not known or out of range is [ErrInvalid].
func WithTuning(settings ...string) Option {
	return func(o *options) { o.tuning = slices.Clone(settings) }
}

// tune reads the settings; file are those of a file.
func (o *options) tune(file map[string]string) error {
	given := map[string]string{}
	for _, s := range o.tuning {
		name, value, ok := strings.Cut(s, "=")
		if !ok || !slices.Contains(settings(), name) {
			return fmt.Errorf("%w: setting %q; there are %q", ErrInvalid, s, settings())
		}
		given[name] = value
	}
	get := func(name string) string {
		if v, ok := given[name]; ok {
			return v
		}
		return cmp.Or(os.Getenv(name), file[name])
	}
	var err error
	if o.coll, err = coll.ParseSettings(get); err == nil {
		o.routes, err = parseRoutes(get)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// newOptions applies opts to the defaults.
func newOptions(opts []Option) (options, error) {
	var o options
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"connect timeout", o.connectTimeout}, {"peer timeout", o.peerTimeout}, {"time without progress", o.stall}} {
		if d.value < 0 {
			return o, fmt.Errorf("%w: %s of %v", ErrInvalid, d.name, d.value)
		}
	}
	if err := checkConnect(&o.connect); err != nil {
		return o, err
	}
	file, err := readTuningFile(os.Getenv(EnvTuningFile))
	if err != nil {
		return o, err
	}
	if value := cmp.Or(os.Getenv(EnvTransport), file[EnvTransport]); len(o.providers) == 0 && value != "" {
		o.source = fmt.Sprintf("%s=%q: ", EnvTransport, value)
		for name := range strings.SplitSeq(value, ",") {
			o.providers = append(o.providers, strings.TrimSpace(name))
		}
	}
	for i, name := range o.providers {
		if slices.Contains(o.providers[:i], name) {
			return o, fmt.Errorf("%w: %sprovider %q twice", ErrInvalid, o.source, name)
		}
	}
	if err := o.tune(file); err != nil {
		return o, err
	}
	o.connectTimeout = cmp.Or(o.connectTimeout, DefaultConnectTimeout)
	o.peerTimeout = cmp.Or(o.peerTimeout, verbs.DefaultPeerTimeout)
	o.logger = cmp.Or(o.logger, slog.Default())
	if o.report == nil {
		o.report = os.Stderr
	}
	return o, nil
}

// DefaultConnectTimeout is how long connecting to a peer may take unless
// [WithConnectTimeout] says otherwise.
const DefaultConnectTimeout = 30 * time.Second
