package boot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
	"github.com/sluice-hpc/sluice/internal/test/ranks"
)

// What was said, to the byte, between this package and mpiexec.hydra 4.0.2 and
// srun --mpi=pmi2 of Slurm 22.05.8, except secret, names and ports.
var (
	goldenPlace = whereabouts{
		secret:    []byte("0123456789abcdef0123456789abcdef"),
		addresses: []string{"198.51.100.1:43391", "[::1]:43391"},
	}
	goldenValue = "1.c2x1aWNlIDEKMzAzMTMyMzMzNDM1MzYzNzM4Mzk2MTYyNjM2NDY1NjYzMDMxMzIzMzM0MzUzNjM3MzgzOTYxNjI2MzY0NjU2NgoxOTguNTEuMTAwLjE6NDMzOTEKWzo6MV06NDMzOTE"
)

var goldenPMI = []struct {
	name string
	run  func(ctx context.Context, t *testing.T, p *pmi)
	says string // C: from this side, S: from the launcher
}{
	{"Hydra, rank 0", beHost, `
C: cmd=init pmi_version=1 pmi_subversion=1
S: cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
C: cmd=get_maxes
S: cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
C: cmd=get_my_kvsname
S: cmd=my_kvsname kvsname=kvs_17954_0_346313804_vm
C: cmd=put kvsname=kvs_17954_0_346313804_vm key=sluice-0 value=` + goldenValue + `
S: cmd=put_result rc=0 msg=success
C: cmd=barrier_in
S: cmd=barrier_out
C: cmd=finalize
S: cmd=finalize_ack`},
	{"Hydra, rank 1, by PMI_PORT", func(ctx context.Context, t *testing.T, p *pmi) {
		e, err := p.introduce(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, Environment{Rank: 1, Size: 2, LocalRank: -1}, e)
		beGuest(ctx, t, p)
	}, `
C: cmd=initack pmiid=1
S: cmd=initack
S: cmd=set size=2
S: cmd=set rank=1
S: cmd=set debug=0
C: cmd=init pmi_version=1 pmi_subversion=1
S: cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
C: cmd=get_maxes
S: cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
C: cmd=get_my_kvsname
S: cmd=my_kvsname kvsname=kvs_17985_0_160238683_vm
C: cmd=barrier_in
S: cmd=barrier_out
C: cmd=get kvsname=kvs_17985_0_160238683_vm key=sluice-0
S: cmd=get_result rc=0 msg=success value=` + goldenValue + `
C: cmd=finalize
S: cmd=finalize_ack`},
	{"Slurm, rank 0", beHost, `
C: cmd=init pmi_version=1 pmi_subversion=1
S: cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
C: cmd=get_maxes
S: cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024
C: cmd=get_my_kvsname
S: cmd=my_kvsname rc=0 kvsname=1.0
C: cmd=put kvsname=1.0 key=sluice-0 value=` + goldenValue + `
S: cmd=put_result rc=0
C: cmd=barrier_in
S: cmd=barrier_out rc=0
C: cmd=finalize
S: cmd=finalize_ack rc=0`},
	{"Slurm, rank 1, and an abort", func(ctx context.Context, t *testing.T, p *pmi) {
		require.NoError(t, p.begin(ctx))
		require.NoError(t, p.barrier(ctx))
		_, err := p.get(ctx)
		var e *PMIError
		require.ErrorAs(t, err, &e)
		require.Equal(t, "get", e.Command)
		require.EqualError(t, err, "boot: PMI: get: the launcher returned rc=1")
		p.abort(7)
	}, `
C: cmd=init pmi_version=1 pmi_subversion=1
S: cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
C: cmd=get_maxes
S: cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024
C: cmd=get_my_kvsname
S: cmd=my_kvsname rc=0 kvsname=1.0
C: cmd=barrier_in
S: cmd=barrier_out rc=0
C: cmd=get kvsname=1.0 key=sluice-0
S: cmd=get_result rc=1
C: cmd=abort exitcode=7`},
}

func beHost(ctx context.Context, t *testing.T, p *pmi) {
	require.NoError(t, p.begin(ctx))
	require.NoError(t, p.put(ctx, goldenPlace.Append(nil)))
	require.NoError(t, p.barrier(ctx))
	require.NoError(t, p.finalize())
}

