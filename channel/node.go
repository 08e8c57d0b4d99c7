package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/machine"
	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/internal/report"
	"github.com/sluice-hpc/sluice/internal/wait"
	"github.com/sluice-hpc/sluice/verbs"
)

// Node is this process as a member of its job (QMP's word for a rank). Its methods may
// be called concurrently.
type Node struct {
	job        *boot.Job
	rank, size int
	opt        options
	log        *slog.Logger
	life       context.Context // until Close has told the peers
	end        context.CancelFunc
	open       context.Context // until Close begins; the cause is ErrClosed then
	shut       context.CancelCauseFunc
	wg         sync.WaitGroup

	providers []string                  // in order of preference
	devices   []*device                 // of this host
	unopened  map[string]error          // why a device of this host could not be opened, by provider
	opening   sync.Mutex                // of networks
	networks  []*device                 // opened for peers; under opening
	engines   atomic.Pointer[[]*device] // the same
	memory    *device                   // where Alloc's memory comes from; nil without one
	bellMR    *verbs.MR                 // nil without one
	bell      *wait.Bell
	sleepers  *wait.Sleepers // that it wakes
	fenced    bool
	ranks     machine.Population // of this machine, once they have met
	cpus      *wait.CPUs         // that these share
	policy    *wait.Policy       // for messages
	listener  net.Listener
	addresses []address // by rank

	receives atomic.Pointer[[]*receiveStream] // on which a waiter makes progress
	pipes    atomic.Pointer[[]*sendStream]    // likewise
	piped    atomic.Int64                     // bytes of their pipes
	driven   atomic.Uint32                    // of both: which are next
	guarded  uint32                           // before using a handle, check closing or fence
	closing  atomic.Bool
	ticks    atomic.Uint32 // seconds since Join, for the ages of operations
	sleeps   atomic.Uint64 // of waiters
	severals sync.Pool     // of *several
	herald   *herald
	mute     atomic.Uint32 // how often a message has needed what rings no bell when it comes

	unwritten due           // control messages wait for their writer
	lacking   due           // a message waits for a layout, which a reader has to read
	heard     chan struct{} // capacity 1: a control message has been read

	closeErr error // when ended is closed

	peers    []atomic.Pointer[peer] // by rank; made under mu
	memories memory.Index[Memory]   // of Alloc, of this node and of others in the process
	joining  sync.Mutex             // of memory of others; taken before mu
	parted   chan struct{}          // closed when Close has ended the use of that

	calls       sync.WaitGroup // that Close waits for; begun under mu
	mu          sync.Mutex
	closed      bool
	ended       chan struct{} // of Close
	groups      map[uint64]*Group
	streams     map[uint32]int      // uses of each stream that a group has, or that remains of one
	earlyFaults map[uint64]error    // of groups that do not exist here yet
	groupsLeft  map[uint64]struct{} // groups that have been closed
	retiring    []*Group            // of them, those whose segments other members may still read
	over        error               // the job was aborted
	silent      silence
	lastID      uint32
	resting     []restingStream // the oldest first, each once
	astray      []*Handle       // of messages used once that were not complete when their callers left
	handles     map[*Handle]struct{}
	onces       map[*Handle]struct{}      // of them, those for messages used once
	oncesUsed   int                       // so many of these may be in use
	sparing     sync.Mutex                // held by closeSpares
	calling     map[*pendingCall]struct{} // for reports
	multiples   map[*Handle]struct{}
	starving    []*sendStream
	served      map[*sendStream]*served // whose pipes the engine serves
	kick        chan struct{}

	making chan struct{} // holds one while world is made or checked
	world  *Group
}

