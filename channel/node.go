package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/verbs"
)

// Node is this process in a job (QMP's word for a rank). Its methods may be
// called from several goroutines at the same time.
type Node struct {
	job        *boot.Job
	rank, size int
	opt        options
	log        *slog.Logger
	life       context.Context // until Close
	end        context.CancelFunc
	wg         sync.WaitGroup

	providers []string           // in order of preference
	devices   []*device          // of this host
	networks  map[string]*device // by name and address; under mu
	memory    *device            // where Alloc's memory comes from; nil without one
	bellMR    *verbs.MR          // nil without one
	bell      *bell
	fenced    bool
	spins     int // of a waiter, before it yields
	listener  net.Listener
	addresses []address // by rank

	receives atomic.Pointer[[]*receiveStream] // what a waiter moves on
	ticks    atomic.Uint32                    // seconds since Join, for the ages of operations
	sleeps   atomic.Uint64                    // of waiters

	mu       sync.Mutex
	closed   bool
	peers    map[int]*peer
	memories []*Memory // ordered by address
	lastID   uint32
	handles  map[*Handle]struct{}
	starving []*sendStream
	kick     chan struct{}
}

type options struct {
	providers      []string
	connectTimeout time.Duration
	peerTimeout    time.Duration
	logger         *slog.Logger
	report         io.Writer
	stall          time.Duration
}

// Option is an option of [Join].
type Option func(*options)

// WithProviders names the providers to use, in this order, in place of all that
// are registered, by their preference. Import them, or verbs/all.
func WithProviders(names ...string) Option {
	return func(o *options) { o.providers = slices.Clone(names) }
}

// WithConnectTimeout bounds how long connecting to a peer may take. Zero: 30 s.
func WithConnectTimeout(d time.Duration) Option {
	return func(o *options) { o.connectTimeout = d }
}

// WithPeerTimeout bounds how long a silent peer is waited for
// ([verbs.Config].PeerTimeout). Zero: 10 s.
func WithPeerTimeout(d time.Duration) Option { return func(o *options) { o.peerTimeout = d } }

// WithLogger sets where goes what is worth knowing but no error of any call. Zero:
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithReport sets where the report of pending operations ([Node.Report]) goes when
// the process is sent SIGUSR1, and how long the node may make no progress, with
// operations pending, before it is written unasked. Zero: to standard error, and
// never.
func WithReport(w io.Writer, stall time.Duration) Option {
	return func(o *options) { o.report, o.stall = w, stall }
}

// DefaultConnectTimeout is how long connecting to a peer may take unless
// [WithConnectTimeout] says otherwise.
const DefaultConnectTimeout = 30 * time.Second

// Join makes this process a node of its job. All ranks of the job have to call
// it; it returns when they have. Connections are made when channels are declared.
//
// The Node belongs to the caller, who must Close it.
func Join(ctx context.Context, opts ...Option) (*Node, error) {
	job, err := boot.Join(ctx)
	if err != nil {
		return nil, nodeError("join", err)
	}
	return joinJob(ctx, job, opts...)
}

// joinJob makes a node of a rank of a job, which it owns from here on.
func joinJob(ctx context.Context, job *boot.Job, opts ...Option) (_ *Node, err error) {
	o := options{connectTimeout: DefaultConnectTimeout, peerTimeout: verbs.DefaultPeerTimeout, logger: slog.Default(), report: os.Stderr}
	for _, set := range opts {
		set(&o)
	}
	n := &Node{job: job, rank: job.Rank(), size: job.Size(), opt: o, log: o.logger.With("rank", job.Rank()),
		peers: map[int]*peer{}, networks: map[string]*device{}, handles: map[*Handle]struct{}{}, kick: make(chan struct{}, 1)}
	n.life, n.end = context.WithCancel(context.Background())
	n.receives.Store(new([]*receiveStream))
	n.fenced = !barriers()
	n.spins = spinBudget
	n.bell = (*bell)(unsafe.Pointer(unsafe.SliceData(alignedMemory(bellSize))))
	defer func() {
		if err != nil {
			err = nodeError("join", errors.Join(err, n.Close()))
		}
	}()
	if err := n.openDevices(); err != nil {
		return nil, err
	}
	if err := n.meet(ctx); err != nil {
		return nil, err
	}
	n.wg.Go(n.engine)
	n.wg.Go(n.watch)
	signals := notify() // before Join returns: the signal alone would kill
	n.wg.Go(func() { n.oversee(signals) })
	return n, nil
}

// openDevices opens what peers of this host are reached through; networks are
// opened when there is a peer for them. A job of one needs none.
func (n *Node) openDevices() error {
	if n.size > 1 {
		all, err := verbs.Devices()
		if err != nil {
			return err
		}
		for _, d := range all {
			if !slices.Contains(n.providers, d.Provider()) {
				n.providers = append(n.providers, d.Provider())
			}
		}
		if names := n.opt.providers; len(names) > 0 {
			for _, name := range names {
				if !slices.Contains(n.providers, name) {
					return fmt.Errorf("%w: provider %q has no device here; there are %q", ErrInvalid, name, n.providers)
				}
			}
			n.providers = names
		}
		for _, d := range all {
			if d.Netdev() != "" || !slices.Contains(n.providers, d.Provider()) {
				continue
			}
			dev, err := n.openDevice(d, "")
			if err != nil {
				n.log.Warn("channel: device not used", "device", d.Name(), "error", err)
				continue
			}
			n.devices = append(n.devices, dev)
		}
	}
	if i := slices.IndexFunc(n.devices, func(d *device) bool { return d.mapped }); i >= 0 {
		n.memory = n.devices[i]
		var err error
		if n.bellMR, err = n.memory.pd.AllocMR(bellSize, verbs.AccessAll); err != nil {
			return err
		}
		n.bell, err = viewBell(n.bellMR.Bytes())
		return err
	}
	return nil
}

