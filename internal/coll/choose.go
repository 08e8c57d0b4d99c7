package coll

// Choose returns the algorithm for a shape: the one that Force names, if the shape
// allows it, else one by size and number of members. It uses only what is equal at all
// members, so all choose the same: not Rank, and of counts that not all members know
// (Gather and Scatter with Counts, unless Agreed; Alltoall with counts by member) only
// their presence. Segments have the size in the settings. The shape must be valid
// ([Shape.Check]).
func (s *Settings) Choose(sh *Shape) Algorithm {
	if a := s.Force[sh.Kind]; a != Auto && a.allowed(sh) == nil {
		return a
	}
	linear := sh.Size <= s.MaxLinear
	switch sh.Kind {
	case Barrier:
		if linear {
			return Linear
		}
		return Dissemination
	case Broadcast:
		return s.chooseBroadcast(sh, linear)
	case Reduce:
		return s.chooseReduce(sh, linear)
	case Allreduce:
		return s.chooseAllreduce(sh, linear)
	case ReduceScatter:
		return s.chooseReduceScatter(sh, linear)
	case Scan, Exscan:
		switch {
		case s.chain(sh):
			return Pipeline
		case linear:
			return Linear
		}
		return RecursiveDoubling
	case Gather, Scatter:
		// A tree saves messages at the root, but moves the bytes several times.
		if linear || sh.Counts != nil && !sh.Agreed || sh.mean() >= s.XSize {
			return Linear
		}
		return Binomial
	case Allgather:
		switch {
		case sh.mean() >= s.RingBlock && sh.Size > 2:
			return Ring
		case linear:
			return Linear
		case sh.Size&(sh.Size-1) == 0:
			return RecursiveDoubling
		}
		return Bruck
	}
	return s.chooseAlltoall(sh, linear)
}

// chain says whether to use a chain: the vector is long, and has more segments than it takes steps
// until the last member has the first one.
func (s *Settings) chain(sh *Shape) bool {
	n := sh.Count * sh.Elem
	return sh.Size > 2 && n >= s.Pipeline && min(n/max(s.Segment, 1), maxSegments) >= sh.Size-2
}

func (s *Settings) chooseBroadcast(sh *Shape, linear bool) Algorithm {
	n := sh.Count * sh.Elem
	switch {
	case sh.Size <= 2: // one message is optimal
		return Linear
	case s.chain(sh):
		return Pipeline
	case n >= s.XSize && n/sh.Size >= s.ScatterBlock:
		return ScatterAllgather
	case linear && n < s.XSize:
		return Linear
	}
	return Binomial
}

func (s *Settings) chooseReduce(sh *Shape, linear bool) Algorithm {
	n := sh.Count * sh.Elem
	switch {
	case sh.Size <= 2:
		return Linear
	case s.chain(sh):
		return Pipeline
	case n >= s.XSize && n/sh.Size >= s.Block && !sh.Ordered:
		return Rabenseifner
	case linear && n < s.XSize:
		return Linear
	}
	return Binomial
}

func (s *Settings) chooseAllreduce(sh *Shape, linear bool) Algorithm {
	n := sh.Count * sh.Elem
	switch {
	case sh.Ordered && s.chain(sh):
		return Pipeline
	case !sh.Ordered && n >= s.XSize && n/sh.Size >= s.RingBlock:
		return Ring
	case !sh.Ordered && n >= s.XSize && n/sh.Size >= s.Block:
		return Rabenseifner
	case linear && n < s.XSize:
		return Linear
	}
	return RecursiveDoubling
}

func (s *Settings) chooseReduceScatter(sh *Shape, linear bool) Algorithm {
	n := sh.total()
	switch {
	case linear && n < s.XSize:
		return Linear
	case sh.Ordered:
		return Pairwise
	case n >= s.XSize && n/sh.Size >= s.RingBlock:
		return Ring
	}
	return RecursiveHalving
}

func (s *Settings) chooseAlltoall(sh *Shape, linear bool) Algorithm {
	switch n := sh.Count * sh.Elem; {
	case linear:
		return Linear
	case sh.SendCounts != nil:
		return Pairwise
	case n < s.BruckBlock:
		return Bruck
	case n < s.PairBlock:
		return Linear
	}
	return Pairwise
}

// total is the bytes of all blocks.
func (s *Shape) total() int {
	n := s.Count * s.Size
	if s.Counts != nil {
		n = 0
		for _, c := range s.Counts {
			n += c
		}
	}
	return n * s.Elem
}

// mean is the bytes of a block, rounded down.
func (s *Shape) mean() int { return s.total() / s.Size }
