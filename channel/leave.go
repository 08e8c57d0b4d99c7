package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-hpc/sluice/internal/memory"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Close leaves the job. Completed sends are delivered; other messages stop, and the
// peers' operations fail with [ErrPeerLeft]. Active handles are cancelled; if a peer is
// already copying, Close waits for it, at most for the peer timeout. If that expires,
// Close returns [ErrBusy] for each such handle: the node is closed, and the peer may
// still write to the former memory, which is never reused. If it cancels sends to peers
// that are still connected, it returns [ErrActive], which names the first such send. Alloc memory
// is freed; see [Memory.Bytes]. Concurrent calls that wait for a peer, a rank or the rendezvous
// return [ErrClosed]. A concurrent Close returns when this one does, with its error;
// closing again does nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		select {
		case <-n.ended:
			return nil
		default:
		}
		<-n.ended
		return n.closeErr
	}
	n.closed, n.ended = true, make(chan struct{})
	n.mu.Unlock()
	defer close(n.ended)
	n.closing.Store(true) // waiting calls see it
	n.shut(ErrClosed)
	n.sleepers.WakeAll()
	n.closeErr = n.close()
	return n.closeErr
}

func (n *Node) close() error {
	n.calls.Wait()
	n.mu.Lock()
	for m := range n.memories.All() {
		m.closed.Store(true)
	}
	peers := n.allPeers()
	handles := make([]*Handle, 0, len(n.handles))
	for h := range n.handles {
		handles = append(handles, h)
	}
	slices.SortFunc(handles, func(a, b *Handle) int { return cmp.Compare(a.id, b.id) })
	multiples := maps.Clone(n.multiples)
	n.mu.Unlock()

	errs := n.closeGroups()
	n.endCalls(slices.AppendSeq(slices.Clone(handles), maps.Keys(multiples)))
	n.herald.end()
	errs = append(errs, n.leaveAll(peers, handles)...)
	ctx, cancel := wait.Patience(n.life, goodbyeTime)
	for _, p := range peers {
		p.hangUp(ctx)
	}
	cancel()
	n.end()
	if n.listener != nil {
		errs = append(errs, n.listener.Close())
	}
	n.wg.Wait()
	for _, h := range handles {
		h.retire()
	}
	stuck := n.partAll()
	if stuck != nil {
		errs = append(errs, nodeError("close", stuck))
	}
	used := map[*Memory]bool{} // by others in the process, that should have been closed first
	for m := range n.memories.All() {
		if m.others {
			continue
		}
		if err := m.shared.End(); err != nil {
			used[m] = true
			errs = append(errs, nodeError("close", fmt.Errorf("%w: memory of %d bytes is not freed: %w", ErrBusy, len(m.buf), err)))
		}
	}
	open := false
	for _, d := range slices.Concat(n.devices, n.networks) {
		err := d.close()
		errs, open = append(errs, err), open || err != nil
	}
	if stuck == nil {
		memory.Leave(user{n})
	}
	for m := range n.memories.All() {
		if m.free != nil && !open && !used[m] { // no device may access it
			errs = append(errs, m.free())
		}
	}
	return errors.Join(append(errs, n.job.Close())...)
}

// closeGroups ends the groups while the node still works.
func (n *Node) closeGroups() []error {
	n.mu.Lock()
	groups := slices.Collect(maps.Values(n.groups))
	n.mu.Unlock()
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = g.Close() })
	}
	wg.Wait()
	return errs
}

// endCalls ends the calls in progress and admits no more, because the memory that they access is
// about to be freed.
func (n *Node) endCalls(handles []*Handle) {
	atomic.StoreUint32(&n.guarded, 1)
	wait.Barrier()
	for _, h := range handles {
		wait.Until(context.Background(), func() bool {
			n.sleepers.WakeAll()
			return atomic.LoadUint32(&h.inside) == 0
		})
	}
}

// leaveAll withdraws all active handles and leaves all peers, concurrently, within the peer
// timeout.
func (n *Node) leaveAll(peers []*peer, handles []*Handle) []error {
	ctx, cancel := n.patience()
	defer cancel()
	byPeer := map[*peer][]int{}
	for i, h := range handles {
		byPeer[h.peer()] = append(byPeer[h.peer()], i)
	}
	errs := make([]error, len(handles), len(handles)+1)
	dropped := make([]bool, len(handles))
	var wg sync.WaitGroup
	for _, p := range peers {
		wg.Go(func() {
			for _, i := range byPeer[p] {
				dropped[i], errs[i] = handles[i].withdraw(ctx)
			}
			p.settle(ctx)
			there := p.state.Load() < peerFailed // while it does not know that this rank leaves
			for _, i := range byPeer[p] {
				dropped[i] = there && (dropped[i] || handles[i].unsent())
			}
			p.leave()
		})
	}
	wg.Wait()
	sends := 0
	var first error
	for i, h := range handles {
		if errs[i] != nil { // the peer is still copying
			for _, m := range append(slices.Clone(h.memories), h.lent) {
				n.keep(m, fmt.Errorf("%w: rank %d may still be copying it", ErrBusy, h.peer().rank))
			}
		}
		if dropped[i] {
			if sends++; sends == 1 {
				first = h.errorf("close", ErrActive)
			}
		}
	}
	if sends > 0 {
		errs = append(errs, nodeError("close", fmt.Errorf("sends not complete, and cancelled: %d; wait for sends before Close; the first: %w", sends, first)))
	}
	return errs
}

