//go:build !unix

package verbstest

import (
	"errors"
	"os"
)

// canPause: there is no stopping of a process here.
const canPause = false

func pause(*os.Process) error  { return errors.ErrUnsupported }
func resume(*os.Process) error { return errors.ErrUnsupported }

// askForStacks ends a hung child.
func askForStacks(p *os.Process) {
	p.Kill() // an error means that it is gone already
}
