package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sluice-hpc/sluice/internal/proof"
)

// Before all ranks have given to the first round, a process may be refused. One that has proved itself is
// of this job, so its mistake ends the round for all ranks. One that has not may be anything: its rank may
// still come, and it ends nothing; if the rank stays away, what the process was refused for is said
// with that.

// maxSuspects bounds the refusals that are remembered.
const maxSuspects = 64

// mistake ends the first round because of a process that has proved to be of this job. s.mu is held.
func (s *Server) mistake(rank int, err error, why string) {
	if s.round > 0 || s.failed != nil || s.abortion != nil || s.closed {
		return
	}
	e := &RankError{Rank: rank, Err: err, Text: why}
	if rank >= 0 && rank < len(s.members) && s.members[rank].state == absent {
		s.depart(rank, dead, e)
		return
	}
	if s.died == nil {
		s.died = e
	}
	s.fail(e)
}

// mistakePatience bounds how long rank 0 keeps the rendezvous for ranks that have not come after the mistake
// of a process has ended the job for all: it has an error to return.
const mistakePatience = 500 * time.Millisecond

// mistaken says that the mistake of another process than that of rank 0 has ended the job.
func (s *Server) mistaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round == 0 && s.failed != nil && s.failed.Rank != 0 && (s.failed.Err == ErrRefused || s.failed.Err == ErrGaveUp)
}

