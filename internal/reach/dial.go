// Package reach says where this host can be reached, listens there, and connects to a process that
// can be reached at one of several addresses, of which some may lead nowhere, or to something else.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Stagger is the head start that each address has before the next one is tried as well, as in
// RFC 8305. An address that is refused has none.
const Stagger = 250 * time.Millisecond

// patience is how long something that has taken a connection may say nothing before another
// address is tried: at first, and at most, when all are tried again. A process that is
// stopped or has no CPU answers late. An address that is left alone has the time of the context.
const (
	patience    = time.Second
	patienceMax = 16 * time.Second
)

// An Options says how to connect to the addresses of a process.
type Options struct {
	net.Dialer
	// Meet introduces this process over a connection, and says whether what is at the other
	// end is the one meant: an error that is not final has another address tried. Connections
	// meet one at a time.
	Meet func(net.Conn) (final bool, err error)
	// Failed, if not nil, is called for each attempt that failed.
	Failed func(address string, err error)

	connect func(ctx context.Context, address string) (net.Conn, error) // of tests; nil: by TCP
}

// Dial returns a connection to the first of the addresses that answers and that Meet accepts,
// without deadlines. Addresses are tried in their order, each [Stagger] after the one before, or as
// soon as that has failed; the attempts go on side by side until ctx ends. Addresses at which
// something takes connections and says nothing are tried again.
//
// An error is that of each attempt with its address, or the final one alone.
func Dial(ctx context.Context, addresses []string, o Options) (net.Conn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	if o.connect == nil {
		o.connect = func(ctx context.Context, address string) (net.Conn, error) { return o.DialContext(ctx, "tcp", address) }
	}
	for p := patience; ; p = min(2*p, patienceMax) {
		conn, silent, err := o.round(ctx, addresses, p)
		if len(silent) == 0 || ctx.Err() != nil {
			return conn, err
		}
		addresses = silent
	}
}

// attempt is what came of trying to connect to an address.
type attempt struct {
	address string
	conn    net.Conn
	err     error
}

// round tries each address once, and gives what takes a connection patience to answer, or, if
// that is 0, the time of ctx. It returns the addresses at which something was silent.
func (o *Options) round(ctx context.Context, addresses []string, patience time.Duration) (_ net.Conn, silent []string, err error) {
	if len(addresses) == 1 {
		patience = 0
	}
	all := ctx
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan attempt)
	running := 0
	defer func() {
		cancel()
		for ; running > 0; running-- {
			if a := <-results; a.conn != nil {
				a.conn.Close()
			}
		}
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for len(addresses) > 0 || running > 0 {
		start := next.C
		if len(addresses) == 0 {
			start = nil
		}
		var a attempt
		select {
		case <-start:
			address := addresses[0]
			addresses = addresses[1:]
			running++
			go func() {
				conn, err := o.connect(ctx, address)
				results <- attempt{address, conn, err}
			}()
			next.Reset(Stagger)
			continue
		case a = <-results:
			running--
		}
		final := false
		if a.err == nil {
			var answered bool
			if final, answered, a.err = o.meet(all, a.conn, patience); a.err == nil {
				note(a.conn)
				return a.conn, nil, nil
			}
			a.conn.Close()
			var timeout net.Error
			if !answered && !final && errors.As(a.err, &timeout) && timeout.Timeout() {
				silent = append(silent, a.address)
			}
		}
		a.err = fmt.Errorf("at %s: %w", a.address, a.err)
		if o.Failed != nil {
			o.Failed(a.address, a.err)
		}
		if final {
			return nil, nil, a.err
		}
		if err == nil {
			err = a.err
		} else {
			err = fmt.Errorf("%w; %w", err, a.err)
		}
		next.Reset(0)
	}
	return nil, silent, err
}

// meet has Meet introduce this process. What is at the other end has patience for its first
// byte, and the time of ctx for the rest: it may have accepted this process by then.
func (o *Options) meet(ctx context.Context, conn net.Conn, patience time.Duration) (final, answered bool, err error) {
	if patience > 0 {
		conn.SetDeadline(time.Now().Add(patience))
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a := &answering{Conn: conn, ctx: ctx}
	if final, err = o.Meet(a); err != nil {
		return final, a.answered, err
	}
	if !stop() {
		return false, true, ctx.Err()
	}
	return false, true, conn.SetDeadline(time.Time{})
}

// answering is a connection that gets the time of a context when something has come over it.
type answering struct {
	net.Conn
	ctx      context.Context
	answered bool
}

func (a *answering) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if n > 0 && !a.answered {
		a.answered = true
		end, _ := a.ctx.Deadline() // zero: none
		a.SetDeadline(end)
		if a.ctx.Err() != nil {
			a.SetDeadline(time.Unix(1, 0)) // it has ended in between
		}
	}
	return n, err
}
