package fanout

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/impi"
	"github.com/sluice-hpc/sluice/impi/packet"
	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// stranger is a rank of another implementation: it joins like any other IMPI client, and writes
// packets by hand, so that it can send anything.
type stranger struct {
	t      testing.TB
	rank   int
	server net.Conn
	conn   net.Conn // to rank 0
	us, it packet.Proc
	seq    uint64
}

// Strangers acknowledge no packets: so many packets may be in flight.
const strangerHiWater = 1 << 20

// strangers makes a job whose rank 0 is of this package, and the n others are not. It
// returns the world of rank 0.
func strangers(t testing.TB, n int) (*impi.Comm, []*stranger) {
	t.Helper()
	ctx := ranks.Within(t)
	ln := ranks.Listen(t)
	served, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		(&startup.Server{Clients: 1 + n, Auth: startup.AuthNone}).Serve(served, ln) // strangers end as they please
	}()
	config := configOf("packets")
	config.Auth, config.PeerTimeout = startup.AuthNone, ranks.Limit
	config.AckMark, config.HiWater = strangerHiWater, strangerHiWater
	var job *impi.Job
	list := make([]*stranger, n)
	ranks.Each(t, 1+n, func(i int) (err error) {
		if i == 0 {
			job, err = impi.Join(ctx, ln.Addr().String(), config)
			return err
		}
		list[i-1] = &stranger{t: t, rank: i}
		return list[i-1].join(ln.Addr().String())
	})
	t.Cleanup(func() {
		for _, s := range list {
			s.die()
			s.server.Close()
		}
		job.Close(context.WithoutCancel(t.Context())) // that the strangers are gone is its error
		stop()
		<-over
	})
	return job.World(), list
}

// join goes through the startup of IMPI 0.0, without the label by which processes of this
// package know each other, and connects to rank 0.
func (s *stranger) join(addr string) (err error) {
	if s.server, err = net.Dial("tcp", addr); err != nil {
		return err
	}
	be := binary.BigEndian
	word := func(v ...uint32) (b []byte) {
		for _, v := range v {
			b = be.AppendUint32(b, v)
		}
		return b
	}
	call := func(command string, body []byte) ([]byte, error) {
		b := append([]byte(command), word(uint32(len(body)))...)
		if _, err := s.server.Write(append(b, body...)); err != nil {
			return nil, err
		}
		head := make([]byte, 8)
		if _, err := io.ReadFull(s.server, head); err != nil {
			return nil, err
		}
		answer := make([]byte, be.Uint32(head[4:]))
		_, err := io.ReadFull(s.server, answer)
		return answer, err
	}
	if _, err = call("AUTH", word(uint32(startup.AuthNone))); err != nil {
		return err
	}
	if _, err = call("IMPI", word(uint32(s.rank))); err != nil {
		return err
	}
	host := startup.HostIDOf(netip.MustParseAddr("127.0.0.1"))
	pid := be.AppendUint64(nil, 1<<40+uint64(s.rank))
	answers := map[startup.Label][]byte{}
	for _, c := range []struct {
		label startup.Label
		data  []byte
	}{
		{startup.LabelVersion, word(0, 0)}, {startup.LabelNHosts, word(1)}, {startup.LabelNProcs, word(1)},
		{startup.LabelPktLen, word(64 << 10)}, {startup.LabelTagUB, word(1<<31 - 1)},
		{startup.LabelXSize, word(1<<32 - 1)}, {startup.LabelMaxLinear, word(1<<32 - 1)},
		{startup.LabelHostIPv6, host[:]}, {startup.LabelHostPort, word(1)}, {startup.LabelHostNProcs, word(1)},
		{startup.LabelHostAckMark, word(strangerHiWater)}, {startup.LabelHostHiWater, word(strangerHiWater)},
		{startup.LabelProcIPv6, host[:]}, {startup.LabelProcPID, pid},
	} {
		answer, err := call("COLL", append(word(uint32(c.label)), c.data...))
		if err != nil {
			return fmt.Errorf("%v: %w", c.label, err)
		}
		answers[c.label] = answer[8:] // behind the label and the clients
	}
	if _, err = call("DONE", nil); err != nil {
		return err
	}
	s.us = packet.Proc{Host: host, PID: int64(be.Uint64(answers[startup.LabelProcPID]))}
	s.it = packet.Proc{Host: host, PID: int64(be.Uint64(pid))}
	to := net.JoinHostPort("127.0.0.1", fmt.Sprint(be.Uint32(answers[startup.LabelHostPort])))
	if s.conn, err = net.Dial("tcp", to); err != nil {
		return err
	}
	_, err = s.conn.Write(word(uint32(s.rank)))
	return err
}

// die ends the connection, as the death of the process does.
func (s *stranger) die() { s.conn.Close() }

// packet returns the bytes of a packet with this header, in which it sets the addresses.
func (s *stranger) packet(h packet.Header, body []byte) []byte {
	s.seq++
	h.Src, h.Dest, h.LSRank, h.Seq = s.it, s.us, int32(s.rank), s.seq
	return append(h.Append(nil, packet.Revised), body...)
}

// message returns the bytes of a short message.
func (s *stranger) message(tag int, body []byte) []byte {
	return s.packet(packet.Header{Type: packet.Data, Len: uint32(len(body)), MsgLen: uint64(len(body)), Tag: int64(tag)}, body)
}

// send sends a short message.
func (s *stranger) send(tag int, body []byte) error {
	_, err := s.conn.Write(s.message(tag, body))
	return err
}

// twice asks for two chunks, so that both requests come together.
func (s *stranger) twice() error {
	_, err := s.conn.Write(append(s.message(TagRequest, nil), s.message(TagRequest, nil)...))
	return err
}

// announce sends the first bytes of a message that it announces with a length.
func (s *stranger) announce(tag int, length uint64, first []byte) {
	_, err := s.conn.Write(s.packet(packet.Header{Type: packet.DataSync, SRQID: 1, Len: uint32(len(first)), MsgLen: length, Tag: int64(tag)}, first))
	require.NoError(s.t, err)
}

// receive returns the next short message.
func (s *stranger) receive() (tag int, body []byte, err error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(ranks.Limit)); err != nil {
		return 0, nil, err
	}
	for {
		var b [packet.HeaderLen]byte
		if _, err := io.ReadFull(s.conn, b[:]); err != nil {
			return 0, nil, err
		}
		var h packet.Header
		if err := packet.Parse(&h, &b, packet.Revised); err != nil {
			return 0, nil, err
		}
		body := make([]byte, h.Body())
		if _, err := io.ReadFull(s.conn, body); err != nil {
			return 0, nil, err
		}
		if h.Type == packet.Data {
			return int(h.Tag), body, nil
		}
	}
}