func beGuest(ctx context.Context, t *testing.T, p *pmi) {
	require.NoError(t, p.begin(ctx))
	w, err := p.whereabouts(ctx)
	require.NoError(t, err)
	require.Equal(t, goldenPlace, w)
	require.NoError(t, p.finalize())
}

func TestPMIGolden(t *testing.T) {
	for _, c := range goldenPMI {
		t.Run(c.name, func(t *testing.T) {
			ctx := ranks.Within(t)
			mine, theirs := net.Pipe()
			defer mine.Close()
			done := make(chan error, 1)
			go func() {
				defer theirs.Close()
				r := bufio.NewReader(theirs)
				for line := range strings.Lines(strings.TrimSpace(c.says) + "\n") {
					side, text, _ := strings.Cut(line, ": ")
					if side == "S" {
						if _, err := io.WriteString(theirs, text); err != nil {
							done <- err
							return
						}
						continue
					}
					got, err := r.ReadString('\n')
					if got != text {
						done <- fmt.Errorf("%q (%v), want %q", got, err, text)
						return
					}
				}
				done <- nil
			}()
			c.run(ctx, t, newPMI(mine))
			require.NoError(t, <-done)
		})
	}
}

// fakePMI is a launcher for the ranks of one job, all of them in this process.
type fakePMI struct {
	size int
	name string // of the key space
	max  int    // length of a value
	// answer replaces an answer by another. After one that has no end the
	// launcher hangs up. It may be nil.
	answer func(rank int, request pmiLine, answer string) string
	hold   time.Duration // the barrier takes so much longer
	bytes  bool          // speak one byte at a time

	mu       sync.Mutex
	space    map[string]string // what has passed a barrier
	fresh    map[string]string // what has not
	waiting  []chan struct{}
	exitCode chan int // of abort
	asked    map[string]int
	quit     chan struct{} // closed with the first connection that the test is done with
	quitOnce sync.Once
}

func newFakePMI(size int) *fakePMI {
	return &fakePMI{size: size, name: "kvs_1_2", max: 1024, space: make(map[string]string), fresh: make(map[string]string), exitCode: make(chan int, size), asked: make(map[string]int), quit: make(chan struct{})}
}

// connect returns the connection of one rank.
func (f *fakePMI) connect(t *testing.T, rank int) *pmi {
	mine, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.serve(rank, theirs)
	}()
	t.Cleanup(func() {
		mine.Close()
		f.quitOnce.Do(func() { close(f.quit) })
		<-done
	})
	return newPMI(mine)
}

func (f *fakePMI) serve(rank int, conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		text, err := r.ReadString('\n')
		if err != nil {
			return
		}
		request, err := parsePMILine([]byte(strings.TrimSuffix(text, "\n")))
		if err != nil {
			panic(err)
		}
		answer := f.reply(request)
		if f.answer != nil {
			answer = f.answer(rank, request, answer)
		}
		step := max(len(answer), 1)
		if f.bytes {
			step = 1
		}
		for piece := range slices.Chunk([]byte(answer), step) {
			if _, err := conn.Write(piece); err != nil {
				return
			}
		}
		if !strings.HasSuffix(answer, "\n") {
			return
		}
	}
}

// reply returns the answer with its end, or nothing to hang up.
func (f *fakePMI) reply(request pmiLine) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[request.command]++
	key, _ := request.get("key")
	switch request.command {
	case "init":
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=%d\n", f.max)
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=" + f.name + "\n"
	case "put":
		value, _ := request.get("value")
		if len(value) >= f.max || len(request.Append(nil)) > maxPMIRequest {
			return "cmd=put_result rc=-1 msg=too_long\n"
		}
		f.fresh[key] = value
		return "cmd=put_result rc=0 msg=success\n"
	case "get":
		value, ok := f.space[key]
		if !ok {
			return "cmd=get_result rc=-1 msg=key_" + key + "_not_found value=unknown\n"
		}
		return "cmd=get_result rc=0 msg=success value=" + value + "\n"
	case "barrier_in":
		out := make(chan struct{})
		f.waiting = append(f.waiting, out)
		if len(f.waiting) == f.size {
			maps.Copy(f.space, f.fresh)
			for _, c := range f.waiting {
				close(c)
			}
			f.waiting = nil
		}
		f.mu.Unlock()
		select {
		case <-out:
		case <-f.quit:
		}
		time.Sleep(f.hold)
		f.mu.Lock()
		return "cmd=barrier_out\n"
	case "finalize":
		return "cmd=finalize_ack\n"
	case "abort":
		code, err := request.number("exitcode", 1, 255)
		if err != nil {
			panic(err)
		}
		f.exitCode <- code
		return ""
	}
	panic("Hydra would kill the job for " + request.command)
}

