//go:build !linux

package main

import (
	"errors"
	"time"
)

// errLinux: only Linux has what this needs.
var errLinux = errors.New("needs Linux")

func cpuOf(int) (time.Duration, error) { return 0, errLinux }

func bindSelf(int) error { return errLinux }

type quotaGroup struct{}

func newQuotaGroup(float64) (*quotaGroup, error) { return nil, errLinux }

func (*quotaGroup) Close() error { return nil }
