package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/machine"
)

// tuner is a rank of a job that measures by other jobs, of the same processes, which differ
// in their settings.
type tuner struct {
	*session
	o        *tuneOptions
	meet     meetingPlace
	hosts    []int // by rank
	progress *progress
}

// trial is a job that is made for one set of settings.
type trial struct {
	members  []int    // ranks that take part, first of all rank 0; the others wait
	settings []string // NAME=value
	works    []work
}

// measure carries out all trials by turns, round by round, and returns at rank 0 the results
// of each, the rounds merged. All ranks call it.
func (t *tuner) measure(ctx context.Context, trials []trial) [][]Result {
	rounds := make([][][]Result, len(trials))
	for round := range t.o.rounds {
		for i := range trials {
			t.progress.show(round*len(trials)+i, t.o.rounds*len(trials), strings.Join(trials[i].settings, " "))
			rs, err := t.try(ctx, &trials[i])
			barrier(ctx, t, err)
			rounds[i] = append(rounds[i], rs)
		}
	}
	merged := make([][]Result, len(trials))
	for i := range trials {
		for k := range rounds[i][0] {
			var same []Result
			for _, rs := range rounds[i] {
				same = append(same, rs[k])
			}
			merged[i] = append(merged[i], mergeRounds(same))
		}
	}
	return merged
}

// try carries out a trial: rank 0 serves the rendezvous of its members.
func (t *tuner) try(ctx context.Context, tr *trial) (_ []Result, err error) {
	defer catch(&err)
	var ln net.Listener
	port := ""
	err = try(func() {
		if t.Rank() == 0 {
			ln = must1(net.Listen("tcp", t.meet.listen))
			port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		}
	})
	port = share(ctx, t, port, err)[0]
	me := slices.Index(tr.members, t.Rank())
	if me < 0 {
		return nil, nil
	}
	secret := t.Key("bench tune")
	e := boot.Environment{Rank: me, Size: len(tr.members), LocalRank: -1, Server: net.JoinHostPort(t.meet.at, port), Job: t.meet.name, Secret: secret, Insecure: secret == nil, Launched: true}
	if ln != nil {
		defer endServer(serve(ln, e))
	}
	defer settle(tr.settings)()
	j := job{works: tr.works}
	var s *session
	if err := try(func() { s = join(boot.WithEnvironment(ctx, e), j.provider()) }); err != nil {
		standDown(&e)
		return nil, err
	}
	var r Report
	err = try(func() { j.carryOut(ctx, s, &j, &r) })
	return r.Results, errors.Join(err, s.Close())
}

// messageVariables are the settings of messages that are tuned.
var messageVariables = []string{channel.EnvEagerTCP, channel.EnvPackTCP, channel.EnvReadTCP, channel.EnvEagerRDMA, channel.EnvPackRDMA, channel.EnvReadRDMA}

// tunedVariables are all that a trial does without, but for its own.
func tunedVariables() []string {
	return slices.Concat(coll.Variables(), messageVariables, []string{channel.EnvTuningFile, channel.EnvTransport})
}

// settle sets the environment to settings alone, and returns what puts it back.
func settle(settings []string) (back func()) {
	var before []string
	for _, name := range tunedVariables() {
		if v, ok := os.LookupEnv(name); ok {
			before = append(before, name+"="+v)
		}
		_ = os.Unsetenv(name) // it is a name
	}
	set := func(list []string) {
		for _, s := range list {
			name, value, _ := strings.Cut(s, "=")
			_ = os.Setenv(name, value)
		}
	}
	set(settings)
	return func() { settle(nil); set(before) }
}

// standDown takes the place of a rank that has failed before it joined, and leaves it: the
// others would wait for it. If it had joined no rank is admitted in its place.
func standDown(e *boot.Environment) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if job, err := e.Join(ctx); err == nil {
		_ = job.Close() // the failure that counts is the one before
	}
}

// meetingPlace is where the ranks of a trial meet.
type meetingPlace struct {
	listen string // where rank 0 listens, at any port
	at     string // the address at which this rank reaches it
	name   string // no other has it
}

// answerTime bounds how long rank 0 may take to answer at one of its addresses.
const answerTime = 5 * time.Second

// findMeetingPlace asks rank 0 for its addresses, and finds one that leads to it from here: of
// several networks not all do, and some addresses, as those of bridges of containers, are of
// many hosts, and lead each to itself. On one host it is loopback.
func findMeetingPlace(ctx context.Context, job exchanger, apart bool) (m meetingPlace) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	type door struct {
		Name      string   `json:"name"`
		Port      string   `json:"port"`
		Addresses []string `json:"addresses"`
	}
	mine := door{Name: rand.Text()}
	err := try(func() {
		if !apart || job.Rank() != 0 {
			return
		}
		ln := must1(net.Listen("tcp", ":0"))
		go answer(ln, mine.Name)
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		mine.Port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		for _, a := range must1(machine.Addresses()) {
			mine.Addresses = append(mine.Addresses, a.String())
		}
	})
	all := share(ctx, job, mine, err)
	m = meetingPlace{listen: "127.0.0.1:0", at: "127.0.0.1", name: all[0].Name}
	if apart {
		m.listen = ":0"
		m.at, err = reach(ctx, m.name, all[0].Port, all[0].Addresses)
		barrier(ctx, job, err) // until then rank 0 answers
	}
	return m
}

// answer tells a name to all that connect, until the listener is closed.
func answer(ln net.Listener, name string) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(answerTime))
		_, _ = io.WriteString(conn, name)
		_ = conn.Close()
	}
}

// reach finds the address that answers with this name.
func reach(ctx context.Context, name, port string, addresses []string) (string, error) {
	var last error
	for _, a := range addresses {
		if last = ask(ctx, net.JoinHostPort(a, port), name); last == nil {
			return a, nil
		}
	}
	return "", fmt.Errorf("rank 0 cannot be reached at %q: %w", addresses, last)
}

// ask fails unless an address answers with this name.
func ask(ctx context.Context, address, name string) error {
	d := net.Dialer{Timeout: answerTime}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	b := make([]byte, len(name))
	if _, err = io.ReadFull(conn, b); err == nil && string(b) != name {
		err = fmt.Errorf("another process is at %s", address)
	}
	return err
}
