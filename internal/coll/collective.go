package coll

// Each kind, by each of its algorithms.

func (b *builder) barrier(a Algorithm) {
	switch a {
	case Linear:
		b.linearReduce(0, Ref{}, Ref{})
		b.linearBroadcast(0, Ref{})
	case Binomial:
		b.binomialReduce(0, Ref{}, Ref{})
		b.binomialBroadcast(0, Ref{})
	case Dissemination:
		b.disseminate()
	}
}

func (b *builder) broadcast(a Algorithm) {
	switch a {
	case Linear:
		b.linearBroadcast(b.Root, b.vector(Out))
	case Binomial:
		b.binomialBroadcast(b.Root, b.vector(Out))
	case ScatterAllgather:
		b.scatterAllgather()
	case Pipeline:
		b.chainBroadcast(b.Root)
	}
}

func (b *builder) reduce(a Algorithm) {
	switch a {
	case Linear:
		b.linearReduce(b.Root, b.vector(In), b.vector(Out))
	case Binomial:
		b.binomialReduce(b.Root, b.vector(In), b.vector(Out))
	case Rabenseifner:
		b.rabenseifnerReduce()
	case Pipeline:
		b.chainReduce(b.Root)
	}
}

func (b *builder) allreduce(a Algorithm) {
	switch a {
	case Linear:
		b.linearReduce(0, b.vector(In), b.vector(Out))
		b.linearBroadcast(0, b.vector(Out))
	case Binomial:
		b.binomialReduce(0, b.vector(In), b.vector(Out))
		b.binomialBroadcast(0, b.vector(Out))
	case RecursiveDoubling:
		b.doublingAllreduce()
	case Rabenseifner:
		b.rabenseifnerAllreduce()
	case Ring:
		b.ringAllreduce()
	case Pipeline:
		b.chainReduce(0)
		b.chainBroadcast(0)
	}
}

func (b *builder) reduceScatter(a Algorithm) {
	switch a {
	case Linear:
		b.linearReduceScatter()
	case RecursiveHalving:
		b.halvingReduceScatter()
	case Pairwise:
		b.pairwiseReduceScatter()
	case Ring:
		b.ringReduceScatter()
	}
}

func (b *builder) scan(a Algorithm) {
	switch a {
	case Linear:
		b.linearScan()
	case RecursiveDoubling:
		b.doublingScan()
	case Pipeline:
		b.chainScan()
	}
}

func (b *builder) gather(a Algorithm) {
	switch a {
	case Linear:
		b.linearGather()
	case Binomial:
		b.binomialGather()
	}
}

func (b *builder) scatter(a Algorithm) {
	switch a {
	case Linear:
		b.linearScatter(b.Root, all(In))
	case Binomial:
		b.binomialScatter()
	}
}

func (b *builder) allgather(a Algorithm) {
	switch a {
	case Linear:
		b.linearAllgather()
	case RecursiveDoubling:
		b.doublingAllgather()
	case Bruck:
		b.bruckAllgather()
	case Ring:
		b.ringAllgather()
	}
}

func (b *builder) alltoall(a Algorithm) {
	switch a {
	case Linear:
		b.directAlltoall(MaxRound / 2)
	case Pairwise:
		b.directAlltoall(1)
	case Bruck:
		b.bruckAlltoall()
	}
}
