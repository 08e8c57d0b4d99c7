//go:build unix

package main

import (
	"os"
	"syscall"
)

var brokenPipe = []os.Signal{syscall.SIGPIPE}
