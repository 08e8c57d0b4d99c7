package boot

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PMI-1, the wire protocol of MPICH's process managers, which Slurm speaks too:
// a line is asked, a line is answered (mpich, src/pmi/maint/pmi-1.1.txt and
// src/pmi/src/pmi_wire.c). It is used for as little as can be: rank 0 puts the
// address of the rendezvous and the secret into the key space, and all meet
// there. After that it serves Abort and Close.
//
// Nothing is sent but init, initack, get_maxes, get_my_kvsname, put, get,
// barrier_in, finalize and abort: Hydra kills a job that says anything else.
const (
	// maxPMILine bounds what is read. Values are at most 1024 bytes long
	// (Hydra, pmiserv_common.h; Slurm, mpi/pmi2/pmi.h).
	maxPMILine = 4096
	// maxPMIRequest bounds what is sent: older launchers read into 1024 bytes
	// (PMIU_MAXLINE).
	maxPMIRequest = 1000
	// maxPMIKey is the length of a key that every launcher takes.
	maxPMIKey = 64
	// pmiPatience bounds the answer to anything but barrier_in.
	pmiPatience = 30 * time.Second
)

// pmiLine is a line of the protocol: cmd=NAME and pairs of key and value.
type pmiLine struct {
	command string
	pairs   []pmiPair // no key twice
}

type pmiPair struct{ key, value string }

func (l *pmiLine) get(key string) (string, bool) {
	i := slices.IndexFunc(l.pairs, func(p pmiPair) bool { return p.key == key })
	if i < 0 {
		return "", false
	}
	return l.pairs[i].value, true
}

// Append appends the line with its end to b.
func (l *pmiLine) Append(b []byte) []byte {
	b = append(b, "cmd="...)
	b = append(b, l.command...)
	for _, p := range l.pairs {
		b = append(b, ' ')
		b = append(b, p.key...)
		b = append(b, '=')
		b = append(b, p.value...)
	}
	return append(b, '\n')
}

// parsePMILine parses a line without its end. A word that has no = in it goes
// on with the value before it: some explanations have spaces.
func parsePMILine(b []byte) (l pmiLine, err error) {
	bad := func(format string, a ...any) (pmiLine, error) {
		return pmiLine{}, fmt.Errorf("%w: %s", errProtocol, fmt.Sprintf(format, a...))
	}
	if len(b) > maxPMILine {
		return bad("line of %d bytes, at most %d", len(b), maxPMILine)
	}
	if i := bytes.IndexFunc(b, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return bad("byte %#02x in a line", b[i])
	}
	for word := range strings.FieldsSeq(string(b)) {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case l.command == "":
			if key != "cmd" || value == "" {
				return bad("line that begins with %.20q, not with cmd=", word)
			}
			l.command = value
		case !ok && len(l.pairs) > 0:
			l.pairs[len(l.pairs)-1].value += " " + word
		case !ok || key == "" || len(key) > maxPMIKey:
			return bad("%s: %.80q where a key and a value should be", l.command, word)
		default:
			if _, twice := l.get(key); twice || key == "cmd" {
				return bad("%s: key %q twice", l.command, key)
			}
			l.pairs = append(l.pairs, pmiPair{key, value})
		}
	}
	if l.command == "" {
		return bad("empty line")
	}
	return l, nil
}

// number returns the value of a key as a number.
func (l *pmiLine) number(key string, least, most int) (int, error) {
	value, ok := l.get(key)
	if !ok {
		return 0, fmt.Errorf("%w: no %s", errProtocol, key)
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%w: %s=%.40q, want %d to %d", errProtocol, key, value, least, most)
	}
	return n, nil
}

// check returns what the launcher complains of. Not every answer has a code.
func (l *pmiLine) check() error {
	rc, ok := l.get("rc")
	if !ok || rc == "0" {
		return nil
	}
	for _, key := range []string{"msg", "errmsg"} {
		if msg, ok := l.get(key); ok {
			return fmt.Errorf("the launcher says rc=%.40s: %.200s", rc, msg)
		}
	}
	return fmt.Errorf("the launcher says rc=%.40s", rc)
}

