package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/qmp"
	"github.com/sluice-hpc/sluice/verbs"
)

// node is this process in a job, as channels know it, and a slow way to talk
// outside the measured loops: everybody's record goes to rank 0, and all records
// from there to everybody.
type node struct {
	*channel.Node
	records  []byte            // of all ranks, exchangeBytes each
	up, down []*channel.Handle // by rank at rank 0; else one each
	group    *channel.Group    // of all ranks, where collectives are measured
	qmp      *qmp.Machine      // where that is measured
	aside    bool              // what is measured goes by connections of its own
}

const (
	exchangeStream = channel.MaxStream
	exchangeBytes  = 16 << 10 // of a record: its length, in 4 bytes, and the data
)

// joinNode makes this process a node, with one provider; the caller closes it. Of none
// the library takes what works: it is not to be measured, and nobody is told what not.
func joinNode(ctx context.Context, provider string) (*node, error) {
	var opts []channel.Option
	switch provider {
	case providerSelf:
	case "":
		opts = append(opts, channel.WithLogger(onlyWarnings()))
	default:
		if _, err := verbs.Find(provider); err != nil {
			return nil, err
		}
		opts = append(opts, channel.WithProviders(provider))
	}
	cn, err := channel.Join(ctx, opts...)
	if err != nil {
		return nil, err
	}
	n := &node{Node: cn}
	if err := n.declareExchange(); err != nil {
		cn.Close()
		return nil, err
	}
	return n, nil
}

// joinBest is joinNode with the provider that is asked for, or the best there is on this
// host. Two that met without a launcher may be on different hosts: then it is what the
// library finds.
func joinBest(ctx context.Context, provider string) (*node, string, error) {
	if provider == "" && !metByHand(ctx) {
		best, err := bestDevice()
		if err != nil {
			return nil, "", err
		}
		provider = best.Provider()
	}
	n, err := joinNode(ctx, provider)
	if err != nil || provider != "" {
		return n, provider, err
	}
	if _, err := n.Exchange(ctx, nil); err != nil {
		return nil, "", errors.Join(err, n.Close())
	}
	for _, p := range n.Stats().Peers {
		if p.Rank != n.Rank() {
			provider = p.Provider
		}
	}
	return n, provider, nil
}

// onlyWarnings is a log without what is for information.
func onlyWarnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (n *node) declareExchange() error {
	if n.Size() == 1 {
		return nil
	}
	m, err := n.Alloc(n.Size() * exchangeBytes)
	if err != nil {
		return err
	}
	n.records = m.Bytes()
	d := declarations{node: n, stream: exchangeStream}
	if n.Rank() != 0 {
		n.up = append(n.up, d.send(channel.Contiguous(n.record(n.Rank())), 0))
		n.down = append(n.down, d.receive(channel.Contiguous(n.records), 0))
		return d.err
	}
	for rank := 1; rank < n.Size(); rank++ {
		n.up = append(n.up, d.receive(channel.Contiguous(n.record(rank)), rank))
		n.down = append(n.down, d.send(channel.Contiguous(n.records), rank))
	}
	return d.err
}

func (n *node) record(rank int) []byte { return n.records[rank*exchangeBytes:][:exchangeBytes] }

// Exchange gives every rank the data of all; see [exchanger].
func (n *node) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	if len(data) > exchangeBytes-4 {
		return nil, fmt.Errorf("%d bytes to exchange, at most %d", len(data), exchangeBytes-4)
	}
	if n.Size() == 1 {
		return [][]byte{data}, nil
	}
	own := n.record(n.Rank())
	binary.LittleEndian.PutUint32(own, uint32(len(data)))
	copy(own[4:], data)
	for _, phase := range [][]*channel.Handle{n.up, n.down} {
		for _, h := range phase {
			if err := h.Start(); err != nil {
				return nil, err
			}
		}
		if err := channel.WaitAllContext(ctx, phase...); err != nil {
			return nil, err
		}
	}
	all := make([][]byte, n.Size())
	for rank := range all {
		r := n.record(rank)
		size := binary.LittleEndian.Uint32(r)
		if size > exchangeBytes-4 {
			return nil, fmt.Errorf("rank %d sent a record of %d bytes, at most %d", rank, size, exchangeBytes-4)
		}
		all[rank] = append(all[rank], r[4:4+size]...)
	}
	return all, nil
}

// Done returns a channel that is closed when the job is over: whoever asks has
// stopped measuring, and takes part in no more than one round, which fails then.
func (n *node) Done() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = n.Exchange(context.Background(), nil)
	}()
	return done
}

// devices are those that connect this rank with others: with rank 0 all do, once records
// have been exchanged. What cannot be opened a second time has but its names.
func (n *node) devices() []DeviceEntry {
	var list []DeviceEntry
	for _, p := range n.Stats().Peers {
		if p.Device == "" || slices.ContainsFunc(list, func(d DeviceEntry) bool { return d.Device == p.Device }) {
			continue
		}
		entry, err := describeNamed(p.Device)
		if err != nil {
			entry = DeviceEntry{Provider: p.Provider, Device: p.Device}
		}
		list = append(list, entry)
	}
	return list
}

// describeNamed opens a device for as long as it takes to describe it.
func describeNamed(name string) (e DeviceEntry, err error) {
	dev, err := verbs.Find(name)
	if err != nil {
		return e, err
	}
	c, err := dev.Open(verbs.Config{Insecure: true})
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return describeDevice(c, false)
}

// onlyDevice describes the device of a provider that has one: of several it is not known
// which is used.
func onlyDevice(provider string) (DeviceEntry, bool) {
	devs, _ := verbs.Devices() // what is not there has no device
	devs = slices.DeleteFunc(slices.Clone(devs), func(d *verbs.Device) bool { return d.Provider() != provider })
	if len(devs) != 1 {
		return DeviceEntry{}, false
	}
	e, err := describeNamed(devs[0].Name())
	return e, err == nil
}

// declarations are handles that are declared, and closed, together. The first
// error is kept, and nothing declared after it.
type declarations struct {
	node    *node
	stream  int
	handles []*channel.Handle
	err     error
}

func (d *declarations) send(l channel.Layout, rank int) *channel.Handle {
	return d.declare(d.node.DeclareSend, l, rank)
}

func (d *declarations) receive(l channel.Layout, rank int) *channel.Handle {
	return d.declare(d.node.DeclareReceive, l, rank)
}

func (d *declarations) declare(what func(channel.Layout, int, ...channel.DeclareOption) (*channel.Handle, error), l channel.Layout, rank int) *channel.Handle {
	if d.err != nil {
		return nil
	}
	h, err := what(l, rank, channel.OnStream(d.stream))
	if err != nil {
		d.err = err
		return nil
	}
	d.handles = append(d.handles, h)
	return h
}

// over and finish: nothing of a run of channels is left when it returns.
func (d *declarations) over() error   { return nil }
func (d *declarations) finish() error { return nil }

// close closes all handles, which must be idle.
func (d *declarations) close() error {
	for _, h := range d.handles {
		if err := h.Close(); err != nil {
			return err
		}
	}
	return nil
}
