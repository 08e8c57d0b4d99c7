//go:build !unix

package need

import (
	"errors"
	"math"
)

const isUnix = false

func lockedMemory() uint64 { return math.MaxUint64 }

func openFiles() uint64 { return math.MaxUint64 }

func networks() error { return errors.ErrUnsupported }
