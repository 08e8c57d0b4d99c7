//go:build !unix

package reach

import (
	"errors"
	"syscall"
)

func bothFamilies(string, string, syscall.RawConn) error { return errors.ErrUnsupported }
