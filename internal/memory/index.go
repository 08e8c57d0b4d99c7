// Package memory knows which blocks of memory have been allocated for messages.
package memory

import (
	"cmp"
	"iter"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-hpc/sluice/internal/span"
)

// Index is a set of blocks of memory that do not overlap, and of addresses that must not be used any more.
// They are found without a lock. Its methods may be called at the same time. The zero Index is empty.
type Index[T any] struct {
	from, to atomic.Uintptr // around all blocks and stale addresses, once and now
	leaves   atomic.Pointer[[]*leaf[T]]
	mu       sync.Mutex               // of changes
	stale    atomic.Pointer[span.Set] // a change copies it; nil: none
}

// leaf is some blocks, in order of their addresses, at least one. Neither leaves nor lists of them are
// changed: a change copies one of either, so that what a change copies grows with the blocks only by the
// list.
type leaf[T any] struct{ blocks []block[T] }

type block[T any] struct {
	span.Span
	of *T
}

// leafMost is the number of blocks at which a leaf is split.
const leafMost = 64

var pageSize = os.Getpagesize()

// Add adds a block, b, which is found as t. Its addresses, to the end of its last page, are no longer stale,
// and blocks that had some of them are removed: their owner has ended, and left them because a peer may
// still access their pages.
func (x *Index[T]) Add(b []byte, t *T) {
	s := span.Of(b)
	pages := s.Pages(pageSize)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.setStale(func(l *span.Set) { l.Remove(pages) })
	x.widen(pages)
	list := x.list()
	for l, i := last(list, s.To-1); l >= 0 && list[l].blocks[i].To > s.From; l, i = last(list, s.To-1) {
		list = without(list, l, i)
	}
	if len(list) == 0 {
		x.store([]*leaf[T]{{[]block[T]{{s, t}}}})
		return
	}
	l := max(leafOf(list, s.From), 0)
	i := before(list[l].blocks, s.From) + 1
	blocks := slices.Insert(slices.Clip(list[l].blocks), i, block[T]{s, t}) // a copy
	with := []*leaf[T]{{blocks}}
	if half := len(blocks) / 2; len(blocks) >= leafMost {
		with = []*leaf[T]{{blocks[:half:half]}, {blocks[half:]}}
	}
	x.store(slices.Concat(list[:l], with, list[l+1:]))
}

// Remove removes the block b. If stale, its pages must not be used until they are a block again.
func (x *Index[T]) Remove(b []byte, stale bool) {
	s := span.Of(b)
	x.mu.Lock()
	defer x.mu.Unlock()
	list := x.list()
	if l, i := last(list, s.From); l >= 0 && list[l].blocks[i].From == s.From {
		x.store(without(list, l, i))
	}
	if stale {
		x.spoil(s.Pages(pageSize))
	}
}

// Spoil makes the pages of b stale, whether they are a block or not.
func (x *Index[T]) Spoil(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spoil(span.Of(b).Pages(pageSize))
}

func (x *Index[T]) spoil(s span.Span) {
	x.widen(s)
	x.setStale(func(l *span.Set) { l.Add(s) })
}

// setStale changes a copy of the stale addresses. The caller holds the lock.
func (x *Index[T]) setStale(change func(*span.Set)) {
	var l span.Set
	if old := x.stale.Load(); old != nil {
		l = slices.Clone(*old)
	}
	if change(&l); len(l) == 0 {
		x.stale.Store(nil)
	} else {
		x.stale.Store(&l)
	}
}

// Find returns the block that b lies in; nil for none.
func (x *Index[T]) Find(b []byte) *T {
	s := span.Of(b)
	if s.From >= x.to.Load() || s.To <= x.from.Load() {
		return nil // as most memory of the heap
	}
	list := x.list()
	l, i := last(list, s.From)
	if l < 0 {
		return nil
	}
	if k := &list[l].blocks[i]; s.From < k.To && s.To <= k.To {
		return k.of
	}
	return nil
}

// Spoiled says whether any addresses are stale.
func (x *Index[T]) Spoiled() bool { return x.stale.Load() != nil }

// Stale says whether an address of b is stale.
func (x *Index[T]) Stale(b []byte) bool {
	l := x.stale.Load()
	if l == nil {
		return false
	}
	s := span.Of(b)
	return s.From < x.to.Load() && s.To > x.from.Load() && l.Meets(s)
}

// All returns the blocks as they are at this moment, in order of their addresses.
func (x *Index[T]) All() iter.Seq[*T] {
	list := x.list()
	return func(yield func(*T) bool) {
		for _, l := range list {
			for _, k := range l.blocks {
				if !yield(k.of) {
					return
				}
			}
		}
	}
}

// Len returns the number of blocks.
func (x *Index[T]) Len() (n int) {
	for _, l := range x.list() {
		n += len(l.blocks)
	}
	return n
}

func (x *Index[T]) list() []*leaf[T] {
	if p := x.leaves.Load(); p != nil {
		return *p
	}
	return nil
}

func (x *Index[T]) store(list []*leaf[T]) { x.leaves.Store(&list) }

func (x *Index[T]) widen(s span.Span) {
	if to := x.to.Load(); to == 0 || s.From < x.from.Load() {
		x.from.Store(s.From)
	}
	x.to.Store(max(x.to.Load(), s.To))
}

// without returns a copy of list that lacks block i of leaf l.
func without[T any](list []*leaf[T], l, i int) []*leaf[T] {
	var with []*leaf[T]
	if b := list[l].blocks; len(b) > 1 {
		with = []*leaf[T]{{slices.Concat(b[:i], b[i+1:])}}
	}
	return slices.Concat(list[:l], with, list[l+1:])
}

// last returns the leaf, and the place in it, of the last block that begins at or before p; -1 for none.
func last[T any](list []*leaf[T], p uintptr) (l, i int) {
	if l = leafOf(list, p); l >= 0 {
		i = before(list[l].blocks, p)
	}
	return l, i
}

// leafOf returns the last leaf that begins at or before p; -1 for none.
func leafOf[T any](list []*leaf[T], p uintptr) int {
	i, exact := slices.BinarySearchFunc(list, p, func(l *leaf[T], p uintptr) int { return cmp.Compare(l.blocks[0].From, p) })
	if exact {
		return i
	}
	return i - 1
}

// before returns the last block that begins at or before p; -1 for none.
func before[T any](blocks []block[T], p uintptr) int {
	i, exact := slices.BinarySearchFunc(blocks, p, func(k block[T], p uintptr) int { return cmp.Compare(k.From, p) })
	if exact {
		return i
	}
	return i - 1
}
