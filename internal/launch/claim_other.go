//go:build !linux

package launch

// claims are cores that this process has claimed: none, for it cannot bind to any.
type claims struct{}

func (*claims) release() {}

func (*job) bindFree() string { return "" }

func (*job) claimOwn() {}
