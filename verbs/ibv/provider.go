package ibv

import "github.com/sluice-hpc/sluice/verbs"

const providerName = "ibv"

// EnvLibrary is the environment variable that names the libibverbs to open, instead of the
// one that the dynamic linker finds.
const EnvLibrary = "SLUICE_IBVERBS"

func init() { verbs.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return providerName }
func (provider) Rank() int    { return 50 }
