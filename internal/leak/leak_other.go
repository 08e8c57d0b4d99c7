//go:build !linux

package leak

// resources is empty where the system has no /proc/self: only goroutines are
// watched.
type resources struct{}

func warm() {}

func held() (resources, error) { return resources{}, nil }

func (resources) extra(resources) []string { return nil }
