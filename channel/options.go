package channel

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

type options struct {
	providers      []string
	source         string // of providers if not set by the program, for errors
	devices        []string
	connect        verbs.ConnectAttr
	joinTimeout    time.Duration // of Join; 0: that of the environment, or the default
	joinGiven      bool          // by program or environment
	connectTimeout time.Duration
	warnAfter      time.Duration // of silence while connecting; 0: connectTimeout
	peerTimeout    time.Duration
	leaveTimeout   time.Duration // how long what ends waits for a peer: peerTimeout, but in tests
	logger         *slog.Logger
	report         io.Writer
	stall          time.Duration
	tuning         []string           // NAME=value
	coll           coll.Settings      // from tuning and environment
	routes                            // likewise
	hosts          func(rank int) int // overrides the hosts of ranks; nil: the real ones
	outlive        bool               // the rendezvous
	exit           func(status int)   // ends the process when the job is aborted; nil: do not
	wait           string             // set by the program
	waits          wait.Setting
}

// Option is an option of [Join].
type Option func(*options)

// WithProviders sets the providers to use and their order, in place of all registered
// ones in their order of preference. Import them, or verbs/all. Without names, those of
// [EnvTransport] are used, or all. A name that is not registered, has no device here,
// or occurs twice is [ErrInvalid]. Ranks may differ: two ranks connect through a
// provider that both use, in the order of the lower rank.
func WithProviders(names ...string) Option {
	return func(o *options) { o.providers = slices.Clone(names) }
}

// EnvTransport is the environment variable that names the providers to use if the
// program does not ([WithProviders]), in order and separated by commas: "ibv,tcp". A
// single name forces that provider. For a peer that appears to be on another host,
// providers that only work within a host are tried last, so that one order serves all
// peers of a job: "shm,roce,tcp". An empty value counts as unset; then the file named
// by [EnvTuningFile] may set it. Errors are those of WithProviders and name the
// variable.
const EnvTransport = "SLUICE_TRANSPORT"

// WithDevices sets the RDMA devices that may be used and their order, by their
// libibverbs names. Without names, all may be used: first the one whose network
// interface has the local address of the control connection between the two nodes, then
// the one nearest to the CPUs that the process may run on. Ports that are not active,
// or not of the peer's link layer, are skipped. Each pair of a remaining port here and
// one at the peer is tried until one works, pairs in the same subnet first, for at most
// half of the connect timeout ([WithConnectTimeout]). Names of missing devices are
// ignored.
func WithDevices(names ...string) Option {
	return func(o *options) { o.devices = slices.Clone(names) }
}

// WithConnect sets how queue pairs of RDMA devices connect: port, GID, partition key,
// service level, traffic class, path MTU, timeouts and retries. The default of each
// zero field is: the first active port; the GID of the address of the control
// connection, else the best one; as path MTU, the smallest of the active MTUs of both
// ports and of the MTUs that either rank sets here; 6 retries; a local ACK timeout with
// which a peer that does not answer is declared dead within the peer timeout
// ([WithPeerTimeout]), but not in less than a second. A value out of range, or access
// flags that lack what channels need, are [ErrInvalid].
func WithConnect(attr verbs.ConnectAttr) Option { return func(o *options) { o.connect = attr } }

// checkConnect returns an error if a field of a is out of range.
func checkConnect(a *verbs.ConnectAttr) error {
	const needed = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	switch {
	case a.Port < 0 || a.Port > 255:
		return fmt.Errorf("%w: port %d: want 1 to 255, or 0 for the first active one", ErrInvalid, a.Port)
	case a.SGIDIndex < 0 || a.SGIDIndex > 255:
		return fmt.Errorf("%w: GID index %d: want 0 to 255", ErrInvalid, a.SGIDIndex)
	case a.Timeout > 31 || a.MinRNRTimer > 31:
		return fmt.Errorf("%w: local ACK timeout code %d, RNR timer code %d, at most 31", ErrInvalid, a.Timeout, a.MinRNRTimer)
	case a.PathMTU > verbs.MTU4096:
		return fmt.Errorf("%w: path MTU code %d, at most %d", ErrInvalid, a.PathMTU, verbs.MTU4096)
	case a.ServiceLevel > 15:
		return fmt.Errorf("%w: service level %d, at most 15", ErrInvalid, a.ServiceLevel)
	case a.AccessFlags != 0 && a.AccessFlags&needed != needed:
		return fmt.Errorf("%w: access %v, channels need %v", ErrInvalid, a.AccessFlags, needed)
	}
	return nil
}

// EnvJoinTimeout is the environment variable that bounds [Join] if the program does not
// ([WithJoinTimeout]): a duration such as "90s", or "none" for no bound.
const EnvJoinTimeout = "SLUICE_JOIN_TIMEOUT"

// DefaultJoinTimeout bounds [Join] unless [WithJoinTimeout] or [EnvJoinTimeout] overrides it.
const DefaultJoinTimeout = 10 * time.Minute

// WithJoinTimeout bounds how long [Join] waits until all ranks of the job are there; only time counts in
// which this process runs. Zero means [EnvJoinTimeout], or else [DefaultJoinTimeout], of which a rank
// that does not find the rendezvous waits for two minutes, and under 'sluice run' for 30 s. A
// negative timeout is [ErrInvalid].
func WithJoinTimeout(d time.Duration) Option { return func(o *options) { o.joinTimeout = d } }