// unsent says whether a send is active whose message, as far as is known here, has not been received.
func (h *Handle) unsent() bool {
	if h.kind != kindSend || h.out.number > MaxStream { // the latter are those of groups
		return false
	}
	h.out.test(h)
	p := h.phase.Load()
	return p == phasePending || p == phaseOffered
}

// settle waits until a peer has what was sent to it.
func (p *peer) settle(ctx context.Context) {
	p.awaitWireUp(ctx)
	p.mu.Lock()
	q := p.queue
	p.mu.Unlock()
	if q != nil {
		p.drain(ctx, q)
	}
}

// leave sends goodbye to a connected peer, behind everything sent before.
func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.state.Load() == peerUp {
		p.bye = true
		p.tell(kindBye, nil)
	}
}

// awaitWireUp waits until a connection that is being made can carry queued messages and the
// goodbye: without them the peer would take this rank for dead. For the goodbye alone it does
// not wait for long.
func (p *peer) awaitWireUp(ctx context.Context) {
	goodbye, cancel := wait.Patience(context.Background(), goodbyeTime)
	defer cancel()
	wait.Until(context.Background(), func() bool { // over when both have ended
		p.mu.Lock()
		defer p.mu.Unlock()
		state := p.state.Load()
		met := p.conn != nil || p.offers > 0 || p.proved
		return state != peerConnecting && (state != peerIdle || !met) || (len(p.out) == 0 || ctx.Err() != nil) && (!met || goodbye.Err() != nil)
	})
}

// drain waits until the other side has acknowledged what was sent, the connection ends, or ctx does.
func (p *peer) drain(ctx context.Context, q *queue) {
	wait.Until(ctx, q.drained)
}

// patience returns a context that ends when peers have been waited for as long as the peer timeout.
func (n *Node) patience() (context.Context, context.CancelFunc) {
	return wait.Patience(context.Background(), n.opt.leaveTimeout)
}

// goodbyeTime bounds the wait for a running peer to read our goodbye.
var goodbyeTime = 2 * time.Second

// hangUp waits until the peer has read the goodbye, at most until ctx ends, and
// ends the connection.
func (p *peer) hangUp(ctx context.Context) {
	p.mu.Lock()
	bye := p.bye
	p.mu.Unlock()
	if bye {
		select {
		case <-p.served:
		case <-ctx.Done():
		}
	}
	p.fail(ErrClosed)
}

// withdraw cancels an active handle because the node is closing: a message that is not being
// copied is taken back; a copy in progress is waited for until ctx ends. An error says that the copy
// has not ended: the peer may go on accessing the pages that it has mapped, which are never
// reused. It reports whether a send was taken back.
func (h *Handle) withdraw(ctx context.Context) (dropped bool, err error) {
	m, k := h.withdrawable()
	if m == nil {
		return false, nil
	}
	p := h.peer()
	n, _ := chunks(h.shape.Len())
	if !wait.Until(ctx, func() bool {
		dropped = m.judge(k, verdictWithdrawn)
		return dropped || m.finished(k, n) || p.gone()
	}) {
		return false, h.errorf("close", fmt.Errorf("%w: the peer was still copying after %v; the memory will not be reused", ErrBusy, h.node.opt.leaveTimeout))
	}
	return dropped && h.kind == kindSend && h.out.number <= MaxStream, nil
}

// retire ends a handle whose node is closed. It is no longer in use.
func (h *Handle) retire() {
	defer h.lockStream()()
	h.setPhase(phaseClosed)
}

// withdrawable returns the match of an active handle whose message the other side may copy by
// itself, and the number of its start. Transfers through a queue end with its queue pair.
func (h *Handle) withdrawable() (*match, uint64) {
	defer h.lockStream()()
	switch {
	case h.kind == kindSend && h.out.q.Load() == nil && h.phase.Load() == phaseOffered:
		return &h.out.r.matches[h.k%ringSlots], h.k
	case h.kind == kindReceive && h.in.q.Load() == nil && h.phase.Load() == phaseWaiting && h.gated:
		return &h.in.r.Load().matches[h.k%ringSlots], h.k
	}
	return nil, 0
}
