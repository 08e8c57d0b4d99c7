package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/coll/shared"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Group is an ordered set of ranks that perform collectives together: all ranks of a
// job ([Node.World]) or some of them ([Group.Split]). The members are numbered from 0
// to Size()-1; operations use these numbers as ranks.
//
// Collectives of different groups may be in progress at the same time, also in
// different goroutines. Only one goroutine at a time may use one group; a second one
// gets [ErrActive].
//
// If a collective fails after it has begun, the group is unusable: at all members the
// collective in progress and every later call return the error. Until Close has returned, do not touch
// the memory of operations between hosts that were declared, or that were passed to Run
// with more than 4 MiB or with a [UserReduction]: messages may still be in flight in
// it.
type Group struct {
	node   *Node
	id     uint64
	ranks  []int // of the job, by member
	me     int
	stream uint32 // of messages between hosts

	place  *coll.Placement
	team   *shared.Team // of the members of this host
	host   *hostCarrier
	local  []int // members of this host, in order
	policy *wait.Policy

	inside   uint32 // a goroutine is in a call
	fault    atomic.Pointer[error]
	splits   uint64 // groups made from this one
	started  uint64 // collectives
	active   []*Collective
	recalled recalled             // of Run, if all members are on one host
	kept     map[string]*keptCall // of Run otherwise
	keptSize int                  // bytes of memory that these take
	age      uint64               // of kept calls
	keyRoom  []byte
	sums     atomic.Pointer[exactSums] // of SumExact
	memory   *Memory                   // of the segment; nil: the heap
	told     atomic.Bool               // the others know of fault
	closed   atomic.Bool
	ended    chan struct{}           // closed when Close has finished
	slept    []*Collective           // that its goroutine slept for last
	waits    atomic.Pointer[waiting] // what a goroutine sleeps for; nil: nothing
	calls    [64]callRecord          // the last collectives, by their number
	mu       sync.Mutex
	members  map[*Collective]struct{} // declared
}

// World returns the group of all ranks, in rank order. All ranks must call it. Later
// calls return the same group, which is closed with the node.
//
// World connects to the ranks of this host and takes 230 KiB to 0.9 MiB of memory. Errors: those
// of [Node.Exchange]; [ErrUnreachable] or another error that prevents connecting to a
// rank of this host; that of ctx. Once the group has failed, or the node knows that a
// rank has died, every call returns an [*Error] that names the first rank to fail and
// says why. Once the group is closed, every call returns [ErrClosed].
func (n *Node) World(ctx context.Context) (*Group, error) {
	const op = "world"
	select {
	case n.making <- struct{}{}: // another call may be in progress
		defer func() { <-n.making }()
	case <-ctx.Done():
		err := ctx.Err()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", ErrTimeout, err)
		}
		return nil, groupError(op, err)
	}
	if n.world == nil {
		ranks := make([]int, n.size)
		for i := range ranks {
			ranks[i] = i
		}
		call := n.begin(fmt.Sprintf("world of %d ranks", n.size))
		defer call.end()
		g, err := n.newGroup(ctx, call, worldID, ranks, func(data []byte) ([][]byte, error) { return n.exchange(ctx, data) })
		if err != nil {
			return nil, groupError(op, err)
		}
		n.world = g
	}
	n.world.lookForDead(op)
	if err := n.world.unusable(op); err != nil {
		return nil, err
	}
	return n.world, nil
}

// lookForDead fails the group if the node knows that a member has died, and says whether it did.
// A member that has left is no failure here: its collectives may all be complete.
func (g *Group) lookForDead(op string) bool {
	var dead error
	g.node.mu.Lock()
	for _, rank := range g.ranks {
		p := g.node.peers[rank].Load()
		if p == nil || p.state.Load() < peerFailed {
			continue
		}
		if err := *p.err.Load(); !errors.Is(err, ErrPeerLeft) && !errors.Is(err, ErrClosed) {
			dead = &Error{Op: op, Rank: rank, Stream: -1, Err: err}
			break
		}
	}
	g.node.mu.Unlock()
	if dead == nil {
		return false
	}
	g.fail(dead)
	return true
}

// worldID is the group of all ranks, in messages.
const worldID = 1

// unusable returns the error of an operation on a group that has failed or been closed, else
// nil.
func (g *Group) unusable(op string) error {
	f := g.fault.Load()
	switch {
	case g.node.closing.Load():
		return groupError(op, ErrClosed)
	case f != nil:
		return &Error{Op: op, Rank: g.culprit(*f), Stream: -1, Err: fmt.Errorf("the group has failed: %w", *f)}
	case g.closed.Load():
		return groupError(op, ErrClosed)
	}
	return nil
}

