package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errStranger, errFinal = errors.New("another process"), errors.New("not admitted")

// network is what there is at each address; each of its connections begins at its time.
type network map[string]func(ctx context.Context, here net.Conn) error

// options are those of a dialer on the network, which asks "?" and expects "!!", or "++" and, when it has
// written again, "!".
func (w network) options(failed *[]string) Options {
	return Options{
		connect: func(ctx context.Context, address string) (net.Conn, error) {
			far, near := net.Pipe()
			if err := w[address](ctx, far); err != nil {
				return nil, errors.Join(err, far.Close(), near.Close())
			}
			return near, nil
		},
		Meet: func(conn net.Conn) (bool, error) {
			b := []byte{'?', 0}
			if _, err := conn.Write(b[:1]); err != nil {
				return false, err
			}
			if _, err := io.ReadFull(conn, b); err != nil {
				return false, err
			}
			if b[1] == '+' {
				conn.Write(b[:1])
				if _, err := io.ReadFull(conn, b[1:]); err != nil {
					return false, err
				}
			}
			switch b[1] {
			case '!':
				return false, nil
			case 'x':
				return true, errFinal
			}
			return false, errStranger
		},
		Failed: func(address string, err error) { *failed = append(*failed, address) },
	}
}

// answers is a process that answers after a delay, which runs from its first connection.
func answers(with string, delay time.Duration) func(context.Context, net.Conn) error {
	var begin time.Time
	return func(ctx context.Context, here net.Conn) error {
		if begin.IsZero() {
			begin = time.Now()
		}
		go func() {
			defer here.Close()
			io.ReadFull(here, make([]byte, 1))
			time.Sleep(time.Until(begin.Add(delay)))
			io.WriteString(here, with)
			io.Copy(io.Discard, here)
		}()
		return nil
	}
}

// held is a process that is held up for 20 s when it has been recognised.
func held(_ context.Context, here net.Conn) error {
	go func() {
		io.ReadFull(here, make([]byte, 1))
		io.WriteString(here, "++")
		io.ReadFull(here, make([]byte, 1))
		time.Sleep(20 * time.Second)
		io.WriteString(here, "!")
		io.Copy(io.Discard, here)
		here.Close()
	}()
	return nil
}

func nowhere(ctx context.Context, _ net.Conn) error {
	<-ctx.Done()
	return ctx.Err()
}

func silent(_ context.Context, here net.Conn) error {
	go func() {
		io.Copy(io.Discard, here)
		here.Close()
	}()
	return nil
}

func refused(context.Context, net.Conn) error { return errors.New("refused") }

// What Dial does with what is at the addresses, and when.
func TestDial(t *testing.T) {
	for _, c := range []struct {
		name      string
		addresses []string // each begins with the name of what is there
		at        string   // where it connects, "" for an error
		after     time.Duration
		failed    []string
		err       error
	}{
		{"at once", []string{"good"}, "good", 0, nil, nil},
		{"refused addresses have no head start", []string{"refused1", "refused2", "good", "nowhere"}, "good", 0, []string{"refused1", "refused2"}, nil},
		{"addresses that lead nowhere have one", slices.Concat(slices.Repeat([]string{"nowhere"}, 20), []string{"good"}), "good", 20 * Stagger, nil, nil},
		{"another process answers", []string{"stranger", "good"}, "good", 0, []string{"stranger"}, nil},
		{"something says nothing", []string{"silent", "good"}, "good", patience, []string{"silent"}, nil},
		{"a stranger sends a byte and no more", []string{"babbler", "good"}, "good", patience, []string{"babbler"}, nil},
		{"one that is held up when it has been recognised", []string{"held", "good"}, "held", 20 * time.Second, nil, nil},
		{"one that answers late is left alone", []string{"late20s"}, "late20s", 20 * time.Second, nil, nil},
		{"one that answers late is tried again where the others are refused", []string{"late20s", "refused"}, "late20s", 20 * time.Second, []string{"late20s", "refused", "late20s", "late20s", "late20s"}, nil},
		{"two that say nothing have more time each round", []string{"late5s", "silent"}, "late5s", 6 * time.Second, // 1 s each, then 2 s each
			[]string{"late5s", "silent", "late5s", "silent"}, nil},
		{"and where another leads nowhere", []string{"nowhere", "late2s"}, "late2s", Stagger + 2*time.Second, []string{"late2s"}, nil},
		{"it refuses this process", []string{"nowhere", "final", "good"}, "", Stagger, []string{"final"}, errFinal},
		{"all fail", []string{"refused", "stranger"}, "", 0, []string{"refused", "stranger"}, errStranger},
		{"the time is over", []string{"silent"}, "", time.Minute, []string{"silent"}, nil},
		{"the time is over in vain", []string{"nowhere", "refused"}, "", time.Minute, []string{"refused", "nowhere"}, context.DeadlineExceeded},
		{"no address", nil, "", 0, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := network{
					"good": answers("!!", 0), "late2s": answers("!!", 2*time.Second), "late5s": answers("!!", 5*time.Second), "late20s": answers("!!", 20*time.Second),
					"stranger": answers("??", 0), "final": answers("xx", 0), "silent": silent, "babbler": answers("!", 0), "held": held,
					"nowhere": nowhere, "refused": refused, "refused1": refused, "refused2": refused,
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				var failed []string
				conn, err := Dial(ctx, c.addresses, w.options(&failed))
				require.Equal(t, c.after, time.Since(begin))
				require.Equal(t, c.failed, failed)
				if c.at == "" {
					require.Error(t, err)
					if c.err != nil {
						require.ErrorIs(t, err, c.err)
					}
					for _, address := range failed {
						if c.err != errFinal {
							require.ErrorContains(t, err, fmt.Sprintf("at %s: ", address))
						}
					}
					return
				}
				require.NoError(t, err)
				time.Sleep(time.Hour) // no deadline is left
				_, err = conn.Write([]byte("more"))
				require.NoError(t, err)
				require.NoError(t, conn.Close())
			})
		})
	}
}

