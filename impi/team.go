package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-hpc/sluice/impi/startup"
	"github.com/sluice-hpc/sluice/internal/coll"
)

// joinTeam joins the server on behalf of the ranks of a node's job, which together form one client:
// the ranks exchange descriptions of their hosts, rank 0 talks to the server and broadcasts the
// result.
func joinTeam(ctx context.Context, addr string, n team, c Config) (_ *Job, err error) {
	const op = "join"
	ctx, over := whileOpen(ctx, n, op)
	defer func() { err = over(err) }()
	l, m, err := announce(ctx, addr, &c)
	if err != nil {
		return nil, jobError(op, err)
	}
	defer l.Close()
	m.settings = coll.DefaultSettings() // the server decides
	all, err := n.Exchange(ctx, m.append(nil))
	if err != nil {
		return nil, jobError(op, err)
	}
	var s *startup.Job
	var told []byte
	if n.Rank() == 0 {
		s, told = c.joinFor(ctx, addr, all)
	}
	if all, err = n.Exchange(ctx, told); err == nil {
		var r *roster
		if r, err = parseRoster(all[0], n.Rank()); err == nil {
			r.finished, r.abandon = func() error { return nil }, func() {}
			if s != nil {
				r.finished, r.abandon = s.Finish, func() { s.Close() }
			}
			r.secret = c.secret()
			return assemble(ctx, op, r, l, c)
		}
	}
	if s != nil {
		s.Close()
	}
	return nil, jobError(op, err)
}

// joinFor joins the server for all ranks, given the announcements of their hosts, and returns the
// broadcast for the other ranks.
func (c *Config) joinFor(ctx context.Context, addr string, announced [][]byte) (*startup.Job, []byte) {
	var hosts []member
	for rank, b := range announced {
		m, err := parseMember(b)
		if err != nil {
			return nil, appendRefusal(nil, fmt.Errorf("rank %d: %w", rank, err))
		}
		hosts = append(hosts, m)
	}
	s, err := c.dial(ctx, addr, hosts)
	if err != nil {
		return nil, appendRefusal(nil, err)
	}
	r, err := rosterOf(s, 0)
	if err != nil {
		s.Close()
		return nil, appendRefusal(nil, err)
	}
	return s, r.append(nil)
}

// errRefused: rank 0 could not join the server.
var errRefused = errors.New("rank 0 could not join the IMPI server")

// The broadcast of rank 0 begins with one of these bytes.
const (
	tellsRoster  = 1
	tellsRefusal = 2
)

func appendRefusal(b []byte, err error) []byte {
	return append(append(b, tellsRefusal), err.Error()...)
}

// append encodes what the other ranks of a client must know: big-endian
//
//	byte    tellsRoster
//	uint32  largest tag
//	uint32  number of the client's first host
//	        settings of collectives
//	uint32  hosts, each:
//	  uint32  client
//	  byte    foreign
//	  uint32  length of its announcement, which follows
func (r *roster) append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(append(b, tellsRoster), uint32(r.tagUB))
	b = be.AppendUint32(b, uint32(r.me))
	b, _ = r.settings.AppendBinary(b) // it has no errors
	b = be.AppendUint32(b, uint32(len(r.hosts)))
	for i := range r.hosts {
		m := r.hosts[i]
		b = be.AppendUint32(b, uint32(m.client))
		foreign := byte(0)
		if m.foreign {
			foreign = 1
		}
		m.settings, m.packetLen = r.settings, min(m.packetLen, maxPacketLen)
		announced := m.append(nil)
		b = be.AppendUint32(append(b, foreign), uint32(len(announced)))
		b = append(b, announced...)
	}
	return b
}

// parseRoster decodes the broadcast of rank 0, at another rank or at rank 0 itself.
func parseRoster(b []byte, rank int) (*roster, error) {
	be := binary.BigEndian
	bad := fmt.Errorf("%w: malformed result of %d bytes from rank 0", ErrProtocol, len(b))
	if len(b) > 0 && b[0] == tellsRefusal {
		return nil, fmt.Errorf("%w: %s", errRefused, b[1:])
	}
	const head = 9
	if len(b) < head || b[0] != tellsRoster {
		return nil, bad
	}
	r := &roster{tagUB: int(be.Uint32(b[1:])), me: int(be.Uint32(b[5:])) + rank}
	b = b[head:]
	n, err := r.settings.ParseBinary(b)
	if err != nil || len(b) < n+4 {
		return nil, bad
	}
	hosts := be.Uint32(b[n:])
	b = b[n+4:]
	const each = 9
	for range hosts {
		if len(b) < each || uint64(len(b)-each) < uint64(be.Uint32(b[5:])) {
			return nil, bad
		}
		k := each + int(be.Uint32(b[5:]))
		m, err := parseMember(b[each:k])
		if err != nil {
			return nil, err
		}
		m.client, m.foreign = int(be.Uint32(b)), b[4] != 0
		r.foreign = r.foreign || m.foreign
		r.hosts = append(r.hosts, m)
		b = b[k:]
	}
	if len(b) != 0 || r.me >= len(r.hosts) {
		return nil, bad
	}
	return r, r.check()
}