// joinAll joins all ranks of the job.
func (f *fakePMI) joinAll(ctx context.Context, t *testing.T, env ...string) []*Job {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs, errs := make([]*Job, f.size), make([]error, f.size)
	ranks := make([]*pmi, f.size)
	for rank := range ranks {
		ranks[rank] = f.connect(t, rank)
	}
	each(f.size, func(rank int) {
		v := &values{lookup: variables(append([]string{fmt.Sprint("MPI_LOCALRANKID=", rank), fmt.Sprint("MPI_LOCALNRANKS=", f.size)}, env...)...)}
		jobs[rank], errs[rank] = joinByPMI(ctx, v, ranks[rank], Environment{Rank: rank, Size: f.size, LocalRank: -1})
		if errs[rank] != nil {
			cancel() // the others would wait
		}
	})
	require.NoError(t, errors.Join(errs...))
	return jobs
}

func closeAll(t *testing.T, jobs []*Job) {
	ranks.Each(t, len(jobs), func(rank int) error { return jobs[rank].Close() })
	for _, j := range jobs {
		require.NoError(t, j.Close(), "a second time")
		require.ErrorIs(t, j.Err(), ErrClosed)
	}
}

// Values of any length, answers in pieces, barriers that last.
func TestPMIJob(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(f *fakePMI)
		puts int
	}{
		{"plain", func(*fakePMI) {}, 1},
		{"a byte at a time", func(f *fakePMI) { f.bytes = true }, 1},
		{"short values", func(f *fakePMI) { f.max = 64 }, 2},
		{"long name", func(f *fakePMI) { f.name = strings.Repeat("k", 256) }, 1},
		{"slow barrier", func(f *fakePMI) { f.hold = 50 * time.Millisecond }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := ranks.Within(t)
			f := newFakePMI(4)
			c.with(f)
			jobs := f.joinAll(ctx, t)
			errs := make([]error, f.size)
			each(f.size, func(rank int) {
				got, err := jobs[rank].Exchange(ctx, payload(rank, 0, MaxData))
				if err == nil {
					for r := range got {
						if string(got[r]) != string(payload(r, 0, MaxData)) {
							err = fmt.Errorf("wrong data of rank %d", r)
						}
					}
				}
				errs[rank] = err
			})
			require.NoError(t, errors.Join(errs...))
			for rank, j := range jobs {
				require.Equal(t, []int{rank, 4, rank, 4}, []int{j.Rank(), j.Size(), j.LocalRank(), j.LocalSize()})
				require.Equal(t, jobNamed(f.name), j.ID())
				require.Len(t, j.Secret(), 32)
				require.Equal(t, jobs[0].Secret(), j.Secret())
			}
			closeAll(t, jobs)
			require.Equal(t, map[string]int{"init": 4, "get_maxes": 4, "get_my_kvsname": 4, "put": c.puts, "barrier_in": 4, "get": 3 * c.puts, "finalize": 4}, f.asked)
		})
	}
}

// Hydra is told at once, and once.
func TestPMIAbort(t *testing.T) {
	f := newFakePMI(3)
	jobs := f.joinAll(ranks.Within(t), t)
	jobs[1].Abort(256, "why")
	jobs[1].Abort(4, "no, that is why")
	require.Equal(t, 1, <-f.exitCode, "a code that would be success")
	for _, j := range jobs {
		if j.Rank() != 0 { // which is told when the others are gone
			<-j.Done()
			require.Equal(t, &AbortError{Rank: 1, Code: 256, Why: "why"}, j.Err())
		}
	}
	jobs[1].Close()
	jobs[2].Close()
	<-jobs[0].Done()
	require.Equal(t, &AbortError{Rank: 1, Code: 256, Why: "why"}, jobs[0].Err())
	jobs[0].Close()
	require.Equal(t, 1, f.asked["abort"])
}

