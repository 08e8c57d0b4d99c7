//go:build !linux

package roce

// way is nothing where there is no AF_XDP.
type way struct{}

func (*way) set(*flow) {}
