//go:build !linux

package soft

import "github.com/sluice-hpc/sluice/verbs"

// eventFD does not exist on this system.
type eventFD int

const noEventFD eventFD = -1

func newEventFD() (eventFD, error) { return noEventFD, verbs.ErrNotSupported }
func (eventFD) set()               {}
func (eventFD) clear()             {}
func (eventFD) close() error       { return nil }
