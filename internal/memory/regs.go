package memory

import (
	"cmp"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
)

// Regs are the registrations, R, of a piece of memory with devices, D. They are found without a lock. The
// zero Regs is empty.
type Regs[D comparable, R io.Closer] struct {
	Size int         // of the memory
	Idle func() bool // no message uses the registrations; nil: they stay until Close

	list atomic.Pointer[[]reg[D, R]]
	last atomic.Uint64 // when one has been asked for
	mu   sync.Mutex    // of changes
}

type reg[D comparable, R io.Closer] struct {
	d D
	r R
}

// asked counts what has been asked for: the time of the least recently used.
var asked atomic.Uint64

func (g *Regs[D, R]) all() []reg[D, R] {
	if l := g.list.Load(); l != nil {
		return *l
	}
	return nil
}

// On returns the registration with a device, if there is one. The memory is not idle, then it stays.
func (g *Regs[D, R]) On(d D) (r R, ok bool) {
	g.last.Store(asked.Add(1))
	return g.on(d)
}

func (g *Regs[D, R]) on(d D) (r R, ok bool) {
	for _, x := range g.all() {
		if x.d == d {
			return x.r, true
		}
	}
	return r, false
}

// Len returns the number of registrations.
func (g *Regs[D, R]) Len() int { return len(g.all()) }

// Add returns the registration with a device, made by register if there is none.
func (g *Regs[D, R]) Add(d D, register func() (R, error)) (R, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.On(d); ok {
		return r, nil
	}
	r, err := register()
	if err == nil {
		list := append(slices.Clone(g.all()), reg[D, R]{d, r})
		g.list.Store(&list)
	}
	return r, err
}

// Close closes all, the last first. Those that cannot be closed stay.
func (g *Regs[D, R]) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	var stay []reg[D, R]
	for _, x := range slices.Backward(g.all()) {
		if err := x.r.Close(); err != nil {
			errs, stay = append(errs, err), append(stay, x)
		}
	}
	g.list.Store(&stay)
	return errors.Join(errs...)
}

// drop closes the registration with a device if it is idle, and says whether it has.
func (g *Regs[D, R]) drop(d D) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.on(d)
	if !ok {
		return false, nil
	}
	before := g.list.Load()
	list := slices.DeleteFunc(slices.Clone(*before), func(x reg[D, R]) bool { return x.d == d })
	g.list.Store(&list) // what becomes busy now finds none, or is seen
	var err error
	idle := g.Idle()
	if idle {
		err = r.Close()
	}
	if !idle || err != nil {
		g.list.Store(before)
	}
	return idle && err == nil, err
}

// Spare closes idle registrations with a device, the least recently used first, until they had size bytes. It
// returns how many they had. The caller is in no Add.
func Spare[D comparable, R io.Closer](d D, size int, all iter.Seq[*Regs[D, R]]) (got int, err error) {
	type candidate struct {
		g    *Regs[D, R]
		last uint64
	}
	var list []candidate
	for g := range all {
		if _, ok := g.on(d); ok && g.Idle != nil && g.Idle() {
			list = append(list, candidate{g, g.last.Load()})
		}
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.last, b.last) })
	for _, c := range list {
		if got >= size {
			break
		}
		done, e := c.g.drop(d)
		if err = errors.Join(err, e); done {
			got += c.g.Size
		}
	}
	return got, err
}
