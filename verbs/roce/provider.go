package roce

import "github.com/sluice-hpc/sluice/verbs"

func init() { verbs.Register(provider{}) }

type provider struct{}

const providerName = "roce"

func (provider) Name() string { return providerName }

// Rank puts it after tcp, which need not trust the network.
func (provider) Rank() int { return 200 }

// OnRequest: only the user can know whether it serves better than tcp on this network.
func (provider) OnRequest() bool { return true }
