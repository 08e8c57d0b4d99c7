package qmp

import (
	"context"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
)

type options struct {
	ctx  context.Context
	join []channel.Option
	smp  SMPAddress
}

// Option is an option of [Init] and [New].
type Option func(*options)

func newOptions(opts []Option) options {
	o := options{ctx: context.Background()}
	for _, set := range opts {
		if set != nil {
			set(&o)
		}
	}
	return o
}

// WithContext bounds how long Init waits for the other processes of the job. None: it
// waits without end.
func WithContext(ctx context.Context) Option { return func(o *options) { o.ctx = ctx } }

// WithJoin gives options to channel.Join: providers, devices, time-outs, settings of
// collectives. [New] has no use for them.
func WithJoin(opts ...channel.Option) Option {
	return func(o *options) { o.join = slices.Concat(o.join, opts) }
}

// SMPAddress says what a node is on a host with several processors
// (QMP_smpaddr_t of the 1.2 document).
type SMPAddress int

const (
	// SMPMultipleAddress: a host has as many nodes as processes were started on it.
	SMPMultipleAddress SMPAddress = iota
	// SMPOneAddress: a host is one node, whose processors are for the program's own
	// goroutines. A host with several processes is an error then.
	SMPOneAddress
)

// WithSMP says what a node is. None: SMPMultipleAddress.
func WithSMP(a SMPAddress) Option { return func(o *options) { o.smp = a } }
