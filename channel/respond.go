package channel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-hpc/sluice/internal/limits"
)

// respond answers the proposals of the lower rank.
func (w *wiring) respond() (*link, error) {
	for {
		k, body, err := readFrame(w.r)
		if err != nil {
			return nil, err
		}
		if k == kindUse {
			if a, ok, err := parseVerdict(k, body); err != nil || a != 0 || ok {
				return nil, fmt.Errorf("%w: %v of attempt %d", ErrProtocol, k, a)
			}
			if len(w.refused) > 0 {
				return nil, fmt.Errorf("%w: no provider works: %w", ErrUnreachable, errors.Join(w.refused...))
			}
			return nil, fmt.Errorf("%w: rank %d has no provider that works", ErrUnreachable, w.rank)
		}
		if k != kindPropose {
			return nil, fmt.Errorf("%w: got %v, want a proposal", ErrProtocol, k)
		}
		o, err := parseOffer(k, body)
		if err != nil {
			return nil, err
		}
		w.attempt = o.attempt
		if l, err := w.tryRespond(&o); l != nil || err != nil {
			return l, err
		}
	}
}

// tryRespond answers one proposal; nil without an error means to wait for the next.
func (w *wiring) tryRespond(o *offer) (_ *link, err error) {
	answer := offer{attempt: o.attempt, port: o.port}
	l, final, refusal := w.accept(o)
	if refusal == nil {
		answer.endpoint, refusal = l.endpoint()
	}
	used := false
	defer func() {
		if !used && l != nil {
			if err := l.close(); err != nil { // the next attempt is not affected
				w.node.log.Warn("channel: cannot close an unused link", "peer", w.rank, "error", err)
			}
		}
	}()
	not := func(why error) {
		r := Refusal{Provider: o.endpoint.Provider, Reason: why.Error()}
		if l != nil {
			r.Device = l.dev.port.Name()
		}
		w.notUsed(r)
		w.refused = append(w.refused, fmt.Errorf("%s: %w", r.Provider, why))
	}
	if refusal != nil {
		answer.refusal, answer.final = refusal.Error(), final
	}
	body, err := answer.append(nil)
	if err != nil {
		return nil, err
	}
	if _, err := w.conn.Write(frame(nil, kindAnswer, body)); err != nil {
		return nil, err
	}
	if refusal != nil {
		if answer.refusal != noOther {
			not(refusal)
		}
		return nil, nil
	}
	switch ok, err := w.verdict(kindConnected); {
	case err != nil:
		return nil, err
	case !ok:
		not(fmt.Errorf("rank %d has not connected", w.rank))
		return nil, nil
	}
	theirs, perr, err := w.try(l, l.dev.probeTime(w.rank))
	if err != nil {
		return nil, err
	}
	if perr != nil || !theirs {
		not(w.noProbe(perr, &o.endpoint))
	}
	switch use, err := w.verdict(kindUse); {
	case err != nil:
		return nil, err
	case !use:
		return nil, nil
	}
	used = true
	w.used(l, o.attempt)
	return l, nil
}

// accept makes a link to a proposed endpoint and connects it, through the first port not yet
// tried with it. If it fails, final says that it would for all endpoints of this provider.
func (w *wiring) accept(o *offer) (_ *link, final bool, _ error) {
	ports, err := w.node.ports(o.endpoint.Provider, w.conn)
	if err != nil {
		return nil, true, limits.Files(err)
	}
	var errs []error
	var before []Refusal
	for _, mine := range ports {
		this := pair{o.endpoint.Provider, o.port, mine.Name(), mine.number}
		if mine.rdma && slices.Contains(w.tried, this) {
			continue
		}
		l, suits, err := w.acceptAt(mine, o)
		if err == nil || w.node.life.Err() != nil {
			for _, r := range before {
				w.notUsed(r)
			}
			w.tried = append(w.tried, this)
			return l, false, err
		}
		err = limits.Files(err)
		errs = append(errs, err)
		if suits {
			w.tried = append(w.tried, this)
			before = append(before, Refusal{this.provider, this.device, err.Error()})
		}
	}
	if len(errs) == 0 {
		return nil, false, errors.New(noOther)
	}
	return nil, false, errors.Join(errs...)
}

// acceptAt makes the link at a port. If it fails, suits says that the port had appeared to match.
func (w *wiring) acceptAt(mine port, o *offer) (_ *link, suits bool, _ error) {
	d, err := w.node.device(mine)
	if err == nil {
		err = w.descriptors()
	}
	if err != nil {
		return nil, false, err
	}
	if !d.mapped {
		if err := d.suits(&o.endpoint, o.far); err != nil {
			return nil, false, err
		}
	}
	l, err := d.newLink(mine.address)
	if err != nil {
		return nil, true, err
	}
	if err := l.connect(o.endpoint, d.probeTime(w.rank)); err != nil {
		return nil, true, errors.Join(fmt.Errorf("%s to %v: %w", mine.Name(), o.endpoint.GID.Addr(), err), l.close())
	}
	return l, true, nil
}
