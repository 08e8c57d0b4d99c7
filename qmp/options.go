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

// WithContext bounds how long Init waits for the other processes of the job. Without it, Init waits
// without limit.
func WithContext(ctx context.Context) Option { return func(o *options) { o.ctx = ctx } }

// WithJoin passes options to channel.Join: providers, devices, timeouts, settings of collectives.
// [New] ignores them.
func WithJoin(opts ...channel.Option) Option {
	return func(o *options) { o.join = slices.Concat(o.join, opts) }
}

// SMPAddress says how a host with several processors is addressed (QMP_smpaddr_t of the 1.2
// document).
type SMPAddress int

const (
	// SMPMultipleAddress: a host has as many nodes as processes were started on it.
	SMPMultipleAddress SMPAddress = iota
	// SMPOneAddress: a host is one node, whose processors serve the program's own goroutines.
	// Several processes on a host are then an error.
	SMPOneAddress
)

// WithSMP says how hosts are addressed. Without it: SMPMultipleAddress.
func WithSMP(a SMPAddress) Option { return func(o *options) { o.smp = a } }
