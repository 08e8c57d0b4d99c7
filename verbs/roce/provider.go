package roce

import "github.com/sluice-hpc/sluice/verbs"

func init() { verbs.Register(provider{}) }

type provider struct{}

const providerName = "roce"

func (provider) Name() string { return providerName }

// Rank: behind tcp, which needs no trust in the network.
func (provider) Rank() int { return 200 }

// OnRequest: whether it serves better than tcp is for who knows the network to say.
func (provider) OnRequest() bool { return true }
