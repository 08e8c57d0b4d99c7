package boot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-hpc/sluice/internal/pmix"
	"github.com/sluice-hpc/sluice/internal/variable"
)

// Our own variables, which tell a process its place in the job.
const (
	EnvRank       = "SLUICE_RANK"
	EnvSize       = "SLUICE_SIZE"
	EnvServer     = "SLUICE_SERVER"
	EnvIMPIServer = "SLUICE_IMPI_SERVER"
	EnvJob        = "SLUICE_JOB"
	EnvSecret     = "SLUICE_SECRET"
	EnvSecretFile = "SLUICE_SECRET_FILE"
	EnvInsecure   = "SLUICE_INSECURE"
	EnvLocalRank  = "SLUICE_LOCAL_RANK"
	EnvLocalSize  = "SLUICE_LOCAL_SIZE"
	EnvLauncher   = "SLUICE_LAUNCHER"
	EnvSame       = "SLUICE_SAME"
)

// Variables lists all of our own variables that Join reads, in a fresh slice; for those of
// launchers see [ForeignVariables].
func Variables() []variable.Variable {
	return []variable.Variable{
		{Name: EnvRank, For: variable.Rank, Default: "the launcher's", Meaning: "number of this process in the job, from 0 to size-1"},
		{Name: EnvSize, For: variable.Job, Default: "the launcher's", Meaning: "number of processes in the job"},
		{Name: EnvServer, For: variable.Job, Default: "announced by rank 0", Meaning: "host:port where the ranks meet; an IPv6 host in brackets"},
		{Name: EnvIMPIServer, For: variable.Job, Default: "none", Meaning: "host:port of the server of an IMPI job instead; this process is its client SLUICE_RANK"},
		{Name: EnvJob, For: variable.Job, Default: "the launcher's", Meaning: "id of the job, at most 64 bytes"},
		{Name: EnvSecret, For: variable.Job, Default: "the launcher's", Meaning: "secret of the job in hexadecimal, 16 to 512 bytes"},
		{Name: EnvSecretFile, For: variable.Rank, Default: "none", Meaning: "file that holds the secret instead, in hexadecimal; it must belong to the user that runs the program and have mode 0600"},
		{Name: EnvInsecure, For: variable.Job, Default: "a secret is needed", Meaning: "1 to run without a secret; must be set for all processes"},
		{Name: EnvLocalRank, For: variable.Rank, Default: "the launcher's", Meaning: "number of this process among those of the job on this host"},
		{Name: EnvLocalSize, For: variable.Rank, Default: "the launcher's", Meaning: "number of processes of the job on this host"},
		{Name: pmix.Env, For: variable.Rank, Default: "libpmix.so.2", Meaning: "the library of PMIx to open; none to do without it"},
		{Name: EnvLauncher, For: variable.Job, Default: "rank 0 runs it", Meaning: "run if 'sluice run' runs the rendezvous at SLUICE_SERVER; otherwise rank 0 does"},
	}
}

// Environment holds the contents of the SLUICE_* variables.
type Environment struct {
	Rank, Size           int
	LocalRank, LocalSize int    // -1 and 0 if not known
	Server               string // host:port, or several with commas if Launched; may be empty in a job of one
	Job                  string
	Secret               []byte // nil if Insecure
	Insecure             bool
	// Same says that all ranks are to run the same build of the same program.
	Same bool
	// Launched says that the launcher runs the rendezvous. Without it, rank 0 does, if Server is an
	// address of its host at which nothing is listening yet.
	Launched bool
}

// byRun is the value of SLUICE_LAUNCHER in a job of 'sluice run'.
const byRun = "run"

// Environ returns the variables as NAME=value, for the environment of a process that is to become
// this rank. That environment must not contain other variables of [Variables].
func (e *Environment) Environ() []string {
	list := []string{
		EnvRank + "=" + strconv.Itoa(e.Rank),
		EnvSize + "=" + strconv.Itoa(e.Size),
		EnvServer + "=" + e.Server,
		EnvJob + "=" + e.Job,
	}
	if e.Insecure {
		list = append(list, EnvInsecure+"=1")
	} else {
		list = append(list, EnvSecret+"="+hex.EncodeToString(e.Secret))
	}
	if e.LocalSize > 0 {
		list = append(list, EnvLocalRank+"="+strconv.Itoa(e.LocalRank), EnvLocalSize+"="+strconv.Itoa(e.LocalSize))
	}
	if e.Launched {
		list = append(list, EnvLauncher+"="+byRun)
	}
	return list
}

const (
	// A secret must not be guessable from a recorded proof: 128 bits.
	minSecret = 16
	maxSecret = 512
	maxJobID  = 64 // what fits into a proof
)

// ByHand returns the environment of a rank for which number, size and rendezvous, which runs elsewhere,
// are given by the caller. The id of the job, and the secret or its absence, come from the
// variables. Errors: [*EnvError].
func ByHand(rank, size int, server string) (Environment, error) {
	given := map[string]string{EnvRank: strconv.Itoa(rank), EnvSize: strconv.Itoa(size), EnvServer: server, EnvLauncher: byRun}
	e, _, err := parseEnvironment(func(name string) (string, bool) {
		switch name {
		case EnvJob, EnvSecret, EnvSecretFile, EnvInsecure:
			return os.LookupEnv(name)
		}
		value, ok := given[name]
		return value, ok
	})
	return e, err
}