// pmi is the connection to a launcher. It is used by one goroutine at a time.
type pmi struct {
	conn     net.Conn
	r        *bufio.Reader
	name     string // of the key space
	maxValue int    // longest value
}

func newPMI(conn net.Conn) *pmi {
	return &pmi{conn: conn, r: bufio.NewReaderSize(conn, maxPMILine+1)}
}

// send writes one line in one call: Slurm takes init only if it comes whole.
func (p *pmi) send(l pmiLine, deadline time.Time) error {
	if err := p.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := p.conn.Write(l.Append(nil))
	return err
}

// receive reads one line, which must be the answer that is wanted.
func (p *pmi) receive(want string, deadline time.Time) (pmiLine, error) {
	var b []byte
	err := p.conn.SetReadDeadline(deadline)
	if err == nil {
		b, err = p.r.ReadSlice('\n')
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return pmiLine{}, fmt.Errorf("%w: line of more than %d bytes", errProtocol, maxPMILine)
	case err != nil:
		return pmiLine{}, fmt.Errorf("no answer: %w", err)
	}
	l, err := parsePMILine(b[:len(b)-1])
	if err != nil {
		return pmiLine{}, err
	}
	if l.command != want {
		return pmiLine{}, fmt.Errorf("%w: %.40q is answered, want %q", errProtocol, l.command, want)
	}
	return l, l.check()
}

// ask sends a command and reads its answer. A wait of zero has no bound but
// that of ctx.
func (p *pmi) ask(ctx context.Context, wait time.Duration, answer, command string, pairs ...pmiPair) (pmiLine, error) {
	var deadline time.Time
	if wait > 0 {
		deadline = time.Now().Add(wait)
	}
	// It bites whatever deadline is set meanwhile: the connection is closed.
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	err := p.send(pmiLine{command, pairs}, time.Now().Add(pmiPatience))
	var l pmiLine
	if err == nil {
		l, err = p.receive(answer, deadline)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return pmiLine{}, &PMIError{Command: command, Err: err}
	}
	return l, nil
}

// begin makes the acquaintance of the launcher.
func (p *pmi) begin(ctx context.Context) error {
	l, err := p.ask(ctx, pmiPatience, "response_to_init", "init", pmiPair{"pmi_version", "1"}, pmiPair{"pmi_subversion", "1"})
	if err != nil {
		return err
	}
	if _, err := l.number("pmi_version", 1, 1); err != nil {
		return &PMIError{Command: "init", Err: err}
	}
	if l, err = p.ask(ctx, pmiPatience, "maxes", "get_maxes"); err != nil {
		return err
	}
	key, err := l.number("keylen_max", 1, 1<<20)
	if err == nil {
		p.maxValue, err = l.number("vallen_max", 1, 1<<20)
	}
	if err == nil && (key < 16 || p.maxValue < 64) {
		err = fmt.Errorf("keys of %d and values of %d bytes, want at least 16 and 64", key, p.maxValue)
	}
	if err != nil {
		return &PMIError{Command: "get_maxes", Err: err}
	}
	if l, err = p.ask(ctx, pmiPatience, "my_kvsname", "get_my_kvsname"); err != nil {
		return err
	}
	p.name, _ = l.get("kvsname")
	if p.name == "" || len(p.name) > 256 || strings.Contains(p.name, " ") {
		return &PMIError{Command: "get_my_kvsname", Err: fmt.Errorf("%w: kvsname=%.40q", errProtocol, p.name)}
	}
	return nil
}

// pmiKey is the key of the i-th piece of what rank 0 has to say.
func pmiKey(i int) string { return "sluice-" + strconv.Itoa(i) }

// maxPMIPieces bounds the number of values over which it is spread.
const maxPMIPieces = 64

