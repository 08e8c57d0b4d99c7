// Package report receives the signal that asks a process what it waits for.
package report

import (
	"os"
	"os/signal"
)

// Notify returns a channel of the signals that ask for a report, until [signal.Stop]. Without it
// the signal ends the process.
func Notify() chan os.Signal {
	c := make(chan os.Signal, 1)
	if asks != nil {
		signal.Notify(c, asks)
	}
	return c
}