// Rank is the number of this node in its job, from 0 to Size()-1.
func (n *Node) Rank() int { return n.rank }

// Size is the number of nodes of the job.
func (n *Node) Size() int { return n.size }

// LocalRank is the number of this node among those of its host, or -1 if the
// launcher has not told.
func (n *Node) LocalRank() int { return n.job.LocalRank() }

// Abort ends the whole job: its launcher returns code. The first Abort of a job
// counts. Every pending operation of every node fails with [ErrAborted]; what the
// process does then is its own matter.
func (n *Node) Abort(code int, why string) { n.job.Abort(code, why) }

// watch fails everything when the job is aborted.
func (n *Node) watch() {
	select {
	case <-n.life.Done():
	case <-n.job.Done():
		err := n.job.Err()
		if abort := (*boot.AbortError)(nil); !errors.As(err, &abort) {
			return // without the rendezvous the ranks go on
		}
		n.mu.Lock()
		peers := n.allPeers()
		n.mu.Unlock()
		for _, p := range peers {
			p.fail(fmt.Errorf("%w: %w", ErrAborted, err))
		}
	}
}

func (n *Node) allPeers() []*peer {
	list := make([]*peer, 0, len(n.peers))
	for _, p := range n.peers {
		list = append(list, p)
	}
	return list
}

// peer returns the peer of a rank, made if need be.
func (n *Node) peer(rank int) (*peer, error) {
	if rank < 0 || rank >= n.size {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrInvalid, rank, n.size)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	p := n.peers[rank]
	if p == nil {
		p = &peer{node: n, rank: rank, bell: n.bell, fenced: true, sends: map[uint32]*sendStream{}, receives: map[uint32]*receiveStream{},
			layouts: map[uint32]*remoteLayout{}, handles: map[*Handle]struct{}{}, wake: make(chan struct{}, 1), served: make(chan struct{})}
		if rank == n.rank {
			p.state.Store(peerUp)
		}
		n.peers[rank] = p
	}
	return p, nil
}

// sleepers is the number of those that wait for the bell.
func (n *Node) sleepers() uint32 { return atomic.LoadUint32(&n.bell.sleepers) }

// kickEngines makes the engines of all networks look at once.
func (n *Node) kickEngines() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.networks {
		d.kick()
	}
}

func (n *Node) addReceive(s *receiveStream) {
	for {
		old := n.receives.Load()
		l := append(slices.Clone(*old), s)
		if n.receives.CompareAndSwap(old, &l) {
			return
		}
	}
}

// starve has the engine look after a stream whose sends wait for slots.
func (n *Node) starve(s *sendStream) {
	n.mu.Lock()
	if !slices.Contains(n.starving, s) {
		n.starving = append(n.starving, s)
	}
	n.mu.Unlock()
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// engineTick bounds how long a send waits for a slot that nobody announces.
const engineTick = time.Millisecond

// engine publishes what waits for slots while its user computes.
func (n *Node) engine() {
	for {
		select {
		case <-n.life.Done():
			return
		case <-n.kick:
		}
		for n.life.Err() == nil {
			n.mu.Lock()
			streams := slices.Clone(n.starving)
			n.mu.Unlock()
			if len(streams) == 0 {
				break
			}
			v := atomic.LoadUint32(&n.bell.word)
			atomic.AddUint32(&n.bell.sleepers, 1)
			barrier()
			for _, s := range streams {
				s.lock.lock()
				s.flush()
				if len(s.pending) == 0 || s.peer.state.Load() >= peerFailed {
					n.mu.Lock()
					n.starving = slices.DeleteFunc(n.starving, func(o *sendStream) bool { return o == s })
					n.mu.Unlock()
				}
				s.lock.unlock()
			}
			sleepOn(&n.bell.word, v, engineTick)
			atomic.AddUint32(&n.bell.sleepers, ^uint32(0))
		}
	}
}

// Close leaves the job. Sends that are complete arrive; of others nothing more is
// moved, and their peers' operations end with [ErrPeerLeft]. Active handles are
// given up; a copy that a peer has begun is waited for, at most for the peer
// timeout. If that passes the error is [ErrBusy], for each such handle: the node is
// closed, and the peer may still write to what was its memory, which is never used
// again. Memory of Alloc is gone afterwards.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	peers := n.allPeers()
	handles := make([]*Handle, 0, len(n.handles))
	for h := range n.handles {
		handles = append(handles, h)
	}
	n.mu.Unlock()

	var errs []error
	for _, h := range handles {
		errs = append(errs, h.withdraw())
	}
	for _, p := range peers {
		p.leave()
	}
	ctx, cancel := context.WithTimeout(n.life, goodbyeTime)
	for _, p := range peers {
		p.part(ctx)
	}
	cancel()
	n.end()
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	n.bell.strike()
	n.wg.Wait()
	n.receives.Store(new([]*receiveStream))
	for _, h := range handles {
		h.giveUp()
		h.pins.Unpin()
	}
	for _, d := range slices.AppendSeq(n.devices, maps.Values(n.networks)) {
		errs = append(errs, d.ctx.Close())
	}
	return errors.Join(append(errs, n.job.Close())...)
}