// put puts data into the key space. A value has neither spaces nor, with some
// launchers, more than a few hundred bytes: data is encoded and split. The
// first piece begins with the number of all.
func (p *pmi) put(ctx context.Context, data []byte) error {
	text := base64.RawURLEncoding.EncodeToString(data)
	const around = len("cmd=put kvsname= key=sluice-00 value=\n")
	size := min(p.maxValue-1, maxPMIRequest-len(p.name)-around) - len("00.")
	pieces := make([]string, 0, 1)
	for len(text) > size {
		pieces = append(pieces, text[:size])
		text = text[size:]
	}
	pieces = append(pieces, text)
	if len(pieces) > maxPMIPieces {
		return &PMIError{Command: "put", Err: fmt.Errorf("%w: %d bytes in %d values, at most %d", ErrTooLarge, len(data), len(pieces), maxPMIPieces)}
	}
	for i, piece := range pieces {
		if i == 0 {
			piece = strconv.Itoa(len(pieces)) + "." + piece
		}
		_, err := p.ask(ctx, pmiPatience, "put_result", "put", pmiPair{"kvsname", p.name}, pmiPair{"key", pmiKey(i)}, pmiPair{"value", piece})
		if err != nil {
			return err
		}
	}
	return nil
}

// get reads what rank 0 has put into the key space.
func (p *pmi) get(ctx context.Context) ([]byte, error) {
	var text strings.Builder
	for i, n := 0, 1; i < n; i++ {
		l, err := p.ask(ctx, pmiPatience, "get_result", "get", pmiPair{"kvsname", p.name}, pmiPair{"key", pmiKey(i)})
		if err != nil {
			return nil, err
		}
		piece, _ := l.get("value")
		if i == 0 {
			count, rest, ok := strings.Cut(piece, ".")
			if n, err = strconv.Atoi(count); !ok || err != nil || n < 1 || n > maxPMIPieces {
				return nil, &PMIError{Command: "get", Err: fmt.Errorf("%w: %s=%.40q", errProtocol, pmiKey(i), piece)}
			}
			piece = rest
		}
		text.WriteString(piece)
	}
	data, err := base64.RawURLEncoding.DecodeString(text.String())
	if err != nil {
		return nil, &PMIError{Command: "get", Err: fmt.Errorf("%w: %w", errProtocol, err)}
	}
	return data, nil
}

// barrier waits for all ranks, as long as it takes; what was put before it can
// be got after it.
func (p *pmi) barrier(ctx context.Context) error {
	_, err := p.ask(ctx, 0, "barrier_out", "barrier_in")
	return err
}

// abort asks the launcher to kill the job, and returns when it has killed this
// process, hung up, or taken its time.
func (p *pmi) abort(code int) {
	if code &= 0xff; code == 0 {
		code = 1 // what is aborted has not succeeded
	}
	deadline := time.Now().Add(abortGrace)
	err := p.send(pmiLine{"abort", []pmiPair{{"exitcode", strconv.Itoa(code)}}}, deadline)
	if err == nil {
		err = p.conn.SetReadDeadline(deadline)
	}
	if err == nil {
		p.r.Peek(1)
	}
}

// finalize says goodbye; the launcher would take an end without it for a
// crash.
func (p *pmi) finalize() error {
	defer p.conn.Close()
	_, err := p.ask(context.Background(), farewellPatience, "finalize_ack", "finalize")
	return err
}

// whereabouts is what rank 0 puts into the key space.
type whereabouts struct {
	secret    []byte
	addresses []string // host:port with numbers for hosts, or what SLUICE_SERVER says
}

const whereaboutsMagic = "sluice 1"

// Append appends the form in which it is put.
func (w *whereabouts) Append(b []byte) []byte {
	b = append(b, whereaboutsMagic...)
	b = append(b, '\n')
	b = hex.AppendEncode(b, w.secret)
	for _, a := range w.addresses {
		b = append(b, '\n')
		b = append(b, a...)
	}
	return b
}

