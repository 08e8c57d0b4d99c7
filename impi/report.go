package impi

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

// Report writes one line for each request of this host's processes that is not complete: its kind,
// peer, tag, length, and what it waits for; those of collectives too. A process that gets SIGUSR1
// writes it to standard error.
func (j *Job) Report(w io.Writer) error {
	e := j.e
	var b strings.Builder
	e.lock.Lock()
	fmt.Fprintf(&b, "IMPI host %d of %d:\n", e.me, len(e.links))
	for _, r := range e.table {
		if state := r.describe(); state != "" {
			b.WriteString("  " + state + "\n")
		}
	}
	e.lock.Unlock()
	_, err := io.WriteString(w, b.String())
	return err
}

// describe says what a request waits for; empty if it is complete. The caller holds the lock.
func (r *request) describe() string {
	if r.comm == nil || r.state == idle || r.state == done {
		return ""
	}
	var what, waits string
	switch {
	case r.kind == sending && r.state == queued:
		what, waits = "send to", "waits for the receiver, or for room on the way"
	case r.kind == sending:
		what, waits = "send to", fmt.Sprintf("waits for the receiver, %d bytes have gone", r.moved)
	case r.state == moving:
		what, waits = "receive from", fmt.Sprintf("is being received, %d bytes have come", r.moved)
	case r.state == unpacking:
		what, waits = "receive from", "has come, and is being put into its layout"
	case r.kind == receiving:
		what, waits = "receive from", "waits for the sender"
	default:
		what, waits = "probe from", "waits for the sender"
	}
	peer, tag := fmt.Sprint("rank ", r.peer), fmt.Sprint("tag ", r.tag)
	if r.peer < 0 {
		peer = "any rank"
	}
	switch {
	case !r.ofUser():
		tag = "of a collective"
	case r.tag < 0:
		tag = "any tag"
	}
	length := r.total
	if r.kind == sending || r.state != queued {
		length = r.length
	}
	return fmt.Sprintf("rank %d: %s %s, %s, %d bytes: %s", r.comm.p.rank, what, peer, tag, length, waits)
}

// reportOn writes the report on each signal until the job is closed.
func (j *Job) reportOn(signals chan os.Signal) {
	defer signal.Stop(signals)
	for {
		select {
		case <-j.e.life.Done():
			return
		case <-signals:
			j.Report(os.Stderr)
		}
	}
}
