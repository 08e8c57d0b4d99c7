//go:build !linux

package roce

// way is empty on systems without AF_XDP.
type way struct{}

func (*way) set(*flow) {}