// An address of this host at which the queue is full is tried again.
func TestFull(t *testing.T) {
	n := 0
	w := network{"full": func(ctx context.Context, here net.Conn) error {
		if n++; n < 3 {
			return &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
		}
		return answers("!!", 0)(ctx, here)
	}}
	var failed []string
	o := w.options(&failed)
	o.Patient = true
	conn, err := Dial(t.Context(), []string{"full"}, o)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, []string{"full", "full"}, failed)
	n, o.Patient = 0, false
	_, err = Dial(t.Context(), []string{"full"}, o)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// So is one on another host that has accepted before: what is there is held up.
func TestFullLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := network{"refused": refused, "held": func(ctx context.Context, here net.Conn) error {
			switch n++; n {
			case 1:
				return silent(ctx, here)
			case 2:
				return &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
			}
			return answers("!!", 0)(ctx, here)
		}}
		var failed []string
		conn, err := Dial(t.Context(), []string{"held", "refused"}, w.options(&failed))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Equal(t, []string{"held", "refused", "held"}, failed)
	})
}

// The end of the context ends what is under way, whatever has been said by then.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := network{"halting": func(_ context.Context, here net.Conn) error {
			go func() {
				defer here.Close()
				io.ReadFull(here, make([]byte, 1))
				io.WriteString(here, "!")
				io.Copy(io.Discard, here)
			}()
			return nil
		}}
		o := w.options(new([]string))
		o.Meet = func(conn net.Conn) (bool, error) {
			conn.Write([]byte{'?'})
			io.ReadFull(conn, make([]byte, 1))
			cancel()
			_, err := conn.Read(make([]byte, 1))
			return false, err
		}
		_, err := Dial(ctx, []string{"halting"}, o)
		require.ErrorContains(t, err, "at halting: ")
	})
}

// Over TCP, beside something else that listens at the same port of another address.
func TestTCP(t *testing.T) {
	listen := func(address, says string) net.Listener {
		ln, err := net.Listen("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				io.WriteString(conn, says)
				conn.Close()
			}
		}()
		return ln
	}
	good := listen("127.0.0.1:0", "!!").Addr().String()
	_, port, err := net.SplitHostPort(good)
	require.NoError(t, err)
	stranger := listen("127.0.0.2:"+port, "??").Addr().String()
	var failed []string
	o := network{}.options(&failed)
	o.connect = nil
	conn, err := Dial(t.Context(), []string{"127.0.0.3:" + port, stranger, good}, o)
	require.NoError(t, err)
	require.Equal(t, good, conn.RemoteAddr().String())
	require.Subset(t, []string{"127.0.0.3:" + port, stranger}, failed) // as far as each had its answer before the next was tried
	require.NoError(t, conn.Close())
}