// Join makes this process a node of its job. All ranks of the job must call it; it
// returns when they have. Connections are made later, when channels are declared.
//
// The caller owns the Node and must close it. Under a launcher, a second Join while it is open is an error.
//
// A rank that waits says so through its logger ([WithLogger]), after 3, 10 and 30 s and then each
// minute, with what keeps it; of ranks that wait for others, the lowest does. Join ends after a time
// ([WithJoinTimeout]), with an error that names the ranks that are missing.
//
// Errors: an [*Error] that wraps [ErrInvalid] for a bad option, or if the job has several ranks and the
// program imports no provider (see the package comment); one about the environment, the launcher or the
// rendezvous, for which there is no value to test; or that of ctx. A rank that cannot join for such a
// reason tells the others: their Join fails, too, and names the rank and the reason. So it does if two
// processes have the same rank, or if a rank has another size, version or tuning than the others. A process that
// does not know the secret of the job ends no rank; that it was refused is said with the wait.
func Join(ctx context.Context, opts ...Option) (*Node, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, nodeError("join", errors.Join(err, excuse(ctx, o.logger, err)))
	}
	within, cancel := ctx, context.CancelFunc(func() {})
	if o.joinTimeout < math.MaxInt64 {
		within, cancel = wait.Patience(ctx, o.joinTimeout)
	}
	defer cancel()
	job, err := boot.Join(boot.WithTimeout(boot.WithLogger(within, o.logger), o.joinTimeout, o.joinGiven))
	if err != nil {
		err = nodeError("join", limits.Files(err))
	}
	var n *Node
	if err == nil {
		n, err = joinJob(within, job, append(slices.Clone(opts), func(o *options) { o.exit = os.Exit })...)
	}
	e, culprit, refused := (*Error)(nil), (*boot.RankError)(nil), (*boot.RefusedError)(nil)
	switch {
	case !errors.As(err, &e):
	case errors.As(err, &culprit):
		e.Rank = culprit.Rank
	case errors.As(err, &refused):
		e.Rank = refused.Rank
	}
	if e != nil && ctx.Err() == nil && within.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		e.Err = fmt.Errorf("waited for %v (%s): %w", o.joinTimeout, EnvJoinTimeout, e.Err)
	}
	return n, err
}

// excusePatience bounds the time that a rank takes to tell the others why it cannot join them.
const excusePatience = 3 * time.Second

// excuse joins the job for no longer than it takes to tell the other ranks why this one cannot.
func excuse(ctx context.Context, log *slog.Logger, why error) error {
	log = cmp.Or(log, slog.Default())
	ctx, cancel := wait.Patience(ctx, excusePatience)
	defer cancel()
	job, err := boot.Join(boot.WithLogger(ctx, log))
	if err != nil {
		return nil // why is the reason to return
	}
	if job.Size() > 1 {
		log.Error("channel: this rank cannot join the job", "rank", job.Rank(), "error", why) // Close may wait for others
		job.Fail(why)
	}
	return job.Close()
}

// joinJob makes a node from a rank of a job, and takes ownership of the job.
func joinJob(ctx context.Context, job *boot.Job, opts ...Option) (_ *Node, err error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, nodeError("join", errors.Join(err, job.Close()))
	}
	n := &Node{making: make(chan struct{}, 1), parted: make(chan struct{}), heard: make(chan struct{}, 1), job: job, rank: job.Rank(), size: job.Size(), opt: o, log: o.logger.With("rank", job.Rank()),
		unopened: map[string]error{}, peers: make([]atomic.Pointer[peer], job.Size()), served: map[*sendStream]*served{}, multiples: map[*Handle]struct{}{}, handles: map[*Handle]struct{}{}, onces: map[*Handle]struct{}{}, calling: map[*pendingCall]struct{}{},
		groups: map[uint64]*Group{}, streams: map[uint32]int{}, earlyFaults: map[uint64]error{}, groupsLeft: map[uint64]struct{}{}, kick: make(chan struct{}, 1)}
	n.life, n.end = context.WithCancel(context.Background())
	n.open, n.shut = context.WithCancelCause(context.Background())
	n.receives.Store(new([]*receiveStream))
	n.pipes.Store(new([]*sendStream))
	n.engines.Store(new([]*device))
	if n.fenced = wait.RegisterBarrier() != nil; n.fenced {
		n.guarded = 1
	}
	n.ranks = machine.Population{machine.Self()}
	n.cpus = wait.NewCPUs(n.ranks.Sharing)
	n.policy = wait.NewPolicy(o.waits, looks, n.cpus)
	n.setHerald()
	n.setBell((*wait.Bell)(unsafe.Pointer(unsafe.SliceData(alignedMemory(bellSize)))))
	defer func() {
		if err != nil {
			err = nodeError("join", limits.Files(errors.Join(err, n.Close())))
		}
	}()
	if err := n.openDevices(); err != nil {
		job.Fail(limits.Files(err))
		return nil, err
	}
	if err := n.meet(ctx); err != nil {
		return nil, err
	}
	n.wg.Go(n.engine)
	n.wg.Go(n.watch)
	signals := report.Notify() // before Join returns: the signal alone would kill
	n.wg.Go(func() { n.oversee(signals) })
	memory.Enter(user{n})
	return n, nil
}