func parseWhereabouts(b []byte) (w whereabouts, err error) {
	lines := strings.Split(string(b), "\n")
	if lines[0] != whereaboutsMagic || len(lines) < 3 || len(lines) > 2+maxAddresses {
		return whereabouts{}, fmt.Errorf("%w: %d lines that begin with %.20q, want 3 to %d and %q", errProtocol, len(lines), lines[0], 2+maxAddresses, whereaboutsMagic)
	}
	if w.secret, err = decodeSecret(lines[1]); err != nil {
		return whereabouts{}, fmt.Errorf("%w: secret: %w", errProtocol, err)
	}
	w.addresses = lines[2:]
	for _, a := range w.addresses {
		if err := checkAddress(a); err != nil {
			return whereabouts{}, fmt.Errorf("%w: address %.80q: %w", errProtocol, a, err)
		}
	}
	return w, nil
}

// pmiByFD says that PMI_FD is for this process. Open MPI's mpirun hands it on
// from a launcher around it, but not the descriptor.
func pmiByFD(v *values) bool {
	if !v.set(envPMIFD) {
		return false
	}
	if !v.set(envOpenMPIRank) {
		return true
	}
	fd, err := strconv.Atoi(v.get(envPMIFD))
	return err == nil && checkSocket(fd) == nil
}

func joinByPMIFD(ctx context.Context, v *values) (*Job, error) {
	e := v.place(envPMIRank, envPMISize)
	fd := v.integer(envPMIFD, 3, 1<<20)
	if v.err != nil {
		return nil, v.err
	}
	conn, err := takeSocket(fd)
	if err != nil {
		return nil, &EnvError{Name: envPMIFD, Value: v.get(envPMIFD), Err: err}
	}
	return joinByPMI(ctx, v, newPMI(conn), e)
}

func joinByPMIPort(ctx context.Context, v *values) (*Job, error) {
	address := v.get(envPMIPort)
	if err := checkAddress(address); err != nil {
		return nil, &EnvError{Name: envPMIPort, Value: address, Err: err}
	}
	id := v.integer(envPMIID, 0, MaxSize-1)
	if v.err != nil {
		return nil, v.err
	}
	d := net.Dialer{Timeout: pmiPatience}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &EnvError{Name: envPMIPort, Value: address, Err: err}
	}
	p := newPMI(conn)
	e, err := p.introduce(ctx, id)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return joinByPMI(ctx, v, p, e)
}

// introduce says which process this is; the launcher says which rank.
func (p *pmi) introduce(ctx context.Context, id int) (e Environment, err error) {
	e.LocalRank = -1
	if _, err := p.ask(ctx, pmiPatience, "initack", "initack", pmiPair{"pmiid", strconv.Itoa(id)}); err != nil {
		return Environment{}, err
	}
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	// Size, rank and debug, in this order.
	for i := range 3 {
		l, err := p.receive("set", time.Now().Add(pmiPatience))
		switch i {
		case 0:
			if err == nil {
				e.Size, err = l.number("size", 1, MaxSize)
			}
		case 1:
			if err == nil {
				e.Rank, err = l.number("rank", 0, e.Size-1)
			}
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return Environment{}, &PMIError{Command: "initack", Err: err}
		}
	}
	return e, nil
}

// joinByPMI takes over p, also if it fails.
func joinByPMI(ctx context.Context, v *values, p *pmi, e Environment) (*Job, error) {
	u := &underPMI{pmi: p}
	job, err := u.join(ctx, v, e)
	if err != nil {
		p.conn.Close()
		return nil, err
	}
	u.exchanger, job.x = job.x, u
	return job, nil
}

