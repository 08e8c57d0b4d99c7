package startup

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// pipes is a listener whose connections are made in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func listenPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// dial returns false if the server has ended before it took the connection.
func (p *pipes) dial() (net.Conn, bool) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, true
	case <-p.closed:
		return nil, false
	}
}

// say sends all of b, reads what comes, and closes.
func say(conn net.Conn, b []byte) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		io.Copy(io.Discard, conn)
	}()
	conn.Write(b)
	conn.Close()
	<-gone
}

// FuzzStranger: what a connection sends that has no key disturbs no client.
func FuzzStranger(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(authCommand{methods: AuthKey}.append(nil))
	f.Add(append(authCommand{methods: AuthKey}.append(nil), appendKey(nil, 7)...))
	f.Add(append(authCommand{old: true, key: 7}.append(nil), appendImpi(nil, 0)...))
	f.Add(header{cmdAuth, maxPayload}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, s := listenPipes(), Server{Clients: 1, Key: testKey}
		ended := make(chan error, 1)
		var res *Result
		go func() {
			var err error
			res, err = s.Serve(t.Context(), p)
			ended <- err
		}()
		conn, ok := p.dial()
		require.True(t, ok)
		say(conn, b)
		good, ok := p.dial()
		require.True(t, ok)
		c := config(0)
		c.Key = testKey
		cfg, err := c.filled()
		require.NoError(t, err)
		j, err := join(t.Context(), good, cfg)
		require.NoError(t, err)
		require.NoError(t, j.Finish())
		require.NoError(t, <-ended)
		require.Equal(t, 1, res.Refused)
	})
}

// join joins with method NONE and no AUTH, and waits until all clients have.
func (p *pipes) join(rank int) (net.Conn, error) {
	conn, ok := p.dial()
	if !ok {
		return nil, net.ErrClosed
	}
	_, err := conn.Write(appendImpi(nil, rank))
	if err == nil {
		_, err = readPayload(conn, headerLen+4)
	}
	return conn, err
}

// FuzzMember: whatever a client sends once all have joined, the server ends, says why,
// and names a client.
func FuzzMember(f *testing.F) {
	f.Add(append(coll(1, "x"), doneWire...))
	f.Add(append(append(coll(1, "x"), coll(5, "y")...), doneWire...))
	f.Add(append(coll(2, "x"), coll(1, "x")...))
	f.Add(append(doneWire[:8:8], finiWire...))
	f.Add(header{cmdColl, maxPayload}.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := listenPipes()
		s := Server{Clients: 2, Auth: AuthNone, NoAuth: true, MaxLabels: 20, MaxLabelBytes: 1000, MaxClientBytes: 4000}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := s.Serve(ctx, p)
			ended <- err
		}()
		first, said := make(chan net.Conn, 1), make(chan struct{})
		go func() {
			conn, err := p.join(0)
			if err != nil {
				conn = nil
			}
			first <- conn
		}()
		bad, err := p.join(1)
		require.NoError(t, err)
		good := <-first
		require.NotNil(t, good)
		go func() {
			defer close(said)
			say(good, append(coll(1, "good"), doneWire...))
		}()
		say(bad, b)
		<-said
		err = <-ended
		var e *Error
		require.ErrorAs(t, err, &e) // neither waits for the other
		require.True(t, isOneOf(err, ErrLost, ErrProtocol, ErrLimit), "%v", err)
		require.GreaterOrEqual(t, e.Rank, 0)
	})
}

// FuzzServerStream: a client ends with a job or a typed error, whatever a server says.
func FuzzServerStream(f *testing.F) {
	good := append(authReply{}.append(nil), appendImpi(nil, 1)...)
	answers := answersOf(f, config(0))
	c := config(0)
	for _, s := range c.submissions() {
		good = answers[s.label].append(good)
	}
	good = append(good, doneWire...)
	f.Add(good)
	f.Add(good[:100])
	f.Add(authReply{which: whichKey}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := joinOver(t, b)
		if err == nil {
			require.Len(t, j.Clients, 1)
			require.NotEmpty(t, j.Clients[0].Hosts)
			return
		}
		var e *Error
		require.True(t, errors.As(err, &e), "%v", err)
		require.True(t, named(e.Err), "%v", err)
	})
}
