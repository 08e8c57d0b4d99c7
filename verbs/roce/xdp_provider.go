package roce

import "github.com/sluice-hpc/sluice/verbs"

func init() { verbs.Register(xdpProvider{}) }

// xdpProvider is the protocol over the AF_XDP wire.
type xdpProvider struct{}

const xdpName = "xdp"

func (xdpProvider) Name() string { return xdpName }

// Rank puts it after the UDP wire, which changes nothing on the host.
func (xdpProvider) Rank() int { return 210 }

// OnRequest: opening a device attaches a program to the interface, through which all packets
// received there pass.
func (xdpProvider) OnRequest() bool { return true }
