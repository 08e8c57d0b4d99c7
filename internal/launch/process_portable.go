//go:build !linux

package launch

import (
	"errors"
)

// Cores lists the CPUs that Core binds to: none here.
func Cores() ([]int, error) { return nil, errors.ErrUnsupported }

// CoreOf names the core of which a CPU is a hardware thread: unknown here.
func CoreOf(int) string { return "" }

func bindThread(int) (undo func(), err error) { return nil, errors.ErrUnsupported }
