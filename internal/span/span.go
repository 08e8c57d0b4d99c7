// Package span has ranges of addresses, and sets of them.
package span

import (
	"slices"
	"sort"
	"unsafe"
)

// Span is a range of addresses: From, and what is before To.
type Span struct{ From, To uintptr }

// Of returns the addresses of b.
func Of(b []byte) Span {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return Span{p, p + uintptr(len(b))}
}

// Pages returns s, to the end of its last page.
func (s Span) Pages(size int) Span {
	return Span{s.From, (s.To + uintptr(size) - 1) &^ (uintptr(size) - 1)}
}

// Set is a set of addresses: ranges that do not touch, in order. The zero Set is empty.
type Set []Span

// after returns the first range that ends behind p.
func (l Set) after(p uintptr) int {
	return sort.Search(len(l), func(i int) bool { return l[i].To > p })
}

// Meets says whether the set and s have an address in common.
func (l Set) Meets(s Span) bool {
	i := l.after(s.From)
	return i < len(l) && l[i].From < s.To
}

// Remove takes the addresses of s out.
func (l *Set) Remove(s Span) {
	i := l.after(s.From)
	j := i
	var rest Set
	for ; j < len(*l) && (*l)[j].From < s.To; j++ {
		if r := (*l)[j]; r.From < s.From {
			rest = append(rest, Span{r.From, s.From})
		}
		if r := (*l)[j]; r.To > s.To {
			rest = append(rest, Span{s.To, r.To})
		}
	}
	*l = slices.Replace(*l, i, j, rest...)
}

// Add puts the addresses of s in.
func (l *Set) Add(s Span) {
	l.Remove(s)
	i := l.after(s.From)
	j := i
	if i > 0 && (*l)[i-1].To == s.From {
		i--
		s.From = (*l)[i].From
	}
	if j < len(*l) && (*l)[j].From == s.To {
		s.To = (*l)[j].To
		j++
	}
	*l = slices.Replace(*l, i, j, s)
}
