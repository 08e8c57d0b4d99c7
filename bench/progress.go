package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// progress is one line on a terminal, a bar and what is being measured. It is
// written between measurements only: a bar that redraws itself by a timer would
// be another process on the CPUs that are measured.
type progress struct {
	w     io.Writer // nil: there is no terminal to show it on
	shown bool
}

// newProgress shows on standard error where that is a terminal.
func newProgress(active bool) *progress {
	if !active || !terminal(os.Stderr) {
		return &progress{}
	}
	return &progress{w: os.Stderr}
}

func (p *progress) show(done, of int, what string) {
	if p.w == nil {
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s %d/%d %s", progressBar(done, of), done+1, of, what)
	p.shown = true
}

// barWidth is that of the bar, in characters.
const barWidth = 24

// progressBar is full for so many of all.
func progressBar(done, of int) string {
	full := barWidth * done / max(of, 1)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
}

// clear takes the line away, for other output.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
