package channel

import (
	"slices"
	"sync"

	"github.com/sluice-hpc/sluice/verbs"
)

// A device registers a few thousand regions, and a program may have tens of thousands of streams. So rings
// come from slabs of several: the more there are, the more a slab has, up to as many as fit into the
// smallest arena of verbs/shm.

const (
	ringStep     = (ringSize + 127) &^ 127 // alone in its pairs of lines
	ringSlabMost = 1 << 20 / ringStep
)

// ringPool holds the rings of a device.
type ringPool struct {
	mu    sync.Mutex
	slabs []*ringSlab
	used  int
}

type ringSlab struct {
	mr   *verbs.MR
	free []int // places
	all  int
}

// ringPlace is the memory of one ring.
type ringPlace struct {
	pool *ringPool
	slab *ringSlab
	at   int
}

// take returns memory for a ring, which is zero.
func (r *ringPool) take(pd *verbs.PD) (ringPlace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.slabs, func(s *ringSlab) bool { return len(s.free) > 0 })
	if i >= 0 {
		s := r.slabs[i]
		p := ringPlace{r, s, s.free[len(s.free)-1]}
		s.free = s.free[:len(s.free)-1]
		r.used++
		clear(p.bytes())
		return p, nil
	}
	n := min(max(r.used/4, 1), ringSlabMost)
	mr, err := pd.AllocMR(n*ringStep, verbs.AccessAll)
	if err != nil && n > 1 {
		n = 1
		mr, err = pd.AllocMR(ringStep, verbs.AccessAll)
	}
	if err != nil {
		return ringPlace{}, err
	}
	s := &ringSlab{mr: mr, all: n}
	for at := n - 1; at > 0; at-- {
		s.free = append(s.free, at)
	}
	r.slabs = append(r.slabs, s)
	r.used++
	return ringPlace{r, s, 0}, nil
}

func (p ringPlace) bytes() []byte { return p.slab.mr.Bytes()[p.at*ringStep:][:ringSize] }

func (p ringPlace) region() region {
	return region{p.slab.mr.RKey(), p.slab.mr.Addr() + uint64(p.at*ringStep), uint64(ringSize)}
}

// give takes the memory back; the peer does not access it any more.
func (p ringPlace) give() error {
	r, s := p.pool, p.slab
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used--
	if s.free = append(s.free, p.at); len(s.free) < s.all {
		return nil
	}
	r.slabs = slices.DeleteFunc(r.slabs, func(o *ringSlab) bool { return o == s })
	return s.mr.Close()
}

// streamMemory is the memory of this side that the peer accesses for the messages of a stream.
type streamMemory struct {
	ring ringPlace // slab is nil without one
	pipe *verbs.MR
}

func (m *streamMemory) free() (err error) {
	if m.ring.slab != nil {
		err = m.ring.give()
	}
	if m.pipe != nil {
		if e := m.pipe.Close(); err == nil {
			err = e
		}
	}
	*m = streamMemory{}
	return err
}
