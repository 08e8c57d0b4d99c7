package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress is one line on a terminal, written between two steps and not by a timer: that
// would be another process on the CPUs that compute.
type progress struct {
	w     io.Writer // nil: there is no terminal to show it on
	last  time.Time
	shown bool
}

// Between two lines passes as long as an eye takes; a bar has so many characters.
const (
	progressPause = 100 * time.Millisecond
	progressWidth = 30
)

// newProgress shows on standard error where that is a terminal.
func newProgress(active bool) *progress {
	if !active || !term.IsTerminal(int(os.Stderr.Fd())) {
		return &progress{}
	}
	return &progress{w: os.Stderr}
}

// show says how far something is, of 0 to 1.
func (p *progress) show(part float64, format string, args ...any) {
	if p.w == nil || time.Since(p.last) < progressPause {
		return
	}
	p.last, p.shown = time.Now(), true
	n := int(progressWidth * min(1, max(0, part)))
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %s", strings.Repeat("=", n), strings.Repeat(" ", progressWidth-n), fmt.Sprintf(format, args...))
}

// clear takes the line away, for other output.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// converged is how much of the way a residual has gone down to a tolerance: its decimals.
func converged(residual, tolerance float64) float64 {
	return math.Log(residual) / math.Log(tolerance)
}