// openDevices opens the devices that reach peers on this host; networks are opened when a peer
// needs them. A job of one rank needs none.
func (n *Node) openDevices() error {
	if n.size > 1 {
		if len(verbs.Providers()) == 0 {
			return fmt.Errorf(`%w: this program links no provider: import _ "github.com/sluice-hpc/sluice/verbs/all", or the providers that it needs`, ErrInvalid)
		}
		all, err := verbs.Devices()
		switch {
		case err != nil && len(all) == 0:
			return err
		case err != nil:
			n.log.Warn("channel: cannot list all devices", "error", limits.Files(err))
		}
		for _, d := range all {
			if d.OnRequest() && !slices.Contains(n.opt.providers, d.Provider()) {
				continue
			}
			if !slices.Contains(n.providers, d.Provider()) {
				n.providers = append(n.providers, d.Provider())
			}
		}
		if names := n.opt.providers; len(names) > 0 {
			for _, name := range names {
				if !slices.Contains(n.providers, name) {
					return fmt.Errorf("%w: %sprovider %q has no device here%s; usable here: %s; 'sluice info' says why others are not", ErrInvalid, n.opt.source, name, unavailable(name), strings.Join(n.providers, ", "))
				}
			}
			n.providers = names
		}
		rdma := rdmadev.Devices()
		for _, d := range all {
			if d.Netdev() != "" || slices.Contains(rdma, d.Name()) || !slices.Contains(n.providers, d.Provider()) {
				continue
			}
			dev, err := n.openDevice(port{Device: d})
			if err != nil {
				err = limits.Files(err)
				n.log.Warn("channel: cannot open device", "device", d.Name(), "error", err)
				n.unopened[d.Provider()] = err
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
		b, err := viewBell(n.bellMR.Bytes())
		if err != nil {
			return err
		}
		n.setBell(b)
	}
	return nil
}

// unavailable says why a registered provider has no device, in brackets.
func unavailable(provider string) string {
	if provider == "" {
		return " (an empty name: is there a comma too many?)"
	}
	for _, p := range verbs.Providers() {
		switch {
		case p.Name != provider:
			continue
		case p.Probe.Reason == "":
			return ""
		}
		return fmt.Sprintf(" (%s)", p.Probe.Reason)
	}
	return " (this program links no provider of that name)"
}

// Rank returns the number of this node in its job, from 0 to Size()-1.
func (n *Node) Rank() int { return n.rank }

// Size returns the number of nodes in the job.
func (n *Node) Size() int { return n.size }

// LocalRank returns the number of this node among those of its host, or -1 if the
// launcher does not provide it.
func (n *Node) LocalRank() int { return n.job.LocalRank() }

// Done returns a channel that is closed when Close begins.
func (n *Node) Done() <-chan struct{} { return n.open.Done() }

// Abort ends the whole job, whatever its ranks are doing. It tells every rank: all
// pending and later operations fail with [ErrAborted], and a process that has not
// closed its node within a second exits with status code (the lower eight bits; 1 if
// they are zero). That includes this process. Only the first Abort of a job counts.
// Abort returns when the rendezvous has got the message, or after 5 s.
//
// A launcher that supports it gets a message, too, and may kill this process before Abort
// returns; docs/launchers.md lists the exit status of each. If rank 0 ran the
// rendezvous and has left the job, only this process ends, and its peers see it die.
func (n *Node) Abort(code int, why string) { n.job.Abort(code, why) }

// abortGrace is the time that a process has to close its node when the job has been aborted. It
// is shorter than the grace of boot, after which launchers kill processes and return another
// code.
const abortGrace = time.Second

// watch fails everything when the job is aborted or has lost its rendezvous, and ends the process if
// it does not leave.
func (n *Node) watch() {
	select {
	case <-n.life.Done():
		return
	case <-n.job.Done():
	}
	err, code := n.job.Err(), 1
	abort, rank0 := (*boot.AbortError)(nil), (*boot.RankError)(nil)
	switch {
	case errors.As(err, &abort):
		code = cmp.Or(abort.Code&0xff, 1)
	case !errors.Is(err, boot.ErrServerLost), errors.As(err, &rank0), n.opt.outlive:
		return
	}
	err = fmt.Errorf("%w: %w", ErrAborted, err)
	n.mu.Lock()
	n.over = err
	peers := n.allPeers()
	n.mu.Unlock()
	for _, p := range peers {
		p.end(err) // peers not told yet must not take this rank for dead
	}
	if n.opt.exit == nil {
		return
	}
	grace := time.NewTimer(abortGrace)
	defer grace.Stop()
	select {
	case <-n.life.Done():
	case <-grace.C:
		n.log.Error("channel: terminating the process because the job is over", "error", err)
		n.opt.exit(code)
	}
}

// Gone returns why a rank is no longer there, as far as the rendezvous knows: an error that wraps
// [ErrPeerLeft] or [ErrPeerDied]. It returns nil if the rank is there or has not come yet, and if the
// rendezvous does not answer before ctx ends; if there is no rendezvous to ask any more, that is
// [ErrUnreachable]. A rank outside the job is [ErrInvalid]. If this node is closed, or is being closed, it
// returns [ErrClosed]. Any number of goroutines may call it.
func (n *Node) Gone(ctx context.Context, rank int) error {
	if rank < 0 || rank >= n.size {
		return n.noRank(rank)
	}
	ctx, cancel := n.whileOpen(ctx)
	defer cancel()
	gone := n.gone(ctx, rank)
	if n.closing.Load() {
		return nodeError("ask what became of a rank", ErrClosed)
	}
	return gone
}

// gone is Gone, also while the node is being closed.
func (n *Node) gone(ctx context.Context, rank int) error {
	switch gone := n.job.Gone(ctx, rank); {
	case gone == nil:
		return nil
	case errors.Is(gone, boot.ErrLeft):
		return named(gone)
	case errors.Is(gone, boot.ErrUnknown):
		return fmt.Errorf("%w: rank %d: %w", ErrUnreachable, rank, gone)
	default:
		return fmt.Errorf("%w: %w", ErrPeerDied, gone)
	}
}

func (n *Node) allPeers() []*peer {
	var list []*peer
	for i := range n.peers {
		if p := n.peers[i].Load(); p != nil {
			list = append(list, p)
		}
	}
	return list
}

// noRank is the error for a rank outside the job.
func (n *Node) noRank(rank int) error {
	return fmt.Errorf("%w: there is no rank %d in a job of %d: want 0 to %d", ErrInvalid, rank, n.size, n.size-1)
}

// peer returns the peer of a rank, making it if needed.
func (n *Node) peer(rank int) (*peer, error) {
	if rank < 0 || rank >= n.size {
		return nil, n.noRank(rank)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrClosed
	}
	p := n.peers[rank].Load()
	if p == nil {
		p = &peer{node: n, rank: rank, bell: ringer{bell: n.bell}, fenced: true, sends: map[uint32]*sendStream{}, receives: map[uint32]*receiveStream{},
			layouts: map[uint32]*remoteLayout{}, closed: map[uint32]*streamMemory{}, resting: map[uint32]uint32{}, had: map[uint32]had{}, heard: map[uint32]struct{}{}, handles: map[*Handle]struct{}{}, wake: make(chan struct{}, 1), met: make(chan struct{}), served: make(chan struct{})}
		switch {
		case n.over != nil:
			p.err.Store(&n.over)
			p.state.Store(peerFailed)
		case rank == n.rank:
			p.state.Store(peerUp)
		}
		n.peers[rank].Store(p)
	}
	return p, nil
}

// call begins a call that Close waits for, so that its resources stay valid. The caller ends it
// with calls.Done.
func (n *Node) call() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	n.calls.Add(1)
	return nil
}

// whileOpen returns a context that ends with ctx, or when Close begins, with [ErrClosed]
// as its cause. The caller ends it.
func (n *Node) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(n.open, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// kickEngines wakes the engines of all networks at once.
func (n *Node) kickEngines() {
	for _, d := range *n.engines.Load() {
		d.kick()
	}
}

// appendTo adds to a list that is read without a lock.
func appendTo[S any](list *atomic.Pointer[[]S], s S) {
	for {
		old := list.Load()
		l := append(slices.Clone(*old), s)
		if list.CompareAndSwap(old, &l) {
			return
		}
	}
}