// Slurm, which would return another code than that of the abort, is told only if a rank does not
// end.
func TestPMIAbortSlurm(t *testing.T) {
	t.Parallel() // it waits for seconds
	need.Full(t)
	env := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=1"}
	for _, culprit := range []int{0, 1} {
		for _, stays := range []bool{false, true} {
			t.Run(fmt.Sprintf("rank %d, stays: %v", culprit, stays), func(t *testing.T) {
				t.Parallel()
				f := newFakePMI(3)
				f.name = "7.1"
				jobs := f.joinAll(ranks.Within(t), t, env...)
				var wg sync.WaitGroup
				wg.Go(func() { jobs[culprit].Abort(9, "why") })
				for _, j := range jobs {
					if j.Rank() != 0 && !(stays && j.Rank() == 2) {
						<-j.Done()
						j.Close()
					}
				}
				if stays {
					require.Equal(t, 9, <-f.exitCode)
				}
				<-jobs[0].Done()
				wg.Wait()
				require.Equal(t, &AbortError{Rank: culprit, Code: 9, Why: "why"}, jobs[0].Err())
				for _, j := range slices.Backward(jobs) {
					j.Close()
				}
				if !stays {
					require.Zero(t, f.asked["abort"])
				}
			})
		}
	}
}

// A launcher that answers wrongly makes Join fail, at once and with a reason.
func TestPMIFaults(t *testing.T) {
	replace := func(command, by string) func(int, pmiLine, string) string {
		return func(_ int, request pmiLine, answer string) string {
			if request.command == command {
				return by
			}
			return answer
		}
	}
	for _, c := range []struct{ command, answer, says string }{
		{"init", "", "init: no answer: "},
		{"init", "cmd=response_to_init pmi_version=1", "init: no answer: "},
		{"init", "cmd=response_to_init pmi_version=1 rc=-1\n", "init: the launcher returned rc=-1"},
		{"init", "cmd=response_to_init pmi_version=2 rc=0\n", "init: protocol violation: pmi_version=\"2\", want 1 to 1"},
		{"init", "cmd=response_to_init rc=0\n", "no pmi_version"},
		{"init", "cmd=maxes rc=0\n", `init: protocol violation: the launcher answered "maxes" instead of "response_to_init"`},
		{"init", "hello\n", `line that begins with "hello", not with cmd=`},
		{"init", "\n", "empty line"},
		{"init", "cmd=response_to_init rc=0 rc=1\n", `key "rc" twice`},
		{"init", "cmd=response_to_init rc=0 \x01\n", "byte 0x01 in a line"},
		{"init", "cmd=response_to_init =0\n", `"=0" where a key and a value should be`},
		{"init", "cmd=response_to_init rc=0 msg=" + strings.Repeat("x", 5000) + "\n", "line of more than 4096 bytes"},
		{"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64\n", "no vallen_max"},
		{"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=-1\n", "vallen_max=\"-1\", want 1 to 1048576"},
		{"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=8 vallen_max=1024\n", "keys of 8 and values of 1024 bytes, but at least 16 and 64 are needed"},
		{"get_my_kvsname", "cmd=my_kvsname\n", `kvsname=""`},
		{"get_my_kvsname", "cmd=my_kvsname kvsname=" + strings.Repeat("k", 257) + "\n", "protocol violation: kvsname="},
		{"get_my_kvsname", "cmd=my_kvsname kvsname=a b\n", `kvsname="a b"`},
		{"put", "cmd=put_result rc=-1 msg=no room left\n", "announcing the address of the rendezvous: boot: PMI: put: the launcher returned rc=-1: no room left"},
		{"barrier_in", "", "barrier_in: no answer: "},
		{"barrier_in", "cmd=barrier_out rc=1\n", "barrier_in: the launcher returned rc=1"},
		{"get", "cmd=get_result rc=-1 msg=key_sluice-0_not_found value=unknown\n", "get: the launcher returned rc=-1: key_sluice-0_not_found"},
		{"get", "cmd=get_result rc=0\n", `get: protocol violation: sluice-0=""`},
		{"get", "cmd=get_result rc=0 value=65.x\n", `sluice-0="65.x"`},
		{"get", "cmd=get_result rc=0 value=0.x\n", `sluice-0="0.x"`},
		{"get", "cmd=get_result rc=0 value=1.!\n", "illegal base64 data"},
		{"get", "cmd=get_result rc=0 value=1.aGVsbG8\n", `1 lines that begin with "hello", expected 3 to 66 lines and "sluice 1"`},
	} {
		t.Run(c.command+" "+c.says, func(t *testing.T) {
			f := newFakePMI(1) // which opens the barrier for one
			f.answer = replace(c.command, c.answer)
			rank := 0
			if c.command == "get" {
				rank = 1
			}
			_, err := joinByPMI(ranks.Within(t), &values{lookup: variables()}, f.connect(t, rank), Environment{Rank: rank, Size: 2, LocalRank: -1})
			require.ErrorContains(t, err, c.says)
			var e *PMIError
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.command, e.Command)
		})
	}
	t.Run("the context ends in the barrier", func(t *testing.T) {
		f := newFakePMI(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		go func() {
			for came := 0; came == 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				f.mu.Lock()
				came = f.asked["barrier_in"]
				f.mu.Unlock()
			}
			cancel(errors.New("enough"))
		}()
		_, err := joinByPMI(ctx, &values{lookup: variables()}, f.connect(t, 1), Environment{Rank: 1, Size: 2, LocalRank: -1})
		require.EqualError(t, err, "boot: PMI: barrier_in: enough")
	})
}