// suspect notes why a process that said it was a rank was refused. s.mu is held.
func (s *Server) suspect(err error) {
	var p *proof.Error
	if !errors.As(err, &p) || len(p.Peer) != len(rankID(0)) {
		return
	}
	why := refusalOf(p.Err)
	rank := int(int32(binary.BigEndian.Uint32(p.Peer)))
	switch {
	case why == "":
	case p.Proven:
		s.mistake(rank, ErrRefused, why)
	case s.round > 0 || s.failed != nil || rank < 0 || rank >= len(s.members) || s.members[rank].state != absent:
	case s.suspects[rank] == why || s.suspects[rank] == "" && len(s.suspects) >= maxSuspects:
	default:
		if s.suspects == nil {
			s.suspects = map[int]string{}
		}
		s.suspects[rank] = why
		if s.doubts++; s.doubts > maxSuspects {
			break // the next report has it: what knows no secret must not make the ranks write without end
		}
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// refusalOf says in words why a proof has failed; "" for one of a process that may have nothing to do with
// the job.
func refusalOf(err error) string {
	var m *proof.MismatchError
	if !errors.As(err, &m) {
		if errors.Is(err, proof.ErrSecret) {
			return "another secret"
		}
		return ""
	}
	switch m.Err {
	case proof.ErrVersion:
		return fmt.Sprintf("another version of the protocol, %s; this rendezvous has %s", plain(m.Theirs), m.Ours)
	case proof.ErrEndianness:
		return fmt.Sprintf("another byte order, %s; the host of the rendezvous is %s", m.Theirs, m.Ours)
	case proof.ErrInsecure:
		return fmt.Sprintf("it has %s for a secret, and the job has %s: see %s", m.Theirs, m.Ours, EnvInsecure)
	case proof.ErrJob:
		return fmt.Sprintf("another job, %s; this one is %s", strconv.Quote(m.Theirs), strconv.Quote(m.Ours))
	}
	return ""
}

// plain is a name for people; one that could not be read as one word of a sentence is quoted.
func plain(name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// fit says why a rank does not fit to those that are here, if all have to run the same program. s.mu is held.
func (s *Server) fit(rank int, p *program) (why string) {
	if p.name == "" {
		return ""
	}
	if s.first == nil {
		s.first = &runs{rank, *p}
	}
	const all = ", and all ranks are to run the same (" + EnvSame + ")"
	if p.same && !s.same {
		s.same = true
		for other := range s.members { // those that came before
			if p := s.members[other].other; p != nil {
				s.mistake(other, ErrRefused, "it runs "+s.unlike(p)+all)
			}
		}
	}
	if why = s.unlike(p); why == "" || !s.same {
		return ""
	}
	return "it runs " + why + all
}

// unlike says how a program is another one than that of the first rank. s.mu is held.
func (s *Server) unlike(p *program) string {
	return p.differs(&s.first.program, fmt.Sprint("rank ", s.first.rank))
}

// runs is what a rank runs.
type runs struct {
	rank int
	program
}

// causes lists what may keep ranks away in the first round: "rank 3 was refused: another secret". s.mu is
// held.
func (s *Server) causes() (list []string) {
	if s.round > 0 {
		return nil
	}
	group := func(of map[string][]int, one, many string) {
		for _, why := range slices.SortedFunc(maps.Keys(of), func(a, b string) int { return slices.Compare(of[a], of[b]) }) {
			list = append(list, some(of[why], one, many)+why)
		}
	}
	refused, others := map[string][]int{}, map[string][]int{}
	for _, rank := range slices.Sorted(maps.Keys(s.suspects)) {
		refused[s.suspects[rank]] = append(refused[s.suspects[rank]], rank)
	}
	group(refused, "was refused: ", "were refused: ")
	for rank := range s.members {
		if p := s.members[rank].other; p != nil {
			others[s.unlike(p)] = append(others[s.unlike(p)], rank)
		}
	}
	group(others, "runs ", "run ")
	return list
}

// some begins a sentence about ranks, in ascending order.
func some(list []int, one, many string) string {
	if len(list) == 1 {
		return fmt.Sprintf("rank %d %s", list[0], one)
	}
	return fmt.Sprintf("ranks %s %s", ranges(list), many)
}

// missing lists the ranks that have not come, and those that have come and not given to the round in
// progress. s.mu is held.
func (s *Server) missing() (absentees, silent []int) {
	for rank, data := range s.parts {
		switch {
		case data != nil:
		case s.members[rank].state == absent:
			absentees = append(absentees, rank)
		default:
			silent = append(silent, rank)
		}
	}
	return absentees, silent
}

// reportWaits tells ranks of the wait for the first round, while it lasts: the lowest that is here now and
// then, and all when a process has been refused that may have been a rank.
func (s *Server) reportWaits() {
	begin := time.Now()
	for n := 0; ; {
		timer := time.NewTimer(time.Until(begin.Add(reportAfter(n))))
		all := false
		select {
		case <-timer.C:
			n++
		case <-s.news:
			all = true
		case <-s.settled:
			timer.Stop()
			return
		}
		timer.Stop()
		s.mu.Lock()
		s.report(all)
		s.mu.Unlock()
	}
}

// report says for which ranks the job waits, and why: to all ranks, or only to the lowest. s.mu is held.
func (s *Server) report(all bool) {
	text := s.waiting()
	if text == "" {
		return
	}
	for i := range s.members {
		if s.members[i].state == joined && s.tell(s.members[i].session, text) && !all {
			return
		}
	}
}

// waiting says for which ranks the job waits in the first round, with %s for the address of the rendezvous;
// "" if it does not. s.mu is held.
func (s *Server) waiting() string {
	absentees, silent := s.missing()
	switch {
	case s.round > 0 || s.failed != nil:
	case len(absentees) > 0:
		return some(absentees, "of", "of") + fmt.Sprintf(" %d at %%s", len(s.members))
	case len(silent) > 0:
		return some(silent, "of", "of") + fmt.Sprintf(" %d, here and not ready, at %%s", len(s.members))
	}
	return ""
}

// tell sends a rank a report, with the address of the rendezvous put in, and with the causes. s.mu is held.
func (s *Server) tell(c *session, text string) bool {
	if c == nil || c.gone || c.minor < reportMinor {
		return false
	}
	address := s.options.address
	if address == "" {
		address = c.conn.LocalAddr().String()
	}
	whole := strings.Join(append([]string{"waiting for " + fmt.Sprintf(text, address)}, s.causes()...), "; ")
	if len(c.out) <= backlog-unreported { // else it does not read
		s.send(c, delivery{message: report{rank: uint32(c.rank), text: shorten(whole, maxText)}.Append(nil)})
	}
	return true
}

// settle ends the reports. s.mu is held.
func (s *Server) settle() {
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}
