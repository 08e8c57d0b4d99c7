//go:build !linux

package main

import (
	"io"

	"github.com/sluice-hpc/sluice/internal/launch"
)

func newStar(*launch.Options) (io.Closer, error) { return nil, errLinux }

func lose(float64) { must(errLinux) }