// groupError adds the operation to an error of a group, unless it has one.
func groupError(op string, err error) error {
	if e, ok := err.(*Error); ok && e.Op == anyCollective {
		named := *e
		named.Op = op
		return &named
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return nodeError(op, err)
}

// Rank returns the number of this rank in the group.
func (g *Group) Rank() int { return g.me }

// Size returns the number of ranks in the group.
func (g *Group) Size() int { return len(g.ranks) }

// Ranks returns the job ranks of the members, indexed by their number in the group.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// Split makes one group for each color, ordered by key, and for equal keys by rank in g
// (MPI_Comm_split). All members of g must call it. With a negative color, Split returns
// nil. The caller owns the group and must close it.
func (g *Group) Split(ctx context.Context, color, key int) (*Group, error) {
	const op = "split"
	call := g.node.begin(fmt.Sprintf("split of a group of %d", g.Size()))
	defer call.end()
	var mine [16]byte
	binary.BigEndian.PutUint64(mine[:], uint64(color))
	binary.BigEndian.PutUint64(mine[8:], uint64(key))
	all := make([]byte, len(mine)*g.Size())
	if err := g.Run(ctx, Allgather(all, mine[:])); err != nil {
		return nil, err
	}
	type member struct{ rank, key int }
	var list []member
	for i := range g.Size() {
		b := all[i*len(mine):]
		if int(binary.BigEndian.Uint64(b)) == color {
			list = append(list, member{g.ranks[i], int(binary.BigEndian.Uint64(b[8:]))})
		}
	}
	g.splits++
	stream, err := g.agree(ctx)
	if err != nil {
		return nil, groupError(op, err)
	}
	ranks := []int(nil)
	if color >= 0 {
		slices.SortStableFunc(list, func(a, b member) int { return cmp.Compare(a.key, b.key) })
		for _, m := range list {
			ranks = append(ranks, m.rank)
		}
	}
	h := fnv.New64a()
	binary.Write(h, binary.BigEndian, []uint64{g.id, g.splits, uint64(color)})
	made, err := g.node.newGroupOn(ctx, call, h.Sum64(), stream, ranks, func(data []byte) ([][]byte, error) {
		return g.allgather(ctx, data, ranks)
	})
	if made == nil {
		g.node.releaseStream(stream)
	}
	if err != nil {
		return nil, groupError(op, err)
	}
	if made != nil && made.lookForDead(op) {
		err := made.unusable(op)
		if e := made.Close(); e != nil {
			err = errors.Join(err, e)
		}
		return nil, err
	}
	return made, nil
}

// allgather collects data of the same length from all members, and returns that of ranks.
func (g *Group) allgather(ctx context.Context, data []byte, ranks []int) ([][]byte, error) {
	all := make([]byte, len(data)*g.Size())
	if err := g.Run(ctx, Allgather(all, data)); err != nil {
		return nil, err
	}
	list := make([][]byte, len(ranks))
	for i, r := range ranks {
		k := slices.Index(g.ranks, r)
		list[i] = all[k*len(data) : (k+1)*len(data)]
	}
	return list, nil
}

// Close ends the group at this rank. It waits, at most for the peer timeout, until the
// other members have finished the collectives that are complete here; members that
// arrive later still find what they need. If members on this host called different
// collectives, and no later collective reported that, it returns [ErrMismatch]. Declared
// collectives are closed; a collective in progress fails at all members. A concurrent Close returns when this one does;
// closing again does nothing. The world group is closed with the node.
//
// For a failed group, Close cancels the messages in flight and waits for every peer to
// confirm that it no longer accesses the memory of the operations. Peers confirm
// without help from their programs. When Close returns nil, the memory belongs to the
// caller again. [ErrBusy] means that a peer, such as a stopped process, did not confirm
// within the peer timeout: then do not touch the memory until the node is closed.
func (g *Group) Close() error {
	if !g.closed.CompareAndSwap(false, true) {
		<-g.ended
		return nil
	}
	defer close(g.ended)
	n := g.node
	n.sleepers.WakeAll() // wakes a goroutine that sleeps in a call
	wait.Until(context.Background(), g.tryEnter)
	defer g.exit()
	ctx, cancel := n.patience()
	defer cancel()
	err := g.quit(ctx)
	n.releaseStream(g.stream)
	n.mu.Lock()
	delete(n.groups, g.id)
	if len(n.groupsLeft) < maxGroupsLeft {
		n.groupsLeft[g.id] = struct{}{}
	}
	n.mu.Unlock()
	return err
}

// maxGroupsLeft bounds how many closed groups a node remembers.
const maxGroupsLeft = 1 << 16

// atQuiet, if a test has set it, is called each time that Close looks whether a member accesses the
// segment.
var atQuiet func(g *Group)

// quit ends what is in progress, and frees the resources of the group as soon as no member
// accesses them: the segment once all members have closed the group, within a second. If one
// accesses it when ctx ends, it stays until the node is closed.
func (g *Group) quit(ctx context.Context) error {
	if len(g.active) > 0 {
		g.failNow(ErrClosed)
	}
	g.passOn()
	g.settle(ctx)
	g.mu.Lock()
	declared := slices.Collect(maps.Keys(g.members))
	g.members = nil
	g.mu.Unlock()
	for _, k := range g.kept {
		declared = append(declared, k.c)
	}
	g.kept = nil
	errs := g.giveBack(ctx, declared)
	quiet := wait.Until(ctx, func() bool { // until no member accesses the segment
		if atQuiet != nil {
			atQuiet(g)
		}
		g.node.drive()
		return g.team.Quiet()
	})
	if m := g.team.Differ(); m != nil && g.fault.Load() == nil {
		err := g.teamError(m)
		if e := (*Error)(nil); errors.As(err, &e) {
			e.Op = "close group"
		}
		errs = append(errs, err)
	}
	g.team.Close()
	if quiet && g.memory != nil {
		g.node.mu.Lock()
		g.node.retiring = append(g.node.retiring, g)
		g.node.mu.Unlock()
		errs = append(errs, g.node.freeSegments())
	}
	return errors.Join(errs...)
}

// freeSegments frees the segments of closed groups that all other members have closed, too.
func (n *Node) freeSegments() error {
	n.mu.Lock()
	var unused []*Group
	n.retiring = slices.DeleteFunc(n.retiring, func(g *Group) bool {
		if !g.team.Unused() {
			return false
		}
		unused = append(unused, g)
		return true
	})
	n.mu.Unlock()
	var errs []error
	for _, g := range unused {
		errs = append(errs, g.memory.Close())
	}
	return errors.Join(errs...)
}

// giveBack frees what has been declared; in a failed group, it first ends what is in progress.
// A node that is being closed does that itself.
func (g *Group) giveBack(ctx context.Context, declared []*Collective) (errs []error) {
	settled := func() bool { return g.team == nil || g.team.Settled() }
	if g.node.call() != nil {
		if !settled() {
			errs = append(errs, groupError("close group", errAccessed))
		}
		return errs
	}
	defer g.node.calls.Done()
	var active []*Handle
	for _, c := range declared {
		active = slices.AppendSeq(active, c.activeHandles())
	}
	for _, h := range active {
		errs = append(errs, h.cancel(ctx))
	}
	errs = append(errs, g.closeStreams()...)
	if err := errors.Join(append(errs, g.awaitStreams(ctx, active))...); err != nil {
		return []error{err}
	}
	for _, h := range active {
		errs = append(errs, h.awaitReset(ctx, func() bool { return true }))
	}
	if !settled() {
		return append(errs, groupError("close group", errAccessed))
	}
	for _, c := range declared {
		errs = append(errs, c.free())
	}
	return errs
}

// tryEnter begins a call; false if another goroutine is in one.
func (g *Group) tryEnter() bool { return atomic.CompareAndSwapUint32(&g.inside, 0, 1) }

// enter begins a call; see exit.
func (g *Group) enter(op string, kind coll.Kind) error {
	entered := g.tryEnter()
	switch {
	case g.closed.Load() || g.node.closing.Load(): // the goroutine inside may be Close
		if entered {
			g.exit()
		}
		return groupError(op+kind.String(), ErrClosed)
	case !entered:
		return groupError(op+kind.String(), errShared)
	}
	return nil
}

func (g *Group) exit() { wait.StoreRelease32(&g.inside, 0) }

// agree finds a stream that is free at all members, and holds it, because other groups may be
// split at the same time. Each member proposes one, all take the largest, and then tell each
// other whether it was free.
func (g *Group) agree(ctx context.Context) (uint32, error) {
	n := g.node
	for least := uint32(MaxStream + 2); ; {
		var mine [8]byte
		binary.BigEndian.PutUint64(mine[:], uint64(n.freeStream(least)))
		all := make([]byte, len(mine)*g.Size())
		if err := g.Run(ctx, Allgather(all, mine[:])); err != nil {
			return 0, err
		}
		stream := uint64(0)
		for i := range g.Size() {
			stream = max(stream, binary.BigEndian.Uint64(all[i*len(mine):]))
		}
		if stream >= maxStreams {
			return 0, fmt.Errorf("%w: more than %d groups exist", ErrInvalid, maxStreams-MaxStream-1)
		}
		taken := n.takeStream(uint32(stream))
		free := []int32{0}
		if taken {
			free[0] = 1
		}
		err := g.Run(ctx, Allreduce(Min, free, free))
		if err == nil && free[0] == 1 {
			return uint32(stream), nil
		}
		if taken {
			n.releaseStream(uint32(stream))
		}
		if err != nil {
			return 0, err
		}
		least = uint32(stream) + 1
	}
}
