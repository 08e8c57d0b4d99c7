//go:build !unix

package main

import "os"

var brokenPipe = []os.Signal{os.Interrupt}
