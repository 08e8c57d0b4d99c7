package boot

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-hpc/sluice/internal/wait"
)

// PMI-1 is the wire protocol of MPICH's process managers, which Slurm speaks too: each line sent is
// answered by a line (mpich, src/pmi/maint/pmi-1.1.txt and src/pmi/src/pmi_wire.c). It is used as
// little as possible: rank 0 puts the address of the rendezvous and the secret into the key space,
// and all ranks meet there. After that it serves only Abort and Close.
//
// Only init, initack, get_maxes, get_my_kvsname, put, get, barrier_in, finalize and abort are sent:
// Hydra kills a job that sends anything else.
const (
	// maxPMILine bounds a received line. Values are at most 1024 bytes long (Hydra,
	// pmiserv_common.h; Slurm, mpi/pmi2/pmi.h).
	maxPMILine = 4096
	// maxPMIRequest bounds a sent line: older launchers read into 1024 bytes (PMIU_MAXLINE).
	maxPMIRequest = 1000
	// maxPMIKey is the length of a key that every launcher accepts.
	maxPMIKey = 64
)

// errLate is why a rank waits at its launcher.
var errLate = errors.New("not all ranks of the job have called Join")

// pmiPatience bounds the answer to anything but barrier_in: a variable for tests alone.
var pmiPatience = 30 * time.Second

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

// send writes one line in one call: Slurm accepts init only if it arrives whole.
func (p *pmi) send(l pmiLine) error {
	_, err := p.conn.Write(l.Append(nil))
	return err
}

// receive reads one line, which must be the expected answer.
func (p *pmi) receive(want string) (pmiLine, error) {
	b, err := p.r.ReadSlice('\n')
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
		return pmiLine{}, fmt.Errorf("%w: the launcher answered %.40q instead of %q", errProtocol, l.command, want)
	}
	return l, l.check()
}

// ask sends a command and reads its answer. It waits for at most so long, of which only that counts
// in which this process runs; 0: until ctx ends.
func (p *pmi) ask(ctx context.Context, most time.Duration, answer, command string, pairs ...pmiPair) (pmiLine, error) {
	if most > 0 {
		within, cancel := wait.Patience(ctx, most)
		defer cancel()
		ctx = within
	}
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	err := p.send(pmiLine{command, pairs})
	var l pmiLine
	if err == nil {
		l, err = p.receive(answer)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return pmiLine{}, &PMIError{Command: command, Err: err}
	}
	return l, nil
}

// begin starts the conversation with the launcher.
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
		err = fmt.Errorf("the launcher allows keys of %d and values of %d bytes, but at least 16 and 64 are needed", key, p.maxValue)
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

// pmiKey is the key of the i-th piece of rank 0's announcement.
func pmiKey(i int) string { return "sluice-" + strconv.Itoa(i) }

// maxPMIPieces bounds the number of pieces.
const maxPMIPieces = 64

// put puts data into the key space. A value must not have spaces and, with some launchers, not more
// than a few hundred bytes, so data is encoded and split. The first piece begins with the number of
// pieces.
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
		return &PMIError{Command: "put", Err: fmt.Errorf("%w: %d bytes in %d values, the most is %d values", ErrTooLarge, len(data), len(pieces), maxPMIPieces)}
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

// get reads the announcement of rank 0 from the key space.
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

// barrier waits for all ranks, without limit; what was put before it can be read after it.
func (p *pmi) barrier(ctx context.Context) error {
	waitsFor(ctx, errLate)
	defer waitsFor(ctx, nil)
	_, err := p.ask(ctx, 0, "barrier_out", "barrier_in")
	return err
}

// abort asks the launcher to kill the job. It returns when the launcher has killed this process,
// closed the connection, or used up its time.
func (p *pmi) abort(code int) {
	if code &= 0xff; code == 0 {
		code = 1 // an aborted job has not succeeded
	}
	within, cancel := wait.Patience(context.Background(), abortGrace)
	defer cancel()
	defer context.AfterFunc(within, func() { p.conn.Close() })()
	if err := p.send(pmiLine{"abort", []pmiPair{{"exitcode", strconv.Itoa(code)}}}); err == nil {
		p.r.Peek(1)
	}
}

// finalize ends the conversation; the launcher would take an end without it for a crash.
func (p *pmi) finalize() error {
	defer p.conn.Close()
	_, err := p.ask(context.Background(), farewellPatience, "finalize_ack", "finalize")
	return err
}

// whereabouts is the announcement that rank 0 puts into the key space.
type whereabouts struct {
	secret    []byte
	addresses []string // host:port with numeric hosts, or the value of SLUICE_SERVER
}

const whereaboutsMagic = "sluice 1"

// Append appends the encoding of w.
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
		return whereabouts{}, fmt.Errorf("%w: %d lines that begin with %.20q, expected 3 to %d lines and %q", errProtocol, len(lines), lines[0], 2+maxAddresses, whereaboutsMagic)
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

// whereabouts waits for the announcement of rank 0.
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
