//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-hpc/sluice/internal/launch"
)

func governor() string { return "" }

func boundCPUs() []int { return nil }

func readCPUTimes() (cpuTimes, bool) { return cpuTimes{}, false }

func declarePeek(context.Context, *bed, *measurement) series {
	must(errors.ErrUnsupported)
	return nil
}

func processFigures() (map[string]float64, error) { return nil, errLinux }

func moreDescriptors(uint64) error { return nil }

func monotonic() int64 { return time.Now().UnixNano() }

func onHosts(*launch.Options) (io.Closer, error) { return nil, errLinux }

func lose(float64) { must(errLinux) }

// errLinux: only Linux has what this needs.
var errLinux = errors.New("this needs Linux")

func cpuOf(int) (time.Duration, error) { return 0, errLinux }

func bindSelf(int) error { return errLinux }

type quotaGroup struct{}

func newQuotaGroup(float64) *quotaGroup {
	must(errLinux)
	return nil
}

func (*quotaGroup) Close() error { return nil }

func (o *soakOptions) run(context.Context, *outputOptions) {
	must(fmt.Errorf("soak: %w: it needs the stops, kills and network namespaces of Linux", errors.ErrUnsupported))
}
