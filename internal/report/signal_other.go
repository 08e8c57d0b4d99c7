//go:build !unix

package report

import "os"

// asks: there is none on this system.
var asks os.Signal