// parseEnvironment reads our own variables, and JOB_COMPLETION_INDEX as the rank if SLUICE_RANK is
// not set. found is false if none of rank, size, server and index is set: there was no launcher
// then.
func parseEnvironment(lookup func(string) (string, bool)) (e Environment, found bool, err error) {
	v := values{lookup: lookup}
	rank := EnvRank
	if !v.set(EnvRank) && v.set(envCompletionIndex) {
		rank = envCompletionIndex
	}
	if !v.set(rank) && !v.set(EnvSize) && !v.set(EnvServer) {
		return Environment{}, false, nil
	}
	e.Size = v.integer(EnvSize, 1, MaxSize)
	e.Rank = v.below(rank, EnvSize, e.Size)
	e.LocalRank = -1
	switch given, other := v.set(EnvLocalRank), v.set(EnvLocalSize); {
	case given && other:
		e.LocalSize = v.integer(EnvLocalSize, 1, max(e.Size, 1))
		e.LocalRank = v.below(EnvLocalRank, EnvLocalSize, e.LocalSize)
	case given:
		v.fail(EnvLocalSize, "", errors.New("not set, although "+EnvLocalRank+" is: set both or neither"))
	case other:
		v.fail(EnvLocalRank, "", errors.New("not set, although "+EnvLocalSize+" is: set both or neither"))
	}
	switch launcher := v.get(EnvLauncher); launcher {
	case "":
	case byRun:
		e.Launched = true
	default:
		v.fail(EnvLauncher, launcher, errors.New("want "+byRun+", or not set"))
	}
	e.Server = v.servers(e.Size > 1, e.Launched)
	e.Job = v.job()
	e.Same = v.flag(EnvSame)
	e.Secret, e.Insecure = v.secret(e.Size > 1)
	return e, true, v.err
}

// values reads variables until one is wrong.
type values struct {
	lookup func(string) (string, bool)
	err    error // the first
}

// get returns the value of a variable; an empty one counts as not set.
func (v *values) get(name string) string {
	value, _ := v.lookup(name)
	return value
}

func (v *values) set(name string) bool { return v.get(name) != "" }

func (v *values) fail(name, value string, err error) {
	if v.err == nil {
		v.err = &EnvError{Name: name, Value: value, Err: err}
	}
}

var (
	errNotSet         = errors.New("not set, although other SLUICE_ variables are: set " + EnvRank + ", " + EnvSize + " and " + EnvServer + " for every rank, or none of them")
	errNotSetForIndex = errors.New("not set, although " + envCompletionIndex + " is: set it to make the pods of the indexed Job one job, or set " + EnvRank + "=0 and " + EnvSize + "=1 to make each pod a job of its own")
)

// notSet is the error for a required variable that is not set.
func (v *values) notSet() error {
	if !v.set(EnvRank) && v.set(envCompletionIndex) {
		return errNotSetForIndex
	}
	return errNotSet
}

func (v *values) integer(name string, least, most int) int {
	value := v.get(name)
	if value == "" {
		v.fail(name, "", v.notSet())
		return 0
	}
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		v.fail(name, value, errors.New("not a number"))
		return 0
	case n < least || n > most:
		v.fail(name, value, fmt.Errorf("want %d to %d", least, most))
		return 0
	}
	return n
}

// below is a number from 0 that is less than another variable, whose value is size; 0 if that is wrong.
func (v *values) below(name, other string, size int) int {
	n := v.integer(name, math.MinInt, math.MaxInt)
	if most := max(size-1, 0); n < 0 || n > most {
		v.fail(name, v.get(name), fmt.Errorf("must be below %s=%d: want %s", other, size, numbersTo(most)))
		return 0
	}
	return n
}

// numbersTo writes the numbers from 0.
func numbersTo(most int) string {
	if most == 0 {
		return "0"
	}
	return fmt.Sprintf("0 to %d", most)
}

// flag reads a variable that is 1, or 0, which is the same as not set.
func (v *values) flag(name string) bool {
	switch value := v.get(name); value {
	case "", "0":
		return false
	case "1":
		return true
	default:
		v.fail(name, value, errors.New("want 1 or 0"))
		return false
	}
}

func (v *values) server(needed bool) string { return v.servers(needed, false) }

func (v *values) servers(needed, several bool) string {
	value := v.get(EnvServer)
	if value == "" {
		if needed {
			v.fail(EnvServer, "", v.notSet())
		}
		return ""
	}
	if err := checkServers(value, several); err != nil {
		v.fail(EnvServer, value, err)
		return ""
	}
	return value
}

// checkServers checks the address of a rendezvous, or several of the same.
func checkServers(value string, several bool) error {
	if !several {
		return checkServer(value)
	}
	for i, a := range strings.SplitN(value, ",", maxAddresses+1) {
		if i == maxAddresses {
			return fmt.Errorf("more than %d addresses", maxAddresses)
		}
		if err := checkServer(a); err != nil {
			return err
		}
	}
	return nil
}