func TestWhereabouts(t *testing.T) {
	w, err := parseWhereabouts(goldenPlace.Append(nil))
	require.NoError(t, err)
	require.Equal(t, goldenPlace, w)
	good := string(goldenPlace.Append(nil))
	for bad, says := range map[string]string{
		"":                                 "1 lines",
		good[:len("sluice 1")]:             "1 lines",
		"sluice 2" + good[8:]:              `"sluice 2"`,
		"sluice 1\n00\nh:1":                "secret: 1 bytes",
		good + "\n":                        `address ""`,
		good + "\nh:0":                     `port "0"`,
		good + "\nh h:1":                   "not a host name",
		good + "\n:1":                      "not a host name",
		good + "\nh":                       "not host:port",
		good + strings.Repeat("\nh:1", 63): "67 lines",
	} {
		_, err := parseWhereabouts([]byte(bad))
		require.ErrorIs(t, err, errProtocol)
		require.ErrorContains(t, err, says)
	}
	// A payload too large for the key space is not put there by halves.
	f := newFakePMI(1)
	p := f.connect(t, 0)
	require.NoError(t, p.begin(t.Context()))
	require.ErrorIs(t, p.put(t.Context(), make([]byte, 1<<16)), ErrTooLarge)
	require.Zero(t, f.asked["put"])
}

// What parses says the same again when it is written.
func FuzzPMILine(f *testing.F) {
	for _, c := range goldenPMI {
		for line := range strings.Lines(c.says) {
			if _, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
				f.Add([]byte(text))
			}
		}
	}
	f.Add([]byte("cmd=get_result rc=-1 msg=no such key"))
	f.Add([]byte("cmd=a  b=c=d  e="))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parsePMILine(b)
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
			return
		}
		require.NotEmpty(t, l.command)
		again := l.Append(nil)
		require.LessOrEqual(t, len(again), len(b)+1)
		m, err := parsePMILine(again[:len(again)-1])
		require.NoError(t, err)
		require.Equal(t, l, m)
	})
}

func FuzzWhereabouts(f *testing.F) {
	f.Add(goldenPlace.Append(nil))
	f.Add([]byte("sluice 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := parseWhereabouts(b)
		if err != nil {
			require.ErrorIs(t, err, errProtocol)
			return
		}
		require.LessOrEqual(t, len(w.addresses), maxAddresses)
		// Hexadecimal may be in capitals.
		require.Equal(t, strings.ToLower(string(b)), strings.ToLower(string(w.Append(nil))))
	})
}
