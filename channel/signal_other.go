//go:build !unix

package channel

import "os"

// reportSignal: there is none on this system.
var reportSignal os.Signal
