package shm

import (
	"slices"

	"github.com/sluice-hpc/sluice/internal/memory"
)

// Memory of an arena of another context of this process can be registered, too: peers map the arena under
// a number of this context. The loan of an arena lasts until its owner gives it back or closes, and at
// least until the last region of this context in it has been closed; until then the owner keeps it mapped,
// and frees no block that such a region lies in.

// local holds the arenas of all contexts of this process.
var local memory.Index[arena]

// loansEnd bounds the numbers of loans. A number is used once: without the bound, the loans of a context that
// goes on for long, among others that come and go, would leave none for memory of its own.
const loansEnd = maxArenas / 2

// guest is a region that lies in an arena of another context.
type guest struct {
	by     *Context
	off, n int
}

// lend notes a guest, unless the arena is being given back.
func (ar *arena) lend(g guest) bool {
	ar.passing.Lock()
	defer ar.passing.Unlock()
	if !ar.gone {
		ar.guests = append(ar.guests, g)
	}
	return !ar.gone
}

// returned undoes one lend. The loan ends with its last guest if the owner has given the arena back.
func (ar *arena) returned(g guest) error {
	ar.passing.Lock()
	i := slices.Index(ar.guests, g)
	ar.guests = slices.Delete(ar.guests, i, i+1)
	over := ar.gone && !ar.hosts(g.by)
	ar.passing.Unlock()
	if over {
		return g.by.endLoan(ar)
	}
	return nil
}

// hosts says whether a context has guests. The caller holds passing.
func (ar *arena) hosts(c *Context) bool {
	return slices.ContainsFunc(ar.guests, func(g guest) bool { return g.by == c })
}

// guestsIn returns the number of guests that lie in a block, at least in part.
func (b block) guestsIn() (count int) {
	b.arena.passing.Lock()
	defer b.arena.passing.Unlock()
	for _, g := range b.arena.guests {
		if g.off < b.off+len(b.mem) && b.off < g.off+g.n {
			count++
		}
	}
	return count
}

// borrow returns the number by which peers of this context know an arena of another one, with a guest in
// it; false if the arena cannot be had: it is being given back, or there is no number left.
func (c *Context) borrow(of *arena, g guest) (id uint32, ok bool) {
	a := &c.arenas
	a.borrowing.Lock() // a loan that is found has been announced
	defer a.borrowing.Unlock()
	if !of.lend(g) {
		return 0, false
	}
	loan := a.loan(of)
	if loan == nil {
		if loan = a.addLoan(of, c); loan == nil {
			of.returned(g) // it ends no loan
			return 0, false
		}
		c.announce(loan)
	}
	return loan.id, true
}

// loan returns the loan of an arena; nil if there is none.
func (a *arenas) loan(of *arena) *arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.list, func(ar *arena) bool { return ar.lender == of }); i >= 0 {
		return a.list[i]
	}
	return nil
}

// addLoan adds the loan of an arena that has a guest. None of its memory is free here. It returns nil if
// there is no number left for it, or the arena is being given back.
func (a *arenas) addLoan(of *arena, c *Context) *arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next >= loansEnd || !of.pass() { // its descriptor goes to peers, now and later
		return nil
	}
	of.passing.Lock()
	of.loans = append(of.loans, c)
	of.passing.Unlock()
	ar := &arena{segment: &segment{mem: of.all, fd: of.fd}, all: of.all, lender: of, borrower: c, id: a.next}
	a.next++
	a.list = append(a.list, ar)
	return ar
}

// endLoan ends the loan of an arena without guests of this context, if there still is one. That of a context
// which is ending ends when it closes: peers may still read what they have mapped.
func (c *Context) endLoan(of *arena) error {
	a := &c.arenas
	loan := a.loan(of)
	if loan == nil || !a.remove(loan) {
		return nil
	}
	c.tellGone(loan)
	return loan.giveBack()
}

// remove takes an arena out of the list, unless all are to stay, and says whether it has.
func (a *arenas) remove(ar *arena) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.list, ar)
	if i < 0 || a.ending {
		return false
	}
	a.list = slices.Delete(a.list, i, i+1)
	return true
}

// close unmaps an arena; of a loan it tells the owner, which may.
func (ar *arena) close() error {
	if of := ar.lender; of != nil {
		of.passing.Lock()
		of.loans = slices.DeleteFunc(of.loans, func(c *Context) bool { return c == ar.borrower })
		of.passing.Unlock()
		return of.passed()
	}
	local.Remove(ar.all, false)
	return ar.segment.close()
}
