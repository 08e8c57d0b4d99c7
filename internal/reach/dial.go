// Package reach says where this host can be reached, listens there, and connects to a process that
// can be reached at one of several addresses, of which some may lead nowhere, or to something else.
package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sluice-hpc/sluice/internal/keepalive"
	"github.com/sluice-hpc/sluice/internal/wait"
)

// Stagger is the head start that each address has before the next one is tried as well, as in
// RFC 8305. An address that is refused has none.
const Stagger = 250 * time.Millisecond

// patience is how long something that has taken a connection may go unrecognised before another
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
	// end is the one meant, and takes the connection: an error that is not final has another address
	// tried. Connections meet one at a time. It writes again only to what it has recognised by its answer.
	Meet func(net.Conn) (final bool, err error)
	// Patient says that nothing but the one meant takes connections at the addresses, being on this host: what
	// says nothing is waited for, and an address that does not answer, its queue being full, is tried again.
	Patient bool
	// Silence is how long another host may be silent before its connection ends, by [keepalive.Keep]; 0: the
	// Dialer says.
	Silence time.Duration
	// Failed, if not nil, is called for each attempt that failed.
	Failed func(address string, err error)

	connect func(ctx context.Context, address string) (net.Conn, error) // of tests; nil: by TCP
}

// Dial returns a connection to the first of the addresses that answers and that Meet accepts,
// without deadlines. Addresses are tried in their order, each [Stagger] after the one before, or as
// soon as that has failed; the attempts go on side by side until ctx ends. What takes a connection
// and is not recognised has a second before the others go on, and is tried again after them with twice
// the time, up to 16 s, for as long as ctx lasts; it has the time of ctx if there is no other address.
// An address that has accepted is also tried again if it does not accept in time: its queue is full.
//
// An error is the last one of each address, or the final one alone.
func Dial(ctx context.Context, addresses []string, o Options) (net.Conn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	if o.connect == nil {
		o.connect = o.Connect
	}
	var queue []attempt
	for _, address := range addresses {
		queue = append(queue, attempt{address: address, patience: patience})
	}
	if o.Patient || len(queue) == 1 {
		for i := range queue {
			queue[i].patience = 0
		}
	}
	alive, cancel := context.WithCancel(ctx)
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
	failed, accepted := map[string]error{}, map[string]bool{}
	for len(queue) > 0 || running > 0 {
		start := next.C
		if len(queue) == 0 {
			start = nil
		}
		var a attempt
		select {
		case <-start:
			a, queue = queue[0], queue[1:]
			running++
			go func() {
				a.conn, a.err = o.connect(alive, a.address)
				results <- a
			}()
			next.Reset(Stagger)
			continue
		case a = <-results:
			running--
		}
		final, silent := false, false
		if a.err == nil {
			accepted[a.address] = true
			if final, silent, a.err = o.meet(ctx, a.conn, a.patience); a.err == nil {
				note(a.conn)
				return a.conn, nil
			}
			a.conn.Close()
		} else {
			silent = (o.Patient || accepted[a.address]) && timedOut(a.err) // its queue is full
			if ctx.Err() != nil {
				a.err = fmt.Errorf("%w: %w", ctx.Err(), a.err)
			}
		}
		err := fmt.Errorf("at %s: %w", a.address, a.err)
		if o.Failed != nil {
			o.Failed(a.address, err)
		}
		if final {
			return nil, err
		}
		if failed[a.address] = err; silent && ctx.Err() == nil {
			queue = append(queue, attempt{address: a.address, patience: min(2*a.patience, patienceMax)})
		}
		next.Reset(0)
	}
	return nil, Join(addresses, failed)
}

// Connect connects to an address. Of the Timeout of the dialer only the time counts in which this process
// runs.
func (o *Options) Connect(ctx context.Context, address string) (net.Conn, error) {
	d, within := o.Dialer, ctx
	if d.Timeout > 0 {
		patience, cancel := wait.Patience(ctx, d.Timeout)
		defer cancel()
		d.Timeout, within = 0, patience
	}
	conn, err := d.DialContext(within, "tcp", address)
	if err == nil && o.Silence > 0 {
		conn = keepalive.Keep(conn, o.Silence)
	}
	if late := (*net.OpError)(nil); err != nil && ctx.Err() == nil && within.Err() != nil && errors.As(err, &late) {
		late := *late
		late.Err = os.ErrDeadlineExceeded // of a context within the dialer: "canceled"
		err = &late
	}
	return conn, err
}

// Join is the error of all addresses, in their order.
func Join(addresses []string, failed map[string]error) (all error) {
	for _, address := range addresses {
		err := failed[address]
		if err == nil {
			err = fmt.Errorf("at %s: no answer yet", address)
		}
		if all != nil {
			err = fmt.Errorf("%w; %w", all, err)
		}
		all = err
	}
	return all
}

// attempt is one to connect to an address, and what came of it.
type attempt struct {
	address  string
	patience time.Duration // for an answer; 0: the time of the context
	conn     net.Conn
	err      error
}

// meet has Meet introduce this process. What is at the other end has patience until it is recognised, or
// has been silent, and the time of ctx for the rest: it may accept this process from then on.
func (o *Options) meet(ctx context.Context, conn net.Conn, patience time.Duration) (final, silent bool, err error) {
	if patience > 0 {
		conn.SetDeadline(time.Now().Add(patience))
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a := &answering{Conn: conn, ctx: ctx}
	if final, err = o.Meet(a); err != nil {
		silent = !a.recognised && timedOut(err)
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return final, silent, err
	}
	if !stop() {
		return false, false, ctx.Err()
	}
	return false, false, conn.SetDeadline(time.Time{})
}

// HungUp says whether an error is that the other end, perhaps for want of room, has ended a connection
// before it was used.
func HungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// answering is a connection that gets the time of a context when this process writes in answer to
// what has come over it: a stranger may send some bytes, too.
type answering struct {
	net.Conn
	ctx                  context.Context
	answered, recognised bool
}

func (a *answering) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	a.answered = a.answered || n > 0
	return n, err
}

func (a *answering) Write(b []byte) (int, error) {
	if a.answered && !a.recognised {
		a.recognised = true
		end, _ := a.ctx.Deadline() // zero: none
		a.SetDeadline(end)
		if a.ctx.Err() != nil {
			a.SetDeadline(time.Unix(1, 0)) // it has ended in between
		}
	}
	return a.Conn.Write(b)
}