// boundJoin sets the bound of Join if the program does not: value is that of [EnvJoinTimeout].
func (o *options) boundJoin(value string) error {
	o.joinGiven = o.joinTimeout != 0 || value != ""
	switch {
	case o.joinTimeout != 0:
	case value == "":
		o.joinTimeout = DefaultJoinTimeout
	case value == "none":
		o.joinTimeout = math.MaxInt64
	default:
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("%w: %s=%q: want a duration such as 90s, or none", ErrInvalid, EnvJoinTimeout, value)
		}
		o.joinTimeout = d
	}
	return nil
}

// WithConnectTimeout bounds how long the addresses of a peer may take to accept a connection. A
// node waits for a peer that runs and does not answer, because a system call or the lack of a CPU
// holds it up, and logs a warning each time that the bound passes. Zero means
// [DefaultConnectTimeout]; a negative timeout is [ErrInvalid].
func WithConnectTimeout(d time.Duration) Option {
	return func(o *options) { o.connectTimeout = d }
}

// WithPeerTimeout bounds how long the node waits for a silent peer
// ([verbs.Config].PeerTimeout). Zero means [verbs.DefaultPeerTimeout]; a negative
// timeout is [ErrInvalid].
func WithPeerTimeout(d time.Duration) Option { return func(o *options) { o.peerTimeout = d } }

// WithOutlive keeps this rank running when its connection to the rendezvous breaks, for example
// because the launcher was killed. By default such a rank ends as after [Node.Abort], with
// status 1: the launcher can no longer end a rank that hangs. Where rank 0 runs the
// rendezvous, its death is that of a peer, and ends no other rank.
func WithOutlive() Option { return func(o *options) { o.outlive = true } }

// EnvWait is the environment variable that says how goroutines wait for messages and collectives, if
// the program does not ([WithWait]). Each rank has its own.
const EnvWait = "SLUICE_WAIT"

// WithWait sets how a goroutine waits: "spin" looks in a loop and keeps its CPU, "yield"
// gives its CPU to other processes between two looks, "sleep" sleeps until a message comes. With a
// duration, as in "spin:50us", a wait sleeps after it; without one, "spin" and "yield" do not end
// before the wait does. An empty text, the default, means [EnvWait], or else what fits: a wait spins
// for as long as earlier waits show that it pays, at most a millisecond; ranks that outnumber their
// CPUs yield to each other; then the wait sleeps. Other texts are [ErrInvalid].
func WithWait(how string) Option { return func(o *options) { o.wait = how } }

// WithLogger sets the logger for events that are not errors of any call. Nil means
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithReport sets where the report of pending operations ([Node.Report]) goes when the
// process receives SIGUSR1. It is also written when the node makes no progress for the
// time stall with operations pending, checked once a second. A nil w means standard
// error; a zero stall disables the check; a negative one is [ErrInvalid].
func WithReport(w io.Writer, stall time.Duration) Option {
	return func(o *options) { o.report, o.stall = w, stall }
}

// WithTuning sets the crossovers of collectives and of messages between hosts. Each
// setting is NAME=value, where NAME is an environment variable: docs/variables.md
// lists those of collectives, [EnvEagerTCP] and the constants after it are the others.
// A setting overrides the environment, which overrides a file ([EnvTuningFile]). All
// ranks must have the same settings; [Join] fails if they differ. By default COLL_XSIZE
// is 1024, COLL_MAXLINEAR is 4, and the rest is derived from these. A setting that is
// unknown or out of range is [ErrInvalid].
func WithTuning(settings ...string) Option {
	return func(o *options) { o.tuning = slices.Clone(settings) }
}

// tune parses the settings, of which env has those that the program does not make.
func (o *options) tune(env func(name string) string) error {
	given := map[string]string{}
	for _, s := range o.tuning {
		name, value, ok := strings.Cut(s, "=")
		if !ok || !slices.Contains(settingNames(), name) {
			return fmt.Errorf("%w: unknown setting %q; known settings: %q", ErrInvalid, s, settingNames())
		}
		given[name] = value
	}
	get := func(name string) string {
		if v, ok := given[name]; ok {
			return v
		}
		return env(name)
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
	}{{"join timeout", o.joinTimeout}, {"connect timeout", o.connectTimeout}, {"peer timeout", o.peerTimeout}, {"time without progress", o.stall}} {
		if d.value < 0 {
			return o, fmt.Errorf("%w: %s of %v: it must not be negative", ErrInvalid, d.name, d.value)
		}
	}
	if err := checkConnect(&o.connect); err != nil {
		return o, err
	}
	env, err := Environment()
	if err != nil {
		return o, err
	}
	if err := o.boundJoin(env(EnvJoinTimeout)); err != nil {
		return o, err
	}
	if value := env(EnvTransport); len(o.providers) == 0 && value != "" {
		o.source = fmt.Sprintf("%s=%q: ", EnvTransport, value)
		for name := range strings.SplitSeq(value, ",") {
			o.providers = append(o.providers, strings.TrimSpace(name))
		}
	}
	if o.waits, err = wait.SettingOf(o.wait, env(EnvWait)); err != nil {
		return o, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for i, name := range o.providers {
		if slices.Contains(o.providers[:i], name) {
			return o, fmt.Errorf("%w: %sprovider %q is named twice", ErrInvalid, o.source, name)
		}
	}
	if err := o.tune(env); err != nil {
		return o, err
	}
	o.connectTimeout = cmp.Or(o.connectTimeout, DefaultConnectTimeout)
	o.peerTimeout = cmp.Or(o.peerTimeout, verbs.DefaultPeerTimeout)
	o.leaveTimeout = o.peerTimeout
	o.logger = cmp.Or(o.logger, slog.Default())
	if o.report == nil {
		o.report = os.Stderr
	}
	return o, nil
}

// DefaultConnectTimeout bounds connecting to a peer unless [WithConnectTimeout]
// overrides it.
const DefaultConnectTimeout = 30 * time.Second
