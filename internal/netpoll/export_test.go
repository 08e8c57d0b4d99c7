//go:build unix

package netpoll

import "errors"

// Doorbell is one that no other test uses.
type Doorbell struct{ doorbell }

func (d *Doorbell) Look() { d.look() }

// Ready reports whether there is a pipe.
func (d *Doorbell) Ready() bool { return d.conn != nil }

func (d *Doorbell) Close() error { return errors.Join(d.r.Close(), d.w.Close()) }
