package main

import (
	"bytes"
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

	"github.com/spf13/cobra"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/internal/boot"
	"github.com/sluice-hpc/sluice/internal/coll"
	"github.com/sluice-hpc/sluice/internal/reach"
	"github.com/sluice-hpc/sluice/verbs"
)

// tuneOptions are the flags of bench tune.
type tuneOptions struct {
	provider string
	ranks    int
	kinds    string
	sizes    string
	time     time.Duration
	rounds   int
	exports  bool
	file     string
	what     string

	parts    []string
	patterns []string
	bytes    []int
}

// Parts that can be tuned.
const (
	tuneCollectives = "collectives"
	tuneEager       = "eager"
	tunePack        = "pack"
	tuneRead        = "read"
	tuneCopy        = "copy"
	tuneProvider    = "provider"
)

var tunedParts = []string{tuneCollectives, tuneEager, tunePack, tuneRead, tuneCopy, tuneProvider}

// tunedKinds are the kinds whose algorithms are measured by default: scatter follows gather,
// exscan follows scan.
const tunedKinds = "barrier,bcast,reduce,allreduce,reduce-scatter,scan,gather,allgather,alltoall"

func newTuneCommand(out *outputOptions) *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune [HOST]",
		Short: "Measure message methods and collective algorithms, and print the settings to export",
		Long: `Tune measures every algorithm, and every method for messages, with every size, and sets
the crossovers so that the fastest ones are chosen. Settings that gain nothing are not
printed.

    collectives  algorithms, by members and bytes
    eager        messages copied at both ends, against asking the receiver first
    pack         blocks packed into one piece, against chains of scatter and gather
    read         messages in blocks whose receiver comes second: written by the sender, which
                 gathers several blocks at once, against being read block by block
    copy         within this host, heap memory through a pipe of shared memory, against
                 reading it out of the other process (shown only; there is no setting)
    provider     roce, and xdp between hosts, each against tcp, if all ranks have it

Messages are measured between rank 0 and the first rank on another host; memory within a
host between rank 0 and the first rank on its host. If all ranks are on one host, each rank
counts as a host, because the settings are for messages between hosts. A provider that was
faster than tcp goes before it, the fastest first, after shm and ibv; any other stays
unused, as without a setting. xdp attaches a program to the network interface while it is
measured.

Started alone, tune starts its ranks on this host. In a job of any launcher ("srun -n 16
bench tune") it tunes for that number of ranks, over the given provider. With --listen on one
host, and that host's address on another, it tunes for two.

    eval "$(bench tune --exports)"

or, for all jobs of a cluster, a file that every process reads when it joins:

    bench tune --file tuning && export SLUICE_TUNING_FILE=$PWD/tuning

Rank 0 writes the file; of two hosts it is the one that does not listen.

    hostA$ bench tune --what provider --listen :18516
    hostB$ bench tune --what provider --file tuning hostA.example`,
		Args: out.hosts,
		RunE: caught(func(cmd *cobra.Command, _ []string) {
			o.check(out)
			j := job{outputOptions: *out, given: given(cmd.Flags()), needs: ranks{least: 2}, count: o.ranks, body: o.tune}
			j.run(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.what, "what", strings.Join(tunedParts, ","), "what to measure: a list")
	f.StringVar(&o.provider, "provider", providerTCP, "provider between the ranks: tcp, ibv")
	f.IntVarP(&o.ranks, "ranks", "n", 4, "ranks to start; ignored under a launcher")
	f.StringVar(&o.kinds, "kinds", tunedKinds, "kinds of collectives: a list")
	f.StringVar(&o.sizes, "sizes", "8,256,1k,4k,16k,64k,256k,1M", "bytes of the vector, or of each rank's block, as in bench collectives")
	f.DurationVar(&o.time, "time", 10*time.Millisecond, "measured time of each size and round")
	f.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	f.StringVar(&o.file, "file", "", "write the settings into this file, for SLUICE_TUNING_FILE")
	f.BoolVar(&o.exports, "exports", false, "print only the settings")
	return cmd
}

func (o *tuneOptions) check(out *outputOptions) {
	o.parts = parseList("what", o.what, tunedParts...)
	o.patterns = parseList("kinds", o.kinds, collectiveNames()...)
	o.bytes = sizesOf("sizes", o.sizes)
	switch {
	case o.provider == providerSHM:
		must(usagef("--provider shm: within a host there are no algorithms to choose from"))
	case o.exports && !out.tables():
		must(usagef("--csv, --json and --exports exclude each other"))
	}
	checkTime(o.time)
	must(inDoubles(o.bytes))
	checkFolder("file", o.file)
	inRange("rounds", o.rounds, 1, 1000)
	inRange("ranks", o.ranks, 2, maxRanks)
}

// tune measures all sets of settings, and rank 0 chooses.
func (o *tuneOptions) tune(ctx context.Context, s *session, j *job, r *Report) {
	_, err := verbs.Find(o.provider)
	barrier(ctx, s, err)
	t := tuner{session: s, o: o, progress: newProgress(s.Rank() == 0), hosts: s.Hosts()}
	defer t.progress.clear()
	t.meet = findMeetingPlace(ctx, s, s.apart())
	times, best := timings(nil), coll.DefaultSettings()
	if slices.Contains(o.parts, tuneCollectives) {
		times = t.collectives(ctx, r)
		best = times.fit(s.Size())
		r.Settings = best.Environ()
	}
	ways := t.messages(ctx, r)
	if s.Rank() != 0 {
		return
	}
	if o.file != "" {
		must(writeTuning(o.file, r, o.provider, s.Size()))
	}
	j.show = func(w io.Writer, r *Report) { o.print(w, r, times, best, ways, s.Size()) }
}

// writeTuning writes the settings in the format of [channel.EnvTuningFile], with the place where
// they were measured.
func writeTuning(path string, r *Report, provider string, ranks int) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# bench tune, %s, %d ranks over %s, %s\n", r.Environment.Time, ranks, provider, r.Environment.CPU)
	if len(r.Settings) == 0 {
		fmt.Fprintln(&b, "# no settings: the defaults are as fast")
	}
	for _, s := range r.Settings {
		fmt.Fprintln(&b, s)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func (o *tuneOptions) print(w io.Writer, r *Report, t timings, best coll.Settings, ways []way, ranks int) {
	if !o.exports {
		printEnvironment(w, &r.Environment)
		printWarnings(w, r)
		if t != nil {
			t.print(w, o.provider, best, ranks)
		}
		for i := range ways {
			ways[i].print(w)
		}
		for _, m := range r.Missing {
			fmt.Fprintf(w, "\nnot available: %s\n", m)
		}
		fmt.Fprintln(w)
		if len(r.Settings) == 0 {
			fmt.Fprintln(w, "# nothing to export: the defaults are as fast")
		}
	}
	for _, s := range r.Settings {
		fmt.Fprintln(w, "export "+s)
	}
}

// tuner is a rank of a job that measures with other jobs of the same processes, which differ in
// their settings.
type tuner struct {
	*session
	o        *tuneOptions
	meet     meetingPlace
	hosts    []int // by rank
	progress *progress
}

// trial is a job for one set of settings.
type trial struct {
	members  []int    // ranks that take part, rank 0 first; the others wait
	settings []string // NAME=value
	works    []work
}

// measure runs all trials alternately, round by round, and returns on rank 0 the results of
// each, with the rounds merged. All ranks call it.
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

// try runs a trial: rank 0 serves the rendezvous of its members.
func (t *tuner) try(ctx context.Context, tr *trial) (_ []Result, err error) {
	defer catch(&err)
	var ln net.Listener
	port := ""
	err = try(func() {
		if t.Rank() == 0 {
			ln = must1(reach.Listen(ctx, net.ListenConfig{}, t.meet.listen))
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

// tunedVariables are unset in a trial, except those that it sets itself.
func tunedVariables() []string {
	return slices.Concat(coll.Variables(), messageVariables, []string{channel.EnvTuningFile, channel.EnvTransport})
}

// settle sets the environment to only these settings, and returns a function that restores it.
func settle(settings []string) (back func()) {
	var before []string
	for _, name := range tunedVariables() {
		if v, ok := os.LookupEnv(name); ok {
			before = append(before, name+"="+v)
		}
		_ = os.Unsetenv(name) // it cannot fail with these names
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

// standDown joins in the place of a rank that has failed before it joined, and leaves: otherwise
// the others would wait for it. If the rank had joined, no rank is admitted in its place.
func standDown(e *boot.Environment) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if job, err := e.Join(ctx); err == nil {
		_ = job.Close() // the earlier error is the one to report
	}
}

// meetingPlace is where the ranks of a trial meet.
type meetingPlace struct {
	listen string // where rank 0 listens, at any port
	at     string // the address at which this rank reaches it
	name   string // unique
}

// answerTime bounds how long rank 0 may take to answer at its addresses.
const answerTime = 30 * time.Second

// findMeetingPlace asks rank 0 for its addresses, and finds one that is reachable from here: not
// all networks are, and some addresses, such as those of container bridges, exist on many hosts
// and lead each host to itself. On one host it is loopback.
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
		ln := must1(reach.Listen(ctx, net.ListenConfig{}, ":0"))
		go answer(ln, mine.Name)
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		mine.Port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		for _, a := range must1(reach.Addresses()) {
			mine.Addresses = append(mine.Addresses, a.String())
		}
	})
	all := share(ctx, job, mine, err)
	m = meetingPlace{listen: "127.0.0.1:0", at: "127.0.0.1", name: all[0].Name}
	if apart {
		m.listen = ":0"
		m.at, err = find(ctx, m.name, all[0].Port, all[0].Addresses)
		barrier(ctx, job, err) // until then rank 0 answers
	}
	return m
}

// answer sends a name to every client that connects, until the listener is closed.
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

// find finds the address that answers with this name.
func find(ctx context.Context, name, port string, addresses []string) (string, error) {
	list := make([]string, len(addresses))
	for i, a := range addresses {
		list[i] = net.JoinHostPort(a, port)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := reach.Dial(ctx, list, reach.Options{Meet: func(conn net.Conn) (bool, error) {
		b := make([]byte, len(name))
		_, err := io.ReadFull(conn, b)
		if err == nil && string(b) != name {
			err = errors.New("another process, not rank 0, answers")
		}
		return false, err
	}})
	if err != nil {
		return "", fmt.Errorf("rank 0 cannot be reached: %w", err)
	}
	defer conn.Close()
	at, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	return at, err
}
