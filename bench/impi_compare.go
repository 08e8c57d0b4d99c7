package main

import (
	"strconv"

	"github.com/sluice-hpc/sluice/verbs"
)

// impiContenders are the programs that measure messages of impi, and what is held
// against them: MPI without persistent requests.
func (c *comparison) impiContenders() []contender {
	_, lacks := verbs.Find("shm")
	if lacks != nil {
		c.report.Missing = append(c.report.Missing, "impi over shm: "+lacks.Error())
	}
	var list []contender
	window := strconv.Itoa(defaultWindow)
	for _, t := range []struct {
		carrier, pattern, sizes, quick string
		mpis, held                     []string // beside it; and those of them that it is held to
	}{
		{"shm", patternLat, "8,64,1k,64k", "8", mpis, []string{"mpich"}},
		{"shm", patternBW, "64k,1M", "1M", mpis, []string{"mpich"}},
		{"shm", patternRate, "8", "8", mpis, mpis},
		{carrierTCP, patternLat, "8,1k", "8", []string{"openmpi"}, []string{"openmpi"}},
		{carrierTCP, patternBW, "64k,1M", "1M", []string{"openmpi"}, []string{"openmpi"}},
	} {
		if t.carrier == "shm" && lacks != nil {
			continue
		}
		if c.quick {
			t.sizes, t.mpis = t.quick, t.held
		}
		ours := []string{"impi", t.pattern, "--carrier", t.carrier, "--sizes", t.sizes}
		program, theirs := "bw", []string{"-n", "-s", t.sizes}
		if t.pattern == patternLat {
			program, ours = "pingpong", append(ours, "--batch")
		} else {
			ours, theirs = append(ours, "--window", window), append(theirs, "-d", t.pattern, "-w", window)
		}
		what := []string{t.carrier + " impi " + t.pattern}
		list = append(list, in(what, c.sluice(t.carrier+" impi "+t.pattern, ours...))...)
		for _, mpi := range t.mpis {
			list = append(list, in(what, c.mpi(mpi, t.carrier, program, theirs...)...)...)
		}
	}
	return list
}