func (u *underPMI) join(ctx context.Context, v *values, e Environment) (*Job, error) {
	p := u.pmi
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	e.Job = jobNamed(p.name)
	v.localPlace(&e, envHydraLocal, envHydraLocals)
	if u.slurm = p.name == v.slurmStep(); u.slurm {
		v.slurmLocalPlace(&e)
	}
	server := v.server(false)
	if v.err != nil {
		return nil, v.err
	}
	if e.Size == 1 {
		job, err := alone(ctx)
		if err == nil {
			job.id = e.Job
		}
		return job, err
	}
	m := meeting{Environment: e, hosted: true}
	if e.Rank != 0 {
		w, err := p.whereabouts(ctx)
		if err != nil {
			return nil, err
		}
		m.Secret, m.find = w.secret, at(w.addresses...)
		return m.join(ctx)
	}
	m.Secret = make([]byte, 32)
	rand.Read(m.Secret)
	m.listen = func(ctx context.Context) (net.Listener, error) { return e.listen(ctx, server) }
	m.announce = func(ln net.Listener) (func(), error) {
		w := whereabouts{secret: m.Secret, addresses: []string{server}}
		if server == "" {
			var err error
			if w.addresses, err = reachable(ln); err != nil {
				return nil, err
			}
		}
		if err := p.put(ctx, w.Append(nil)); err != nil {
			return nil, err
		}
		return nil, p.barrier(ctx)
	}
	if u.slurm {
		m.kill = u.kill
	}
	return m.join(ctx)
}

// whereabouts waits for those of rank 0.
func (p *pmi) whereabouts(ctx context.Context) (whereabouts, error) {
	if err := p.barrier(ctx); err != nil {
		return whereabouts{}, err
	}
	b, err := p.get(ctx)
	if err != nil {
		return whereabouts{}, err
	}
	w, err := parseWhereabouts(b)
	if err != nil {
		return whereabouts{}, &PMIError{Command: "get", Err: err}
	}
	return w, nil
}

// listen is where rank 0 listens: at the port of SLUICE_SERVER if that is set,
// else at any port, for other hosts only if there are any.
func (e *Environment) listen(ctx context.Context, server string) (net.Listener, error) {
	switch {
	case server != "":
		ln, err := listenAt(ctx, server)
		if err == nil && ln == nil {
			err = fmt.Errorf("%s=%s is no address of rank 0's host, or in use", EnvServer, server)
		}
		return ln, err
	case e.oneHost():
		return listenLoopback(ctx)
	}
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", ":0")
}

func checkAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return errors.New("not host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %.20q, want 1 to 65535", port)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if host == "" || len(host) > maxHost || strings.ContainsFunc(host, func(r rune) bool { return !hostRune(r) }) {
		return errors.New("not the name of a host")
	}
	return nil
}

// underPMI adds to an exchange what the launcher has to be told.
//
// Hydra is told of an abort before the ranks are: one that has ended already
// would give mpiexec another exit status than that of the abort.
//
// Slurm kills a step that aborts, and srun returns the number of the signal
// then, not the code. So it is asked to only for ranks that do not end
// themselves when they are told, and it is rank 0 that does so, which is told
// last.
type underPMI struct {
	exchanger
	slurm bool

	mu     sync.Mutex // held by who speaks to the launcher, once the rank has joined
	pmi    *pmi
	gone   bool // the launcher has been told of the end
	closed bool
}

func (u *underPMI) abort(code int, why string) bool {
	if !u.slurm {
		u.kill(code)
		u.exchanger.abort(code, why)
		return true
	}
	if u.exchanger.abort(code, why) {
		if h, ok := u.exchanger.(*host); !ok || h.server.await(abortGrace, h.server.othersGone) {
			return true
		}
	}
	u.kill(code)
	return true
}

// kill asks the launcher to end the job. Where it cannot be reached it is on
// its way out.
func (u *underPMI) kill(code int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.gone {
		u.gone = true
		u.pmi.abort(code)
	}
}

func (u *underPMI) close() error {
	err := u.exchanger.close()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return err
	case u.gone:
		u.pmi.conn.Close()
	default:
		u.gone = true
		err = errors.Join(err, u.pmi.finalize())
	}
	u.closed = true
	return err
}

// refusePMI names a launcher that has left out how to reach it.
func refusePMI(_ context.Context, v *values) (*Job, error) {
	return nil, &LauncherError{
		Launcher: "a PMI launcher (" + envPMIRank + " is set)",
		Err:      fmt.Errorf("neither %s nor %s is set", envPMIFD, envPMIPort),
		Advice:   usable,
	}
}