func checkServer(value string) error {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		var address *net.AddrError
		if errors.As(err, &address) {
			err = errors.New(address.Err)
		}
		return err
	}
	if host == "" {
		return errors.New("no host before the port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q, want 1 to 65535", port)
	}
	return nil
}

func (v *values) job() string {
	value := v.get(EnvJob)
	if len(value) > maxJobID {
		v.fail(EnvJob, value, fmt.Errorf("%d bytes, the most is %d", len(value), maxJobID))
	}
	return value
}

// secret returns the secret, or that the job is insecure. A given secret is used whatever
// SLUICE_INSECURE says.
func (v *values) secret(needed bool) (secret []byte, insecure bool) {
	insecure = v.flag(EnvInsecure)
	text, path := v.get(EnvSecret), v.get(EnvSecretFile)
	switch {
	case text != "" && path != "":
		v.fail(EnvSecretFile, path, errors.New(EnvSecret+" is also set: set only one of the two"))
	case text != "":
		secret, err := decodeSecret(text)
		if err != nil {
			v.fail(EnvSecret, "", err)
		}
		return secret, false
	case path != "":
		secret, err := readSecretFile(path)
		if err != nil {
			v.fail(EnvSecretFile, path, err)
		}
		return secret, false
	case needed && !insecure:
		v.fail(EnvSecret, "", fmt.Errorf("not set: set %s or %s on all ranks, or %s=1 to run without a secret", EnvSecret, EnvSecretFile, EnvInsecure))
	}
	return nil, insecure
}

func decodeSecret(text string) ([]byte, error) {
	secret, err := hex.DecodeString(text)
	if err != nil {
		// The error of package hex would reveal a piece of it.
		return nil, errors.New("not hexadecimal")
	}
	if len(secret) < minSecret || len(secret) > maxSecret {
		return nil, fmt.Errorf("%d bytes, want %d to %d", len(secret), minSecret, maxSecret)
	}
	return secret, nil
}

func readSecretFile(path string) ([]byte, error) {
	f, err := openSecretFile(path)
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err // the path is in the EnvError
		}
		return nil, err
	}
	defer f.Close()
	// Check the open file: a check of the path first could be shown another file.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if err := checkPrivate(info); err != nil {
		return nil, err
	}
	const most = 2*maxSecret + 2 // and a line end
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, fmt.Errorf("more than %d bytes", most)
	}
	return decodeSecret(strings.TrimSpace(string(b)))
}

// Join makes this process the rank described by e, whatever the variables of the environment say;
// see [Join]. A LocalSize of 0 means unknown.
//
// Errors: ErrOptions, and those of [Join].
func (e Environment) Join(ctx context.Context) (*Job, error) {
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("boot: join: %w: %w", ErrOptions, err)
	}
	if e.LocalSize == 0 {
		e.LocalRank = -1
	}
	return e.join(ctx)
}

func (e *Environment) check() error {
	within := func(what string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("%s %d, want %d to %d", what, n, least, most)
		}
		return nil
	}
	err := within("size", e.Size, 1, MaxSize)
	if err == nil {
		err = within("rank", e.Rank, 0, e.Size-1)
	}
	if err == nil && e.LocalSize != 0 {
		err = within("local size", e.LocalSize, 1, e.Size)
		if err == nil {
			err = within("local rank", e.LocalRank, 0, e.LocalSize-1)
		}
	}
	switch {
	case err != nil:
		return err
	case len(e.Job) > maxJobID:
		return fmt.Errorf("job id of %d bytes, the most is %d", len(e.Job), maxJobID)
	case e.Secret == nil && e.Size > 1 && !e.Insecure:
		return errors.New("no Secret, and Insecure is not set: set one of them")
	case e.Secret != nil && e.Insecure:
		return errors.New("both Secret and Insecure are set")
	case e.Secret != nil && (len(e.Secret) < minSecret || len(e.Secret) > maxSecret):
		return fmt.Errorf("secret of %d bytes, want %d to %d", len(e.Secret), minSecret, maxSecret)
	case e.Server == "" && e.Size > 1:
		return errors.New("no Server")
	case e.Server != "":
		if err := checkServers(e.Server, e.Launched); err != nil {
			return fmt.Errorf("server %q: %w", e.Server, err)
		}
	}
	return nil
}

// join makes this process the rank described by e.
func (e *Environment) join(ctx context.Context) (*Job, error) {
	if e.Server == "" {
		job, err := alone(ctx)
		if err == nil && e.Job != "" {
			job.id = e.Job
		}
		if err == nil && e.Secret != nil {
			job.secret = e.Secret
		}
		return job, err
	}
	m := meeting{Environment: *e, find: at(e.Server), hosted: !e.Launched, address: e.Server}
	if e.Launched {
		m.find = at(strings.Split(e.Server, ",")...)
	} else {
		m.listen = func(ctx context.Context) (net.Listener, error) { return listenAt(ctx, e.Server) }
	}
	return m.join(ctx)
}
