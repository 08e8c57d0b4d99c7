package main

import (
	"context"

	"github.com/sluice-hpc/sluice/channel"
)

const longStart = `The figure itself is the time from the start of the first process until the group of all
ranks has done a barrier at the last. The others are of each rank: descriptors, threads,
mappings, and memory of its own, without what it shares.`

// When this process was started, as near as it can tell, and when the ranks had met.
var (
	first  = monotonic() - int64(ownCPU())
	usable int64
)

// meetAll has all ranks meet.
func meetAll(ctx context.Context, s *session) error {
	world, err := s.World(ctx)
	if err == nil {
		err = world.Run(ctx, channel.Barrier())
	}
	usable = monotonic()
	return err
}

func measureStart(ctx context.Context, b *bed, m *measurement) error {
	type record struct {
		First, Usable                           int64
		Descriptors, Threads, Mappings, Private float64
	}
	s, err := processFigures()
	all, err := share(ctx, b, record{first, usable, s.descriptors, s.threads, s.mappings, s.private}, err)
	if err != nil {
		return err
	}
	begin, end := all[0].First, all[0].Usable
	for _, r := range all {
		begin, end = min(begin, r.First), max(end, r.Usable)
	}
	m.add(float64(end - begin))
	for _, f := range []struct {
		name string
		of   func(*record) float64
	}{
		{"descriptors", func(r *record) float64 { return r.Descriptors }},
		{"threads", func(r *record) float64 { return r.Threads }},
		{"mappings", func(r *record) float64 { return r.Mappings }},
		{"private", func(r *record) float64 { return r.Private }},
	} {
		var of []float64
		for i := range all {
			of = append(of, f.of(&all[i]))
		}
		m.figure(f.name, of...)
	}
	return nil
}
